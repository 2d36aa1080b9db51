"""The base of algorithms and plans, grids, kernel arguments, the epilogue, split-K, CUDA graphs."""
