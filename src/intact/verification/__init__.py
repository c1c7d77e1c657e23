"""Does what was deployed compute what the plan says? Layer by layer, and end to end.

The reference is the integer engine, which computes a plan as its target's arithmetic says. Each
file here holds what one kind of runtime shows against it.
"""

from intact.verification.comparison import LayerComparison, OutputComparison
from intact.verification.devices import verify_c, verify_micro
from intact.verification.integers import verify_onnx_integer, verify_tvm
from intact.verification.ncnn import verify_ncnn
from intact.verification.observed import verify_observed
from intact.verification.openvino import verify_openvino
from intact.verification.qdq import verify_qdq
from intact.verification.report import OverflowReport, Verification
from intact.verification.tengine import verify_tengine
from intact.verification.tensorrt import verify_tensorrt
from intact.verification.tflite import verify_read_tflite, verify_tflite

__all__ = [
    "LayerComparison",
    "OutputComparison",
    "OverflowReport",
    "Verification",
    "verify_c",
    "verify_micro",
    "verify_ncnn",
    "verify_observed",
    "verify_onnx_integer",
    "verify_openvino",
    "verify_qdq",
    "verify_read_tflite",
    "verify_tengine",
    "verify_tensorrt",
    "verify_tflite",
    "verify_tvm",
]
