"""Holds the tables of lowerings, and finishes a chain: what is fused, its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import onnx_ir as ir

from intact.errors import Unsupported
from intact.ops.operators import Named, type_of
from intact.program.forms import has_blocks, has_rank, moved_last, permute
from intact.program.handlers import NamedHandlers
from intact.program.lower.attributes import bounds_of, clamp_twice
from intact.program.lower.builder import ProgramBuilder
from intact.program.operations import (
    RESIDUAL_SLOT,
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    Operation,
    TransposedConvolution,
)
from intact.program.program import Tensor
from intact.targets import Arithmetic, Float, FloatInTurn, FloatType

Lowering: TypeAlias = Callable[[ProgramBuilder, tuple[ir.Node, ...]], None]
"""Adds the steps of a chain of nodes; raises `Unsupported` where there is no operation for it."""


class Lowerings(NamedHandlers[Lowering]):
    """Functions by operator type of the default domain; a chain is lowered by its first operator.

    Args:
        base: Lowers the operators that are missing here.
    """

    def __init__(self, base: Lowerings | None = None) -> None:
        super().__init__("lowering")
        self._base = base
        self._any_rank: set[str] = set()

    def register(self, *operators: Named, any_rank: bool = False) -> Callable[[Lowering], Lowering]:
        """Register the decorated function for these operators.

        Args:
            operators: The operators, or their types.
            any_rank: They have no axes, so that ranks need not be known.
        """
        if any_rank:
            self._any_rank.update(map(type_of, operators))
        return super().register(*operators)

    def has(self, node: ir.Node) -> bool:
        """Whether there is a function for a node."""
        return self._function(node) is not None

    def lower(self, builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
        """Add the steps of a chain.

        Raises:
            Unsupported: There is no operation for it, or a rank is not known.
        """
        node = chain[0]
        function = self._function(node)
        if function is None:
            raise Unsupported(f"there is no integer operation for {node.op_type}")
        if not self._takes_any_rank(node.op_type):
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.name and not has_rank(value):
                    raise Unsupported(f"the rank of {value.name!r} is not known")
        function(builder, chain)

    def _function(self, node: ir.Node) -> Lowering | None:
        if node.domain != "":
            return None
        found = self.get(node.op_type)
        if found is None and self._base is not None:
            return self._base._function(node)
        return found

    def _takes_any_rank(self, op_type: str) -> bool:
        inherited = self._base is not None and self._base._takes_any_rank(op_type)
        return inherited or op_type in self._any_rank


LOWERINGS = Lowerings()
"""To operations that the integer engine computes."""

FLOAT_LOWERINGS = Lowerings(base=LOWERINGS)
"""Float nodes that become one operation each."""

UNROLLING_LOWERINGS = Lowerings(base=LOWERINGS)
"""Float nodes that become any number of operations."""

_PRODUCTS = (BatchMatMul, Convolution, FullyConnected, TransposedConvolution)


def fused_bounds(chain: Sequence[ir.Node], first: int = 1) -> Bounds:
    """Return the bounds that the nodes of a chain from ``first`` on clamp the result to.

    Raises:
        Unsupported: One of them is no activation that clamps.
    """
    bounds = Bounds()
    for node in chain[first:]:
        own = bounds_of(node)
        if own is None:
            names = " and ".join(each.op_type for each in chain)
            raise Unsupported(f"there is no one operation for {names}")
        bounds = clamp_twice(own, bounds)
    return bounds


def finish(
    builder: ProgramBuilder,
    chain: Sequence[ir.Node],
    operation: Operation,
    inputs: Sequence[Tensor | None],
    *,
    channels_last: bool = False,
) -> None:
    """Add the step of a chain that requantizes to what the plan asks for.

    Args:
        builder: Where it goes.
        chain: The nodes that it computes.
        operation: What is computed.
        inputs: Its inputs.
        channels_last: The operation's result is ``[N, *S, C]``.

    Raises:
        Unsupported: It mixes codes and floats in a way that there is no arithmetic for.
    """
    value = chain[-1].outputs[0]
    result = builder.result(value)
    # Cases: (1) codes to codes; (2) floats to floats; (3) floats to codes: computed in float,
    # quantized by a step behind; (4) codes to floats: products only, whose sums are scaled once;
    # (5) codes and floats mixed: no arithmetic, refused.
    _check_channels((*inputs, result))
    is_product = isinstance(operation, _PRODUCTS)
    # A float bias is added as a real number.
    operands = (*inputs[:2], *inputs[RESIDUAL_SLOT:]) if is_product else inputs
    # Codes in blocks stand for floats, beside floats.
    encoded = {t.encoding is not None and not has_blocks(t) for t in operands if t is not None}
    if len(encoded) > 1:
        raise Unsupported("it computes with integers and floats")
    if encoded == {True} and result.encoding is None:
        if not isinstance(operation, _PRODUCTS):
            raise Unsupported("its inputs are integers and its output is float")
        # Sums that leave as floats are only scaled; a clamp needs codes or a step of its own.
        if operation.bounds != Bounds():
            raise Unsupported("its inputs are integers and its clamped output is float")
        if inputs[RESIDUAL_SLOT:]:
            raise Unsupported("a tensor of codes is added to its sums and its output is float")
    if is_product and encoded == {True} and result.encoding is not None:
        _check_real_addends(builder, chain[0], inputs)
    if encoded == {False} and result.encoding is not None:
        # Floats are computed in float, and quantized by a step of its own.
        result = replace(result, encoding=None, end=None)
    if channels_last:
        result = permute(result, moved_last(len(result.shape)))
    builder.emit(chain, operation, inputs, (result,))
    if channels_last:
        result = builder.channels_first(result)
    builder.set_result(value, result)


def _check_real_addends(
    builder: ProgramBuilder, node: ir.Node, inputs: Sequence[Tensor | None]
) -> None:
    """Check that the target scales sums once, in float32, where real numbers are added to them."""
    bias, residual = (*inputs, None)[2], inputs[RESIDUAL_SLOT:]
    is_real = bias is not None and bias.encoding is None
    how = _other_scaling(builder.plan.arithmetic_of(node))
    if how and (is_real or residual):
        what = "its bias is float" if is_real else "a tensor is added to its sums"
        raise Unsupported(f"{what}, and the target scales sums {how}")


def _other_scaling(arithmetic: Arithmetic) -> str:
    """Return how sums are scaled where it is not by one factor in float32."""
    if not isinstance(arithmetic.requantize, Float):
        return "in integers"
    if arithmetic.precision is FloatType.FLOAT64:
        return "in float64"
    return "by one scale after another" if isinstance(arithmetic.requantize, FloatInTurn) else ""


def finish_move(
    builder: ProgramBuilder,
    chain: Sequence[ir.Node],
    operation: Operation,
    inputs: Sequence[Tensor],
    *,
    channels_last: bool = False,
) -> None:
    """Add the step of a node that moves values: its results keep the encoding of its inputs.

    Where the plan gives them another, a requantization of its own follows. Whole numbers among
    them, as places, have none. What the model leaves out of several outputs is not computed for
    anyone, and has no name.

    Raises:
        Unsupported: Something is fused behind it.
    """
    if len(chain) > 1:
        names = " and ".join(each.op_type for each in chain)
        raise Unsupported(f"there is no one operation for {names}")
    _check_channels(inputs)
    encoding = inputs[0].encoding
    results = []
    for value in chain[0].outputs:
        result = builder.result(value)
        is_moved = result.plain.kind == "f"
        if is_moved and (encoding is None or not encoding.same_as(result.encoding)):
            result = replace(result, encoding=encoding, end=None)
        if channels_last:
            result = permute(result, moved_last(len(result.shape)))
        results.append(result)
    builder.emit(chain, operation, inputs, results)
    for value, result in zip(chain[0].outputs, results, strict=True):
        back = builder.channels_first(result) if channels_last else result
        builder.set_result(value, back)


def _check_channels(tensors: Sequence[Tensor | None]) -> None:
    """Check that no activation has one scale a channel: only conversions support those."""
    for tensor in tensors:
        if tensor is None or tensor.is_constant or tensor.encoding is None:
            continue
        if tensor.encoding.axis is not None:
            raise Unsupported(f"{tensor.value!r} has one scale a channel")
