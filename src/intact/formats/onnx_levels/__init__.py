"""A plan as ONNX in float whose tensors lie on the plan's levels, logarithmic ones too."""
