"""Algorithms on the GPU: one file each, with a CUDA source of the same name in `kernels`."""
