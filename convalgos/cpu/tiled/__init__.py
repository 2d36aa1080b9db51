"""The driver of Winograd and tiled FFT: its blocking, cost, transforms."""
