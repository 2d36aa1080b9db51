"""Reorders: channels in vectors, strided rows, the other layout."""
