"""Gradients on the GPU."""
