"""Recording tables: the samples of every candidate on many layers, for hours if need be."""
