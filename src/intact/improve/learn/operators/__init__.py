"""Rules that compute ONNX operators in torch: one for each operator type, for all float dtypes.

Sources: the operator specification (https://onnx.ai/onnx/operators/), and ONNX Runtime where it
leaves something open. A NaN goes through MaxPool, ReduceMax and ReduceMin; ONNX Runtime keeps or
drops it there, depending on its place.
"""

from __future__ import annotations

from intact.improve.learn.operators import (
    activations,
    elementwise,
    indices,
    moves,
    normalizations,
    pools,
    products,
    recurrent,
    resizing,
)
from intact.improve.learn.operators.rules import RULES, Apply, Rule, operator, prepare, unsupported

__all__ = ["RULES", "Apply", "Rule", "operator", "prepare", "unsupported"]

_MODULES = (
    activations,
    elementwise,
    indices,
    moves,
    normalizations,
    pools,
    products,
    recurrent,
    resizing,
)
"""Their rules are registered when they are imported."""
