"""Which data types an operator takes and gives, out of those that a target declares.

Source: the TVM document (HAGO), "Data Type Assignment": operators are gone through, and the
description is selected that satisfies the bits; facts, "HAGO, Bits": the first whose in-bits hold
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from intact.graph import OPS, OpKind, data_slots, weight_slot
from intact.plan.topology import adds_to_products
from intact.targets import DType, OpRule, Signature, Target

DTypeInference: TypeAlias = Callable[[ir.Node, Sequence[DType], DType], DType]
"""A node, the types of its factors (data inputs, then the weight) and the target's accumulator give
the type of its result before it is requantised."""

DTYPE_INFERENCES: dict[str, DTypeInference] = {}
"""The function of each operator type. An operator without one computes in float32."""


def factor_slots(node: ir.Node) -> tuple[int, ...]:
    """Return the slots that a description counts: data inputs, then the weight."""
    weight = weight_slot(node)
    data = tuple(slot for slot in data_slots(node) if not adds_to_products(node, slot))
    return (*data, *(() if weight is None else (weight,)))


def infer_dtype(node: ir.Node, taken: Sequence[DType], accumulator: DType) -> DType:
    """Return the type of a node's result before it is requantised."""
    function = DTYPE_INFERENCES.get(node.op_type) if node.domain == "" else None
    return DType.FLOAT32 if function is None else function(node, taken, accumulator)


def infers_dtype(*op_types: str) -> Callable[[DTypeInference], DTypeInference]:
    """Register a function for some operator types; a later registration replaces an earlier one."""

    def register(function: DTypeInference) -> DTypeInference:
        DTYPE_INFERENCES.update(dict.fromkeys(op_types, function))
        return function

    return register


def declared_signatures(node: ir.Node, rule: OpRule, target: Target) -> tuple[Signature, ...]:
    """Return the descriptions of a node, in the order in which they are declared.

    Each is written out: one type for every data input, then the weight. Where a rule declares
    none, those of ``[activation]`` and ``[weight]`` hold. Descriptions that compute in float32 are
    left out.
    """
    count, has_weight = len(factor_slots(node)), weight_slot(node) is not None
    data, weight = target.activation_scheme(rule).dtype, target.weight_scheme(rule).dtype
    own = (*(data for _ in range(count - has_weight)), *((weight,) if has_weight else ()))
    signatures = [Signature(inputs=rule.inputs or own, outputs=rule.outputs or (data,))]
    signatures += rule.alternatives
    written_out = (
        Signature(inputs=_repeated(each.inputs, count, has_weight), outputs=each.outputs)
        for each in signatures
    )
    return tuple(
        each for each in written_out if not any(dtype.is_float for dtype in each.inputs[:1])
    )


def infer_signature(signatures: Sequence[Signature], widths: Sequence[int]) -> Signature | None:
    """Return the first description whose inputs hold these widths; None where none does.

    Args:
        signatures: Written out, as `declared_signatures` gives them.
        widths: Bits of the codes of each data input, then of the weight.
    """
    for signature in signatures:
        pairs = zip(signature.inputs, widths, strict=False)
        if all(dtype.bits >= bits for dtype, bits in pairs):
            return signature
    return None


_COMPUTES = (OpKind.COMPUTE, OpKind.ELEMENTWISE, OpKind.REDUCE, OpKind.POOL)


@infers_dtype(
    *(
        op_type
        for op_type, spec in OPS.items()
        if spec.kind in _COMPUTES and not spec.moves_values and op_type not in ("Max", "Min")
    )
)
def gathered_dtype(_: ir.Node, _taken: Sequence[DType], accumulator: DType) -> DType:
    """Products and sums are gathered in the accumulator, whatever is made of it afterwards."""
    return accumulator


@infers_dtype(
    "Relu",
    "Clip",
    "Max",
    "Min",
    *(
        op_type
        for op_type, spec in OPS.items()
        if spec.moves_values or spec.kind in (OpKind.JOIN, OpKind.MOVE)
    ),
)
def input_dtype(_: ir.Node, taken: Sequence[DType], accumulator: DType) -> DType:
    """Codes are selected or moved: they stay of the widest type that they came in."""
    return max(taken, key=lambda dtype: dtype.bits, default=accumulator)


def _repeated(dtypes: tuple[DType, ...], count: int, has_weight: bool) -> tuple[DType, ...]:
    """Return one type an input: the last is that of the weight, or of all inputs that follow."""
    if not dtypes:
        return ()
    data, last = (dtypes[:-1] or dtypes, dtypes[-1]) if has_weight else (dtypes, dtypes[-1])
    filled = [*data[:count], *(data[-1:] * count)][: count - has_weight]
    return (*filled, last) if has_weight else tuple(filled)
