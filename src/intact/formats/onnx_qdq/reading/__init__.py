"""The steps from a quantised ONNX model to a float one and what it says of its integers."""
