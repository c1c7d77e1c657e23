"""The steps from ONNX with FakeQuantize to a float model and what it says of its codes."""
