"""A plan as plain ONNX operators on integers: HAGO's realization, for any runtime."""
