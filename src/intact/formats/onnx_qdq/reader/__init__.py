"""The steps from a quantized ONNX model to a float one and what it says of its integers."""
