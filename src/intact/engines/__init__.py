"""Executors: the float model and the simulated quantized one, in ONNX Runtime."""
