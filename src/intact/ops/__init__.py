"""Operators, each declared once: its options with their defaults, what it computes, what it is.

`functions.py`: functions of one tensor (options, defaults, NumPy, range); `operators.py`: all
others (roles of inputs, options with defaults, facts); `declaration.py`: what a declaration holds,
and the pads of windows.
"""

from __future__ import annotations

EXPANDABLE = (
    *("Attention", "BatchNormalization", "Col2Im", "DFT"),
    *("Div", "Einsum", "GridSample", "GroupNormalization"),
    *("GroupQueryAttention", "HardSigmoid", "If", "InstanceNormalization"),
    *("LayerNormalization", "Loop", "LpNormalization", "MeanVarianceNormalization"),
    *("MultiHeadAttention", "Pow", "RMSNormalization", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "RotaryEmbedding"),
    *("SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
)
"""Operators that ``intact.graph.passes.expand`` writes as several simpler ones."""

RECURRENT = ("GRU", "LSTM", "RNN")
"""Layers that hand their state from step to step."""

STORABLE = (*RECURRENT, "Gather")
"""Operators whose constants can be stored as integers while they compute in float: the weights of
recurrent ones, and the table in which Gather looks up rows."""

MEASURING = ("Shape", "Size")
"""Operators that tell sizes of tensors."""

DENSE = ("Gemm", "MatMul")
"""Products of matrices."""

CACHING = {"GroupQueryAttention": frozenset({4, 8}), "Concat": frozenset({8})}
"""Operators that append to a decoder's caches, with the widths in which a cache can hold codes."""

IN_BLOCKS = ("Gather", *DENSE)
"""Operators whose constants can be stored so in blocks: tables, and factors of products."""
