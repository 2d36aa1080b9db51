"""Networks read from ONNX: nodes and patterns of nodes become steps, all others regions of ONNX Runtime."""
