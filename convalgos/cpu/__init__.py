"""Algorithms on the CPU: one file each, and the toolkit they share."""
