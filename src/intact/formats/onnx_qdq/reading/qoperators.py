"""Operators that compute on codes, and what they stand for.

ONNX Runtime's QOperator form has one operator for ``DequantizeLinear -> op -> QuantizeLinear``.
Sources: the ONNX operators QLinearConv and QLinearMatMul, and ONNX Runtime's ContribOperators
document for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class QOperator:
    """Where an operator on codes has its operands.

    Attributes:
        op_type: The float operator that it stands for.
        operands: Positions of codes, scale and zero point, in the order of the float operator.
        output: Positions of the output's scale and zero point.
        bias: Position of the int32 bias, None where there is none.
        variadic: The operands begin at ``operands[0]`` and repeat to the end.
        dropped: Attributes that the float operator does not have, with their only value that
            changes nothing; None where any value does.
    """

    op_type: str
    operands: tuple[tuple[int, int, int], ...]
    output: tuple[int, int]
    bias: int | None = None
    variadic: bool = False
    dropped: Mapping[str, int | None] = field(default_factory=dict)


_ONE, _TWO = ((0, 1, 2),), ((0, 1, 2), (3, 4, 5))
_NCHW = MappingProxyType({"channels_last": 0})
_MS = "com.microsoft"

QOPERATORS: Mapping[tuple[str, str], QOperator] = MappingProxyType(
    {
        ("", "QLinearConv"): QOperator("Conv", _TWO, (6, 7), bias=8),
        ("", "QLinearMatMul"): QOperator("MatMul", _TWO, (6, 7)),
        (_MS, "QLinearConv"): QOperator("Conv", _TWO, (6, 7), bias=8, dropped=_NCHW),
        (_MS, "QGemm"): QOperator("Gemm", _TWO, (7, 8), bias=6),
        (_MS, "QLinearAdd"): QOperator("Add", _TWO, (6, 7)),
        (_MS, "QLinearMul"): QOperator("Mul", _TWO, (6, 7)),
        (_MS, "QLinearSigmoid"): QOperator("Sigmoid", _ONE, (3, 4)),
        (_MS, "QLinearLeakyRelu"): QOperator("LeakyRelu", _ONE, (3, 4)),
        (_MS, "QLinearSoftmax"): QOperator("Softmax", _ONE, (3, 4), dropped={"opset": None}),
        (_MS, "QLinearConcat"): QOperator("Concat", ((2, 3, 4),), (0, 1), variadic=True),
        (_MS, "QLinearAveragePool"): QOperator("AveragePool", _ONE, (3, 4), dropped=_NCHW),
        (_MS, "QLinearGlobalAveragePool"): QOperator(
            "GlobalAveragePool", _ONE, (3, 4), dropped=_NCHW
        ),
    }
)
"""The table, by domain and operator type."""

DYNAMIC = frozenset(
    {
        "DynamicQuantizeLinear",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
    }
)
"""Operators of models whose activations are quantised anew for each input."""
