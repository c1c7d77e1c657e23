"""Does what was deployed compute what the plan says? Layer by layer, and end to end.

The reference is the integer engine, which computes a plan as its target's arithmetic says. Each
file here holds what one kind of runtime shows against it.
"""

from intact.verification.comparison import LayerComparison, OutputComparison
from intact.verification.devices import verify_c, verify_micro
from intact.verification.observed import verify_observed
from intact.verification.qdq import verify_qdq
from intact.verification.report import OverflowReport, Verification
from intact.verification.tflite import verify_read_tflite, verify_tflite

__all__ = [
    "LayerComparison",
    "OutputComparison",
    "OverflowReport",
    "Verification",
    "verify_c",
    "verify_micro",
    "verify_observed",
    "verify_qdq",
    "verify_read_tflite",
    "verify_tflite",
]
