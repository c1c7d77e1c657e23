"""Realizes a program as a graph of plain integer operations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.errors import ExportError, Unsupported
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.program.operations import Dequantize, FloatNodes, Quantize
from intact.program.passes.encodings import signed
from intact.program.passes.integer_io import integer_io
from intact.program.program import Encoding, Program, Step, Tensor
from intact.program.realize import moves, pointwise, products, spatial
from intact.program.realize.builder import IntegerBuilder
from intact.program.realize.graph import IntegerGraph, Op, Place, Value
from intact.program.realize.step import REALIZERS, ArrangedValue, StepBuilder, Tensors, plain
from intact.program.unsupported import UnsupportedNodes
from intact.targets import Arithmetic, ZeroPointOrder

_NOT_INTEGERS = "not in integers alone:"
_FLOAT = np.dtype(np.float32)
_REGISTERED = (moves, pointwise, products, spatial)
"""Modules that fill `REALIZERS`."""


def quantize(
    builder: IntegerBuilder, floats: Value, encoding: Encoding, arithmetic: Arithmetic
) -> Value:
    """Return floats as codes; NaN becomes the code that the arithmetic says."""
    scale, zero = np.float32(encoding.scale.item()), int(encoding.zero_point.item())
    if arithmetic.reciprocal_scale:
        steps = _float(builder, Op.MUL, floats, np.float32(1) / scale)
    else:
        steps = _float(builder, Op.DIVIDE, floats, scale)
    if arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING and zero:
        steps, zero = _float(builder, Op.ADD, steps, zero), 0
    nearest = _round(builder, steps, encoding.rounding)
    # Clamped as floats: what leaves an integer's range cannot be cast.
    low, high = encoding.quant_min - zero, encoding.quant_max - zero
    # A comparison with NaN is false, so that it gets the end which is compared with first.
    if arithmetic.nan_is_highest:
        is_inside, end, limit, other = Op.LESS, _number(builder, high), Op.MAXIMUM, low
    else:
        is_inside, end, limit, other = Op.GREATER, _number(builder, low), Op.MINIMUM, high
    shape = nearest.shape
    keeps = _is(builder, is_inside, nearest, end)
    chosen = builder.emit(Op.CHOOSE, [keeps, nearest, end], _FLOAT, shape, (0, 0))
    limited = _float(builder, limit, chosen, other)
    codes = builder.emit(Op.CAST, [limited], np.int32, shape, (low, high))
    return builder.cast(builder.add(codes, zero), encoding.dtype)


def dequantize(builder: IntegerBuilder, codes: Value, encoding: Encoding) -> Value:
    """Return codes as floats."""
    steps = builder.sub(builder.wide(codes), int(encoding.zero_point.item()))
    floats = builder.emit(Op.CAST, [steps], _FLOAT, steps.shape, (0, 0))
    return _float(builder, Op.MUL, floats, encoding.scale.item())


def _round(builder: IntegerBuilder, steps: Value, rounding: Rounding) -> Value:
    """Return floats rounded: `Op.ROUND` is half to even, and only ties are moved.

    A tie is recognized exactly: ``x - round(x)`` has no rounding error.
    """
    if rounding is Rounding.UP:
        return builder.emit(Op.CEIL, [steps], _FLOAT, steps.shape, (0, 0))
    nearest = builder.emit(Op.ROUND, [steps], _FLOAT, steps.shape, (0, 0))
    if rounding in (Rounding.HALF_EVEN, Rounding.NEAREST):
        return nearest
    rest = _float(builder, Op.SUB, steps, nearest)

    def tie(size: float, side: Op | None = None) -> Value:
        """Return 1 where the rest is of this size, and the number on this side of 0."""
        found = _is(builder, Op.EQUAL, rest, _number(builder, size))
        if side is not None:
            lies = _is(builder, side, steps, _number(builder, 0))
            found = _is(builder, Op.BOTH, found, lies)
        return builder.emit(Op.CAST, [found], _FLOAT, found.shape, (0, 1))

    if rounding is Rounding.HALF_UP:
        return _float(builder, Op.ADD, nearest, tie(0.5))
    if rounding is Rounding.HALF_DOWN:
        return _float(builder, Op.SUB, nearest, tie(-0.5))
    away = rounding is Rounding.HALF_AWAY_FROM_ZERO
    up, down = (Op.GREATER, Op.LESS) if away else (Op.LESS, Op.GREATER)
    raised = _float(builder, Op.ADD, nearest, tie(0.5, up))
    return _float(builder, Op.SUB, raised, tie(-0.5, down))


def _number(builder: IntegerBuilder, number: npt.ArrayLike) -> Value:
    return builder.constant(np.asarray(number, _FLOAT))


def _float(builder: IntegerBuilder, op: Op, first: Value, second: Value | npt.ArrayLike) -> Value:
    operand = second if isinstance(second, Value) else _number(builder, second)
    return builder.emit(op, [first, operand], _FLOAT, first.shape, (0, 0))


def _is(builder: IntegerBuilder, op: Op, first: Value, second: Value) -> Value:
    return builder.emit(op, [first, second], np.bool_, first.shape, (0, 1))


def realize(program: Program, reasons: Mapping[str, str] | None = None) -> IntegerGraph:
    """Return a program as a graph of integer operations; it is not changed.

    Floats may stand at the ends alone: an input that is quantized, an output that is dequantized.

    Args:
        program: With codes of any type; its inputs and outputs are the graph's, with axes as they
            are stored.
        reasons: Why nodes compute in float, by their names, beside what the program says.

    Raises:
        ExportError: Some steps cannot be; all of them are listed, each with a remedy.
    """
    builder, tensors = IntegerBuilder(), Tensors()
    unsupported = UnsupportedNodes(_NOT_INTEGERS, program=program, reasons=reasons)
    names = {name: builder.names.fresh(name) for name in (*program.inputs, *program.outputs)}
    inputs = tuple(_input(names[name], tensor) for name, tensor in program.inputs.items())
    for value, tensor in zip(inputs, program.inputs.values(), strict=True):
        tensors.held[tensor.name] = ArrangedValue(value, plain(len(value.shape)))
    ends = {tensor.name for tensor in program.outputs.values()}
    starts = {tensor.name for tensor in program.inputs.values()}
    for step in program.steps:
        builder.stem = step.name
        try:
            _step(StepBuilder(step, builder, tensors), starts, ends)
        except Unsupported as reason:
            unsupported.add_step(step, reason)
            _assume(step, builder, tensors)
    unsupported.raise_any()
    outputs = tuple(
        _output(name, tensor, builder, tensors) for name, tensor in program.outputs.items()
    )
    shown = tuple(
        (tensor, Place(held.value.name, held.order))
        for tensor in (tensor for step in program.steps for tensor in step.outputs)
        if (held := tensors.held[tensor.name]).value.data is None
    )
    return IntegerGraph(inputs, outputs, tuple(builder.nodes), shown)


def _input(name: str, tensor: Tensor) -> Value:
    if tensor.dtype.kind in "iu":
        info = np.iinfo(tensor.dtype)
        return Value(name, tensor.dtype, tensor.shape, int(info.min), int(info.max))
    return Value(name, tensor.dtype, tensor.shape, 0, 0)


def _output(name: str, tensor: Tensor, builder: IntegerBuilder, tensors: Tensors) -> Value:
    """Return an output, which has a name of its own whatever else holds it."""
    builder.stem = name
    if tensor.data is not None:
        value = builder.constant(tensor.data)
    else:
        value = tensors.transpose(builder, tensor.name, plain(len(tensors.held[tensor.name].order)))
    made = Value(name, value.dtype, value.shape, value.low, value.high)
    builder.copy(value, made)
    return made


def _step(step: StepBuilder, starts: set[str], ends: set[str]) -> None:
    if isinstance(step.operation, Quantize):
        _quantize(step, starts)
    elif isinstance(step.operation, Dequantize):
        _dequantize(step, ends)
    elif isinstance(step.operation, FloatNodes):
        raise Unsupported(
            "it computes in float", "quantize it, or cut the model there and compute it apart"
        )
    elif type(step.operation) in REALIZERS:
        REALIZERS[type(step.operation)](step)
    else:
        kind = type(step.operation).__name__
        raise Unsupported(f"{kind} has no form in integer operations", "leave it out")


def _quantize(step: StepBuilder, starts: set[str]) -> None:
    if step.tensor(0).name not in starts:
        raise Unsupported(f"{step.tensor(0).name!r} is float", "quantize what makes it")
    encoding = step.encoding(step.output)
    step.set_result(quantize(step.builder, step.read(0), encoding, step.arithmetic))


def _dequantize(step: StepBuilder, ends: set[str]) -> None:
    if step.output.name not in ends:
        raise Unsupported(f"{step.output.name!r} is float", "quantize what reads it")
    step.set_result(dequantize(step.builder, step.read(0), step.encoding(step.tensor(0))))


def _assume(step: Step, builder: IntegerBuilder, tensors: Tensors) -> None:
    """Give results to a step that was refused, so that those behind it are looked at too."""
    for tensor in step.outputs:
        value = _input(builder.names.fresh(tensor.name), tensor)
        tensors.held[tensor.name] = ArrangedValue(value, plain(len(tensor.shape)))


def integer_program(plan: QuantizedGraph, *, float_ends: bool = False) -> Program:
    """Return the steps of a plan that integers alone compute.

    Args:
        plan: A calibrated plan; not changed.
        float_ends: Keep the quantize at inputs and the dequantize at outputs.

    Raises:
        ExportError: Nodes compute in float, or ends cannot be integers; all are listed.
        PlanError: See `lower`.
    """
    program = signed(lower(plan))
    if any(isinstance(step.operation, FloatNodes) for step in program.steps):
        decisions = plan.decisions.items()
        realize(program, {name: each.reason for name, each in decisions if not each.quantized})
    if float_ends:
        return program
    try:
        return integer_io(program)
    except ExportError:
        realize(program)  # which tells of every step that computes otherwise than with integers
        raise
