"""CUDA sources and NVRTC."""
