"""A plan as plain ONNX operators on integers: HAGO's realisation, for any runtime."""
