"""Does what was deployed compute what the plan says? Layer by layer, and end to end.

The reference is the integer engine, which computes a plan as its target's arithmetic says. Each
file here holds what one kind of runtime shows against it.
"""

from intact.formats.base.comparison import LayerComparison, OutputComparison
from intact.formats.base.integers import verify_onnx_integer, verify_tvm
from intact.formats.base.observed import verify_observed
from intact.formats.base.report import OverflowReport, ProcessorFinding, Verification
from intact.formats.c.verify import verify_c, verify_micro
from intact.formats.ncnn.verify import verify_ncnn
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.openvino.verify import verify_openvino
from intact.formats.tengine.verify import verify_tengine
from intact.formats.tensorrt.verify import verify_tensorrt
from intact.formats.tflite.verify import verify_read_tflite, verify_tflite

__all__ = [
    "LayerComparison",
    "OutputComparison",
    "OverflowReport",
    "ProcessorFinding",
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
