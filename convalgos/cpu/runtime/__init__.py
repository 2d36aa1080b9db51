"""Decorators of kernels, argument records, threads, MKL, calibration."""
