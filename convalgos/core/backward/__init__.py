"""Gradients by forward convolutions."""
