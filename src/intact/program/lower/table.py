"""Which function lowers which operator."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.errors import Unsupported
from intact.program.lower import moves as moving
from intact.program.lower import normalization, pointwise, products, windows
from intact.program.lower.builder import Builder
from intact.program.lower.forms import has_rank

Translate = Callable[[Builder, tuple[ir.Node, ...]], None]

TABLE: dict[str, Translate] = {
    "Conv": products.convolution,
    "ConvTranspose": products.transposed_convolution,
    "Gemm": products.gemm,
    "MatMul": products.matmul,
    **pointwise.TABLE,
    **windows.TABLE,
    **moving.TABLE,
    **normalization.TABLE,
}
"""By operator type of the default domain; a chain is lowered by its first operator."""


_ANY_RANK = {*pointwise.TABLE, "Identity", "Dropout"} - {"Softmax", "LogSoftmax"}
"""Operators that have no axes."""


def translate(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Add the steps of a chain.

    Raises:
        Unsupported: There is no operation for it, or the rank of what it works on is not known.
    """
    node = chain[0]
    if node.domain != "" or node.op_type not in TABLE:
        raise Unsupported(f"there is no integer operation for {node.op_type}")
    if node.op_type not in _ANY_RANK:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name and not has_rank(value):
                raise Unsupported(f"the rank of {value.name!r} is not known")
    TABLE[node.op_type](builder, chain)
