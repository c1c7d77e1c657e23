"""Infers what every edge of a plan carries, scales and data types, operator by operator.

Source: [tvm], "Scale Inference" and "Data Type Assignment". An operator that is not known here gets
its functions with `infers_scale` and `infers_dtype`; [tvm] calls what is inferred for the quantizer
on an edge ``in_scale``, ``in_dtype`` and ``out_dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import (
    OPS,
    OpKind,
    Role,
    bias_slot,
    data_slots,
    input_role,
    moves_values,
    weight_slot,
)
from intact.ops import functions
from intact.ops.operators import (
    AveragePool,
    Clip,
    Conv,
    ConvTranspose,
    CumSum,
    Gemm,
    GlobalAveragePool,
    MatMul,
    Mul,
    Named,
    ReduceMean,
    ReduceSum,
    Relu,
    operators_that,
    type_of,
)
from intact.plan.points import QuantPoint, is_joined, quantization_points, refuse_unready
from intact.plan.quantized_graph import Direction, QuantizedGraph, TensorEnd, quantizes
from intact.plan.topology import adds_to_products
from intact.targets import DType, OpRule, Signature, Target
from intact.targets.match import averaged_elements

DTypeInference: TypeAlias = Callable[[ir.Node, Sequence[DType], DType], DType]

"""Computes the type of a node's result before requantization, from the node, the types of its
factors (data inputs, then the weight) and the target's accumulator type.
"""

DTYPE_INFERENCES: dict[str, DTypeInference] = {}

"""The functions by operator type. An operator without one computes in float32."""


def factor_slots(node: ir.Node) -> tuple[int, ...]:
    """List the input slots that a signature has: data inputs, then the weight."""
    weight = weight_slot(node)
    data = tuple(slot for slot in data_slots(node) if not adds_to_products(node, slot))
    return (*data, *(() if weight is None else (weight,)))


def infer_dtype(node: ir.Node, input_types: Sequence[DType], accumulator: DType) -> DType:
    """Infer the type of a node's result before requantization."""
    function = DTYPE_INFERENCES.get(node.op_type) if node.domain == "" else None
    return DType.FLOAT32 if function is None else function(node, input_types, accumulator)


def infers_dtype(*operators: Named) -> Callable[[DTypeInference], DTypeInference]:
    """Register a function for some operators; a later registration replaces an earlier one."""

    def register(function: DTypeInference) -> DTypeInference:
        DTYPE_INFERENCES.update(dict.fromkeys(map(type_of, operators), function))
        return function

    return register


def declared_signatures(node: ir.Node, rule: OpRule, target: Target) -> tuple[Signature, ...]:
    """List the signatures of a node in the order of declaration.

    Each is complete: one type for every data input, then the weight. A rule without signature has
    the types of ``[activation]`` and ``[weight]``. Signatures that compute in float32 are left out.
    """
    count, has_weight = len(factor_slots(node)), weight_slot(node) is not None
    data, weight = target.activation_scheme(rule).dtype, target.weight_scheme(rule).dtype
    own = (*(data for _ in range(count - has_weight)), *((weight,) if has_weight else ()))
    signatures = [Signature(inputs=rule.inputs or own, outputs=rule.outputs or (data,))]
    signatures += rule.alternatives
    # A signature may name one type for all its inputs: each is written out, so that types and
    # widths can be compared one by one.
    written_out = (
        Signature(inputs=_repeat(each.inputs, count, has_weight), outputs=each.outputs)
        for each in signatures
    )
    return tuple(
        each for each in written_out if not any(dtype.is_float for dtype in each.inputs[:1])
    )


def declared_dtypes(node: ir.Node, target: Target, end: TensorEnd) -> tuple[DType, ...]:
    """List the integer types that the signatures of a target have for codes at an end of a node.

    Those have at most 16 bits: an int32 is an accumulator.
    """
    rule = target.rule_for(node)
    signatures = () if rule is None else declared_signatures(node, rule, target)
    slots = factor_slots(node)
    if end.direction is Direction.OUTPUT:
        declared = [each.outputs[0] for each in signatures]
    elif end.slot in slots:
        declared = [each.inputs[slots.index(end.slot)] for each in signatures]
    else:
        declared = []
    kept = (each for each in declared if not each.is_float and each.bits <= DType.INT16.bits)
    return tuple(dict.fromkeys(kept))


def widest_bits(node: ir.Node, target: Target, end: TensorEnd) -> int | None:
    """Compute the largest width that a target declares at an end; None where it describes none."""
    rule = target.rule_for(node)
    if rule is None:
        return None
    is_weight = end.direction is Direction.INPUT and input_role(node, end.slot) is Role.WEIGHT
    scheme = target.weight_scheme(rule) if is_weight else target.activation_scheme(rule)
    return max([scheme.bits, *(each.bits for each in declared_dtypes(node, target, end))])


def infer_signature(signatures: Sequence[Signature], widths: Sequence[int]) -> Signature | None:
    """Return the first signature whose inputs hold these widths; None if none does.

    Args:
        signatures: Complete ones, from `declared_signatures`.
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
        if spec.kind in _COMPUTES and not (spec.moves_values or spec.selects)
    )
)
def gather_dtype(_: ir.Node, _input_type: Sequence[DType], accumulator: DType) -> DType:
    """Products and sums have the type of the accumulator."""
    return accumulator


@infers_dtype(
    *(
        op_type
        for op_type, spec in OPS.items()
        if spec.moves_values or spec.selects or spec.kind in (OpKind.JOIN, OpKind.MOVE)
    ),
)
def input_dtype(_: ir.Node, input_types: Sequence[DType], accumulator: DType) -> DType:
    """Selected or moved codes have the widest type of the inputs."""
    return max(input_types, key=lambda dtype: dtype.bits, default=accumulator)


def _repeat(dtypes: tuple[DType, ...], count: int, has_weight: bool) -> tuple[DType, ...]:
    """Expand types to one per input: the last is the weight's, or that of all further inputs."""
    if not dtypes:
        return ()
    data, last = (dtypes[:-1] or dtypes, dtypes[-1]) if has_weight else (dtypes, dtypes[-1])
    filled = [*data[:count], *(data[-1:] * count)][: count - has_weight]
    return (*filled, last) if has_weight else tuple(filled)


Scale: TypeAlias = npt.NDArray[np.float64]

"""Positive, float64; ``[]``, or a shape that broadcasts to the tensor."""

ScaleInference: TypeAlias = Callable[[ir.Node, Sequence[Scale]], Scale | None]

"""Computes the scale of a node's result from the node and the scales of its factors (data inputs,
then the weight, without biases and parameters); None if it has no single scale.
"""

SCALE_INFERENCES: dict[str, ScaleInference] = {}

"""The functions by operator type. The result of an operator without one has no single scale."""


def infers_scale(*operators: Named) -> Callable[[ScaleInference], ScaleInference]:
    """Register a function for some operators; a later registration replaces an earlier one.

    >>> @infers_scale("MyShiftLeft")
    ... def doubled(node, scales):
    ...     return scales[0] * 2
    >>> SCALE_INFERENCES.pop("MyShiftLeft") is doubled
    True
    """

    def register(function: ScaleInference) -> ScaleInference:
        SCALE_INFERENCES.update(dict.fromkeys(map(type_of, operators), function))
        return function

    return register


def infer_scale(node: ir.Node, scales: Sequence[Scale | None]) -> Scale | None:
    """Infer the scale of a node's result before requantization.

    Args:
        node: A quantized node.
        scales: Scales of its factors; None for a float one.

    Returns:
        The scale; None if the result has no single scale.
    """
    function = SCALE_INFERENCES.get(node.op_type) if node.domain == "" else None
    known = [scale for scale in scales if scale is not None]
    # One float factor, and the sums are no integers.
    if function is None or not known or len(known) < len(scales):
        return None
    return function(node, known)


@infers_scale(Conv, ConvTranspose, MatMul, Mul)
def product_of_scales(_: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """The product of integers has the product of their scales."""
    product = scales[0]
    for scale in scales[1:]:
        product = np.asarray(product * scale, np.float64)
    return product


@infers_scale(Gemm.name)
def scale_of_dense(node: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """Infer it as a product, if alpha and beta are 1 (graph/passes/gemm.py folds them)."""
    options = Gemm.of(node)
    is_plain = options.alpha == options.beta == 1.0
    return product_of_scales(node, scales) if is_plain else None


@infers_scale(*operators_that(lambda s: (s.adds or s.selects) and not s.clamps))
def common_scale(_: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """Integers that are added, compared or joined must have the same scale."""
    agree = all(np.array_equal(scale, scales[0]) for scale in scales[1:])
    return scales[0] if agree else None


@infers_scale(Relu, Clip, functions.absolute, functions.negative, ReduceSum, CumSum)
def own_scale(_: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """The result has the scale of the input.

    The bounds of a Clip may lie between its integers.
    """
    return scales[0]


@infers_scale(*operators_that(lambda spec: spec.moves_values))
def move_scale(node: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """Moved integers keep a single scale; with several scales an axis may have moved."""
    if not moves_values(node):
        return None
    return scales[0] if scales[0].ndim == 0 else None


@infers_scale(AveragePool, GlobalAveragePool, ReduceMean)
def scale_of_mean(node: ir.Node, scales: Sequence[Scale]) -> Scale | None:
    """A mean of n elements is their sum with the input's scale divided by n."""
    count = averaged_elements(node)
    return None if count is None else np.asarray(scales[0] / count, np.float64)


@dataclass(frozen=True)
class EdgeTypes:
    """The data types of an edge, before and after its quantizer.

    Attributes:
        in_scale: Scale of the producer's integers before requantization; float64, ``[]`` or a shape
            that broadcasts to the value. None for floats: model inputs, constants, results of float
            nodes and of operators whose result has no single scale.
        in_dtype: Type of these integers; float32 if ``in_scale`` is None.
        out_dtype: Type that holds the codes.
    """

    in_scale: Scale | None
    in_dtype: DType
    out_dtype: DType


@dataclass(frozen=True)
class _Result:
    """Scale and type of a node's result or input."""

    scale: Scale | None = None
    dtype: DType = DType.FLOAT32


_FLOAT = _Result()


def infer_edges(plan: QuantizedGraph) -> dict[TensorEnd, EdgeTypes]:
    """Infer the types of every quantized edge, by the end that names its point.

    Args:
        plan: A plan with scales.

    Raises:
        PlanError: An end has no scale yet.
    """
    refuse_unready(plan)
    results: dict[str, _Result] = {}
    for node in plan.graph.nodes:
        results[str(node.name)] = _result(plan, node, results)
    quantized_outputs: dict[ir.Value, _Result] = {}
    edges = {}
    for point in quantization_points(plan):
        producer = point.value.producer()
        produced = _FLOAT if producer is None else results.get(str(producer.name), _FLOAT)
        # A second quantizer of a value reads the output of the first.
        arriving = produced if point.at_output else quantized_outputs.get(point.value, produced)
        out = _code_dtype(plan, point)
        if point.at_output:
            quantized_outputs[point.value] = _codes(point.config, out)
        edges[point.end] = EdgeTypes(arriving.scale, arriving.dtype, out)
    return edges


def _result(plan: QuantizedGraph, node: ir.Node, results: dict[str, _Result]) -> _Result:
    """Infer scale and type of a node's result before requantization."""
    rule = plan.target.rule_for(node) if plan.is_quantized(node) else None
    slots = factor_slots(node)
    if rule is None or not slots or _adds_floats(plan, node):
        return _FLOAT
    input_types = [_input_type(plan, node, slot, results) for slot in slots]
    widths = [plan.input_config(node, slot).bits for slot in slots]
    declared = infer_signature(declared_signatures(node, rule, plan.target), widths)
    scale = infer_scale(node, [each.scale for each in input_types])
    if declared is None or scale is None:
        return _FLOAT
    accumulator_bits = plan.arithmetic_of(node).accumulator.bits
    accumulator = DType.holding(accumulator_bits, signed=True)
    # What a fused producer gives is never stored: it has the accumulator's type, whatever the
    # signature says of codes.
    hidden = [_is_hidden(plan, node, slot) for slot in slots]
    pairs = zip(input_types, hidden, declared.inputs, strict=True)
    dtypes = [each.dtype if is_sum else dtype for each, is_sum, dtype in pairs]
    dtype = infer_dtype(node, dtypes, accumulator)
    return _FLOAT if dtype.is_float else _Result(scale, dtype)


def _input_type(
    plan: QuantizedGraph, node: ir.Node, slot: int, results: dict[str, _Result]
) -> _Result:
    """Infer scale and type at an input slot: sums of a fused producer, codes, or floats."""
    value, config = node.inputs[slot], plan.input_config(node, slot)
    producer = None if value is None else value.producer()
    if producer is not None and _is_hidden(plan, node, slot):
        return results[str(producer.name)]
    if not (quantizes(config) or config.state is QuantState.OVERLAPPED):
        return _FLOAT
    dtype = DType.holding(config.bits, signed=config.quant_min < 0)
    codes = _codes(config, dtype)
    if codes.scale is None or codes.scale.ndim == 0:
        return codes
    return _Result(_along_channels(node, slot, codes.scale), dtype)


def _is_hidden(plan: QuantizedGraph, node: ir.Node, slot: int) -> bool:
    """Tell whether an input holds sums of a fused producer, which are not stored."""
    value = node.inputs[slot]
    producer = None if value is None else plan.producer_config(value)
    if value is None or producer is None or producer.state is not QuantState.OVERLAPPED:
        return False
    return not is_joined(plan, value)


def _codes(config: TensorQuantConfig, dtype: DType) -> _Result:
    """Return scale and type of codes; codes of a logarithmic grid have no scale in this sense."""
    if config.scale is None or config.dominator.grid.exponential:
        return _FLOAT
    return _Result(config.scale.astype(np.float64), dtype)


def _along_channels(node: ir.Node, slot: int, scales: Scale) -> Scale | None:
    """Reshape a weight's scales to broadcast along the channels of the node's result."""
    if slot != weight_slot(node):
        return None
    match node.op_type:
        case Conv.name | ConvTranspose.name:
            value = node.inputs[slot]
            spatial = 0 if value is None or value.shape is None else len(value.shape) - 2
            return scales.reshape(-1, *(1,) * spatial)
        case Gemm.name | MatMul.name:
            return scales.reshape(-1, 1) if slot == 0 else scales
    return None


def _adds_floats(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Tell whether a float bias is added to the sums."""
    slot = bias_slot(node)
    if slot is not None:
        return not quantizes(plan.input_config(node, slot))
    present = (slot for slot, value in enumerate(node.inputs) if value is not None)
    return any(adds_to_products(node, slot) for slot in present)


def _code_dtype(plan: QuantizedGraph, point: QuantPoint) -> DType:
    """Return the type that holds a point's codes: that of its scheme if they fit.

    As in [tvm] the bits may be fewer than those of the type; 6 bits may be held in an int8.
    """
    config, node = point.config, plan.graph.node(point.end.node)
    signed = config.quant_min < 0
    rule = plan.target.rule_for(node)
    if rule is None or config.bits > DType.INT16.bits:
        return DType.holding(config.bits, signed=signed)
    is_weight = not point.at_output and input_role(node, point.end.slot) is Role.WEIGHT
    scheme = plan.target.weight_scheme(rule) if is_weight else plan.target.activation_scheme(rule)
    return DType.holding(max(config.bits, scheme.dtype.bits), signed=signed)
