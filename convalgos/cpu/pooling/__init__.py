"""Pooling: windows reduced first along the rows that they cover, then along their columns."""
