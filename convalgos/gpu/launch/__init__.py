"""Plans, kernel arguments, the epilogue, CUDA graphs."""
