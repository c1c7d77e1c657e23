"""What TensorRT is given: a model with Quantize and Dequantize layers, and tables of ranges."""
