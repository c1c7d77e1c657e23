"""Which function lowers which operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from intact.errors import Unsupported
from intact.program.lower import floats, normalization, pointwise, products, windows
from intact.program.lower import moves as moving
from intact.program.lower.builder import Builder
from intact.program.lower.forms import has_rank

Translate = Callable[[Builder, tuple[ir.Node, ...]], None]


@dataclass(frozen=True)
class Lowerings:
    """Which function lowers which operator.

    Attributes:
        functions: By operator type of the default domain; a chain is lowered by its first operator.
        any_rank: Operators that have no axes.
    """

    functions: Mapping[str, Translate]
    any_rank: Collection[str]

    def has(self, node: ir.Node) -> bool:
        """Tell whether there is a function for a node."""
        return node.domain == "" and node.op_type in self.functions

    def translate(self, builder: Builder, chain: tuple[ir.Node, ...]) -> None:
        """Add the steps of a chain.

        Raises:
            Unsupported: There is no operation for it, or the rank of what it works on is not known.
        """
        node = chain[0]
        if not self.has(node):
            raise Unsupported(f"there is no integer operation for {node.op_type}")
        if node.op_type not in self.any_rank:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.name and not has_rank(value):
                    raise Unsupported(f"the rank of {value.name!r} is not known")
        self.functions[node.op_type](builder, chain)


OPERATIONS = Lowerings(
    {
        "Conv": products.convolution,
        "ConvTranspose": products.transposed_convolution,
        "Gemm": products.gemm,
        "MatMul": products.matmul,
        **pointwise.TABLE,
        **windows.TABLE,
        **moving.TABLE,
        **normalization.TABLE,
    },
    {*pointwise.TABLE, "Identity", "Dropout"} - {"Softmax", "LogSoftmax"},
)
"""To operations that the integer engine computes."""

LAYERS = Lowerings(
    {**OPERATIONS.functions, **floats.TABLE}, {*OPERATIONS.any_rank, *floats.ANY_RANK}
)
"""Of float nodes, to operations of which each is a whole node."""
