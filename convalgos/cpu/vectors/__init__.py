"""Vector operations, the GEMM micro-kernel, transposes in registers."""
