"""Which function lowers which operator."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.program.lowering import moving, normalization, pointwise, products, windows
from intact.program.lowering.builder import Builder, Untranslatable

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


def translate(builder: Builder, chain: tuple[ir.Node, ...]) -> None:
    """Add the steps of a chain.

    Raises:
        Untranslatable: There is no operation for it.
    """
    node = chain[0]
    if node.domain != "" or node.op_type not in TABLE:
        raise Untranslatable(f"there is no integer operation for {node.op_type}")
    TABLE[node.op_type](builder, chain)
