"""Depthwise micro-kernels."""
