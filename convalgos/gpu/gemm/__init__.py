"""GEMM on CUDA cores and tensor cores: tiles, operands, batched, split over pixels."""
