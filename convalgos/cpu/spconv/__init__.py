"""Convolution by sparse filters: the blocking, the lists of non-zero weights, and the kernels."""
