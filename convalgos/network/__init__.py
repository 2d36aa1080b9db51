"""Whole networks: read from ONNX or torch, planned across layers, and run end to end."""
