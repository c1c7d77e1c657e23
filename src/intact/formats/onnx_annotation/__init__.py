"""Scales that a float ONNX model carries as ``quantization_annotation``."""
