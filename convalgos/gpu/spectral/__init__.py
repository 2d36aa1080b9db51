"""FFTs inside a block."""
