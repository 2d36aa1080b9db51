"""FFTs inside a block, and rows that are longer."""
