"""ONNX with QuantizeLinear and DequantizeLinear, as ONNX Runtime fuses it."""
