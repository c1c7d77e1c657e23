"""The operators that are recognized where they are written out."""

from __future__ import annotations

from intact.graph.passes.join import Joined, join
from intact.graph.passes.join_gelu import GELU
from intact.graph.passes.join_hard_swish import HARD_SWISH
from intact.graph.passes.join_layer_norm import LAYER_NORM
from intact.graph.passes.join_softmax import SOFTMAX

__all__ = ["JOINS", "join"]

JOINS: dict[str, Joined] = {each.op_type: each for each in (GELU, HARD_SWISH, LAYER_NORM, SOFTMAX)}
"""By operator type."""
