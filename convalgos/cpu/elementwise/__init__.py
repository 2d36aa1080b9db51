"""Steps of networks beside convolutions: sums, products, activations, norms, copies, upsampling of maps."""
