"""Finds sums of a plan that may leave their accumulator, and simulates what happens then."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact._memo import Forgetful, IdentityKey, Memo
from intact.config import QuantState, TensorQuantConfig
from intact.graph import (
    Graph,
    OpKind,
    bias_slot,
    constant_array,
    facts,
    input_value,
    op_spec,
    output_channel_axis,
    weight_slot,
)
from intact.graph.edit import Editor
from intact.ops import functions
from intact.ops.operators import CONVOLUTIONS, Add, Cast, Div, Mul, Named, Sub, type_of
from intact.plan.inference import infer_scale
from intact.plan.quantized_graph import (
    Codes,
    Note,
    NoteKind,
    QuantizedGraph,
    TensorEnd,
    quantizes,
)
from intact.plan.topology import sole_reader
from intact.targets import DType

_FACTORS = (0, 1)

"""The input slots of the two factors of multiply-accumulate operators."""

_LONGEST = 1 << 16

"""Assumed maximum length of products of two activations if the model does not have it."""


EXACT_BELOW = 2**24

"""float32 represents every integer below this, so sums below it are exact."""


@dataclass(frozen=True, eq=False)
class WrappingSums:
    """Sums of a node that may overflow an accumulator with wrap-around.

    Attributes:
        node: The multiply-accumulate node.
        bits: Width of the accumulator.
        largest: Upper bound of the magnitude of a sum; None if the length of the sums is unknown.
        scale: Scale of the sums, float64, ``[]`` or ``[channels]``; None if the node's result is
            not only such sums.
        axis: Channel axis of the result; may be negative.
    """

    node: ir.Node
    bits: int
    largest: int | None
    scale: npt.NDArray[np.float64] | None
    axis: int | None

    @property
    def are_exact(self) -> bool:
        """Whether float32 holds them exactly, and nothing else is added to them."""
        return self.scale is not None and self.largest is not None and self.largest < EXACT_BELOW


class Overflows(NamedTuple):
    """The sums of a plan that may overflow, for any codes in its ranges.

    Attributes:
        wrapping: The sums that may overflow accumulators with wrap-around.
        saturate: Sums of two products may exceed the target's pair width.
    """

    wrapping: tuple[WrappingSums, ...]
    saturate: bool

    @property
    def need_integers(self) -> bool:
        """Whether only the integer engine computes them, see `needs_integers`."""
        return self.saturate or not all(sums.are_exact for sums in self.wrapping)

    @staticmethod
    def of(plan: QuantizedGraph, memo: Memo | None = None) -> Overflows:
        """Find them.

        Args:
            plan: A plan with scales.
            memo: What former calls computed with plans of the same graph and target.
        """
        memo = Forgetful() if memo is None else memo
        layers = memo("layers", lambda: tuple(_layers(plan.graph)))
        bounds = [
            (layer, memo(layer.key(plan), partial(_bound, plan, layer.node)))
            for layer in layers
            if layer.multiplies_integers(plan)
        ]
        wrapping = (
            WrappingSums(layer.node, bound.bits, bound.largest, *_scale(plan, layer.node))
            for layer, bound in bounds
            if bound.wraps
        )
        return Overflows(tuple(wrapping), any(bound.saturates for _, bound in bounds))


class _Layer(NamedTuple):
    """A node that multiplies and accumulates.

    Attributes:
        node: The node.
        factors: The ends of the two factors.
        ends: They, and that of the bias where there is one.
    """

    node: ir.Node
    factors: tuple[TensorEnd, ...]
    ends: tuple[TensorEnd, ...]

    def multiplies_integers(self, plan: QuantizedGraph) -> bool:
        """Tell whether the node computes with integers in a plan with scales."""
        if not plan.is_quantized(self.node):
            return False
        return all(plan.configs[end].params is not None for end in self.factors)

    def key(self, plan: QuantizedGraph) -> Hashable:
        """Return all of a plan that the bound depends on."""
        parts: list[Hashable] = [self.node.name, plan.keeps_runtime]
        for end in self.ends:
            config, codes = plan.configs[end], plan.baked.get(end)
            parts += (config.key, quantizes(config), codes is not None and IdentityKey(codes))
        return tuple(parts)


def _layers(graph: Graph) -> Iterator[_Layer]:
    for node in graph.nodes:
        spec, name = op_spec(node), str(node.name)
        if spec is not None and spec.kind is OpKind.COMPUTE:
            bias = bias_slot(node)
            factors = tuple(TensorEnd.input(name, slot) for slot in _FACTORS)
            yield _Layer(
                node, factors, factors if bias is None else (*factors, TensorEnd.input(name, bias))
            )


class _Bound(NamedTuple):
    """What the sums of a node may come to on the target.

    Attributes:
        bits: Width of the accumulator.
        largest: Upper bound of the magnitude of a sum, see `WrappingSums`.
        wraps: They may overflow an accumulator with wrap-around.
        saturates: The sum of two products may exceed the target's pair width.
    """

    bits: int
    largest: int | None
    wraps: bool = False
    saturates: bool = False


def wrapping_sums(plan: QuantizedGraph) -> Iterator[WrappingSums]:
    """Yield the sums that may overflow their accumulators, for any codes in the plan's ranges.

    Args:
        plan: A plan with scales.
    """
    yield from Overflows.of(plan).wrapping


def pairs_may_saturate(plan: QuantizedGraph) -> bool:
    """Tell whether the sum of two products may exceed the target's pair width, by the ranges."""
    return Overflows.of(plan).saturate


def _bound(plan: QuantizedGraph, node: ir.Node) -> _Bound:
    arithmetic = plan.arithmetic_of(node)
    bits, pairs = arithmetic.accumulator.bits, arithmetic.pairs
    if arithmetic.wraps:
        largest = _largest_sum(plan, node, 1 << (bits - 1))
        return _Bound(bits, largest, wraps=largest is None or largest >= 1 << (bits - 1))
    if pairs is not None:
        left, right = (_reach(plan.input_config(node, slot)) for slot in _FACTORS)
        limit = 1 << (pairs.pair_bits - 1)
        return _Bound(bits, None, saturates=2 * left * right >= limit)
    return _Bound(bits, None)


def _reach(config: TensorQuantConfig) -> int:
    """Compute the largest magnitude of a code minus its zero point."""
    params, grid = config.params, config.grid
    zero = np.zeros((), np.int64) if params is None else params.zero_point
    least, most = (0, 0) if grid.symmetric else (int(zero.min()), int(zero.max()))
    return max(grid.quant_max - least, most - grid.quant_min)


def _largest_sum(plan: QuantizedGraph, node: ir.Node, limit: int) -> int | None:
    """Bound the sums by the ranges if that is below the limit, else by the weights' integers."""
    reaches = [_reach(plan.input_config(node, slot)) for slot in _FACTORS]
    weight = weight_slot(node)
    if weight is None:
        count, product = _sum_length(node), reaches[0] * reaches[1]
        is_short = count is None and _LONGEST * product < limit
        return _LONGEST * product if is_short else None if count is None else count * product
    array, axis = constant_array(input_value(node, weight)), output_channel_axis(node)
    if array is None or not array.size:
        return None if array is None else 0
    channels = 1 if axis is None else array.shape[axis]
    rough = array.size // channels * reaches[0] * reaches[1] + _largest_bias(plan, node)
    # The rough bound needs no integers of weights, which a search would compute for each of its
    # plans.
    if rough < limit or axis is None:
        return rough
    bias = _bias_codes(plan, node)
    steps = _steps(plan, TensorEnd.input(str(node.name), weight), array)
    others = tuple(each for each in range(array.ndim) if each != axis)
    sums = steps.sum(axis=others) * reaches[0]
    # A bias of a grouped ConvTranspose has more channels than its weight: use the largest.
    return int((sums + (bias if bias.shape == sums.shape else bias.max(initial=0))).max())


def _sum_length(node: ir.Node) -> int | None:
    """Return the length of products of two activations; None if the model does not fix it."""
    value = input_value(node, 0)
    length = None if value is None or not value.shape else value.shape[-1]
    return length if isinstance(length, int) else None


def _largest_bias(plan: QuantizedGraph, node: ir.Node) -> int:
    """Bound the integers of a bias without quantizing it, since this runs for every plan."""
    slot = bias_slot(node)
    array = None if slot is None else constant_array(input_value(node, slot))
    config = None if slot is None else plan.input_config(node, slot)
    if config is None or array is None or config.scale is None or not quantizes(config):
        return 0
    reach = max(abs(config.quant_min), abs(config.quant_max))
    steps = float(np.abs(array).max(initial=0)) / float(config.scale.min())
    # Two more than the quotient: its rounding, and that of the bias. The comparison is written so
    # that NaN and infinity get the whole range.
    return reach if not steps < reach else int(steps) + 2


def _bias_codes(plan: QuantizedGraph, node: ir.Node) -> npt.NDArray[np.int64]:
    """Compute the magnitudes of the bias's integers, ``[channels]`` or ``[1]``."""
    slot = bias_slot(node)
    array = None if slot is None else constant_array(input_value(node, slot))
    if slot is None or array is None or not quantizes(plan.input_config(node, slot)):
        return np.zeros(1, np.int64)
    return _steps(plan, TensorEnd.input(str(node.name), slot), array.reshape(-1), array.shape)


def _steps(
    plan: QuantizedGraph,
    end: TensorEnd,
    array: npt.NDArray[Any],
    shape: tuple[int, ...] | None = None,
) -> npt.NDArray[np.int64]:
    """Compute the magnitudes of a constant's integers minus their zero points."""
    config, shaped = plan.configs[end], array if shape is None else array.reshape(shape)
    codes = plan.baked.get(end)
    if codes is None:
        codes = config.quantize(shaped.astype(np.float64 if config.bits > 16 else np.float32))
    return steps_from_zero(codes, config).reshape(array.shape)


def steps_from_zero(codes: Codes, config: TensorQuantConfig) -> npt.NDArray[np.int64]:
    """Compute the magnitudes of a constant's integers minus their zero points, as sums have them.

    Args:
        codes: The integers.
        config: Theirs, with one scale or one for each channel.
    """
    params, axis = config.params, config.granularity.axis
    steps = codes.astype(np.int64)
    # Symmetric weights, most of all: what has blocks and is multiplied as integers has no others.
    if params is not None and params.zero_point.any():
        shape = [-1 if each == axis else 1 for each in range(codes.ndim)]
        steps -= params.zero_point if axis is None else params.zero_point.reshape(shape)
    return np.asarray(np.abs(steps))


def _scale(
    plan: QuantizedGraph, node: ir.Node
) -> tuple[npt.NDArray[np.float64] | None, int | None]:
    """Compute the scale of the integer sums; None if floats are added to them."""
    weight, bias = weight_slot(node), bias_slot(node)
    extra = [k for k, value in enumerate(node.inputs) if value is not None and k not in _FACTORS]
    codes = {slot for slot in extra if slot == bias and quantizes(plan.input_config(node, slot))}
    # A float that is added is in the result, and not in the register that wraps.
    if len(codes) < len(extra) or _adds_behind(plan, node):
        return None, None
    configs = [plan.input_config(node, slot) for slot in _FACTORS]
    known = [np.asarray(each.scale, np.float64) for each in configs if each.scale is not None]
    has_channels = [scale.ndim > 0 and slot != weight for slot, scale in enumerate(known)]
    if any(each.grid.exponential for each in configs) or any(has_channels):
        return None, None
    scale = infer_scale(node, known)
    if scale is None or not scale.ndim:
        return scale, None
    if node.op_type in CONVOLUTIONS:
        return scale, 1
    return scale, -2 if weight == 0 else -1


def _adds_behind(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Tell whether an operator that is fused behind the node adds to its sums."""
    if plan.output_config(node).state is not QuantState.OVERLAPPED:
        return False
    reader = sole_reader(plan.graph, node)
    while reader is not None and not facts(reader[0]).adds:
        if plan.output_config(reader[0]).state is not QuantState.OVERLAPPED:
            return False
        reader = sole_reader(plan.graph, reader[0])
    return reader is not None


def wrap_sums(editor: Editor, plan: QuantizedGraph) -> None:
    """Let sums of float operators wrap as those of narrow accumulators do, behind each node.

    ``steps - 2**bits * floor((steps + 2**(bits - 1)) / 2**bits)`` of ``steps = round(sum / scale)``
    in float64 ([tvm], "Simulated Quantize"). Sums of 32 bits and more are left alone: float32 does
    not hold their last digits. So are those of `sums_left_alone`.

    Args:
        editor: A copy of the plan's model, before it has quantizers.
        plan: A plan with scales.
    """
    for sums in _narrow(plan):
        if sums.scale is not None:
            _wrap(editor, plan.graph, sums, sums.scale)


def sums_left_alone(plan: QuantizedGraph) -> list[str]:
    """Name nodes whose sums may leave a narrow accumulator where only integers can follow.

    Floats are added to them: a float bias, or what is fused behind.
    """
    return [str(sums.node.name) for sums in _narrow(plan) if sums.scale is None]


def sums_wrapped_in_floats(plan: QuantizedGraph) -> frozenset[str]:
    """Name nodes whose sums `wrap_sums` lets wrap: whatever computes them in floats wraps them."""
    return frozenset(str(s.node.name) for s in _narrow(plan) if s.scale is not None)


def overflow_notes(plan: QuantizedGraph) -> list[Note]:
    """Say of a file with `wrap_sums` which of its sums wrap, and which should and do not."""
    narrow = list(_narrow(plan))
    wrapped = [str(sums.node.name) for sums in narrow if sums.scale is not None]
    left = [str(sums.node.name) for sums in narrow if sums.scale is None]
    notes = []
    if wrapped:
        message = (
            f"sums may leave their {narrow[0].bits} bits ({len(wrapped)} node(s)): in this file "
            "they wrap as on the target, in floats"
        )
        notes.append(Note(NoteKind.EXPORT, wrapped[0], message))
    if left:
        message = (
            f"sums may leave their {narrow[0].bits} bits before floats are added ({len(left)} "
            "node(s)): in this file they do not wrap"
        )
        remedy = "`intact run` computes what the target does"
        notes.append(Note(NoteKind.EXPORT, left[0], message, remedy))
    return notes


def _narrow(plan: QuantizedGraph) -> Iterator[WrappingSums]:
    return (sums for sums in wrapping_sums(plan) if sums.bits < DType.INT32.bits)


def _wrap(editor: Editor, graph: Graph, sums: WrappingSums, scale: npt.NDArray[np.float64]) -> None:
    output = sums.node.outputs[0]
    name, double = f"{output.name}/wrapped", ir.DataType.DOUBLE
    value = editor.value(str(output.name))
    if sums.axis is not None:
        trailing = -1 - sums.axis if sums.axis < 0 else len(output.shape or ()) - 1 - sums.axis
        scale = scale.reshape(-1, *(1,) * trailing)
    numbers = {"scale": scale, "half": 2.0 ** (sums.bits - 1), "range": 2.0**sums.bits}
    held = {
        key: editor.initializer(f"{name}/{key}", np.asarray(number, np.float64))
        for key, number in numbers.items()
    }

    def emit(operator: Named, *inputs: ir.Value) -> ir.Value:
        op_type = type_of(operator)
        return editor.node(op_type, inputs, f"{name}/{op_type}", dtype=double)

    # The quotient in float64: in float32 it would be rounded to another integer from 2**24 on.
    exact = editor.node(Cast, [value], f"{name}/sums", {"to": int(double)}, double)
    steps = emit(functions.round_half_even, emit(Div, exact, held["scale"]))
    turns = emit(functions.floor, emit(Div, emit(Add, steps, held["half"]), held["range"]))
    inside = emit(Sub, steps, emit(Mul, turns, held["range"]))
    number = ir.DataType.FLOAT
    result = editor.node(
        Cast, [emit(Mul, inside, held["scale"])], f"{name}/floats", {"to": int(number)}, number
    )
    result.shape = value.shape
    readers = [(str(node.name), slot) for node, slot in graph.consumers(output)]
    editor.redirect(value, result, readers)
    editor.replace_output(value, result)
    editor.rebind(str(output.name), result)
