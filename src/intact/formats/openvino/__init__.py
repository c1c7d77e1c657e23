"""ONNX with FakeQuantize, OpenVINO's IR, and its CPU plugin."""
