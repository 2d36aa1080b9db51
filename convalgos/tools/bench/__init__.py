"""Layers and networks, peers, benchmarks, tuning."""
