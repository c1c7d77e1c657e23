"""Does what was deployed compute what the plan says? Layer by layer, and end to end."""

from intact.verification.comparison import LayerComparison, OutputComparison
from intact.verification.qdq import verify_qdq
from intact.verification.report import OverflowReport, Verification

__all__ = [
    "LayerComparison",
    "OutputComparison",
    "OverflowReport",
    "Verification",
    "verify_qdq",
]
