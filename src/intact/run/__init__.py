"""Executors: the float model and the simulated quantised one, in ONNX Runtime."""
