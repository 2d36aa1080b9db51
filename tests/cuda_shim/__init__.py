"""A stand-in for a GPU: runs the SIMT kernels of `kernels/` on the CPU, for tests."""
