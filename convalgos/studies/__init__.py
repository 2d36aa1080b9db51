"""Studies: questions about convolution, each answered by running a file of this room."""
