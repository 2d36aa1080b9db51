"""GEMM on CUDA and tensor cores, split-K."""
