"""Steps of networks beside convolutions: sums, products, activations, copies and upsampling of maps."""
