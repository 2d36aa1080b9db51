"""From the text of a kernel to machine code, and compiled kernels on disk."""
