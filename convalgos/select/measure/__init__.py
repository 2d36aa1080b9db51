"""Timing, accuracy, autotuning, capture of what a program runs."""
