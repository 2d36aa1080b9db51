"""Pooling on a GPU."""
