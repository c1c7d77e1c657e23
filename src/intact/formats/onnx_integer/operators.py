"""How each integer operation is drawn with ONNX operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.formats.onnx_integer.canvas import INT64_MAX, Canvas
from intact.program.realize import Node, Op, Value, Window

_Draw: TypeAlias = Callable[[Canvas, Node], None]


def draw(canvas: Canvas, node: Node) -> None:
    """Draw one node."""
    _TABLE[node.op](canvas, node)


def _inputs(canvas: Canvas, node: Node) -> list[ir.Value | None]:
    return [canvas.value(value) for value in node.inputs]


def _plain(kind: str) -> _Draw:
    """Return what draws an operator that takes the operands as they are."""

    def drawn(canvas: Canvas, node: Node) -> None:
        canvas.draw(kind, _inputs(canvas, node), node.output)

    return drawn


def _cast(canvas: Canvas, node: Node) -> None:
    to = ir.DataType.from_numpy(node.output.dtype)
    canvas.draw("Cast", _inputs(canvas, node), node.output, {"to": int(to)})


def _floor_div(canvas: Canvas, node: Node) -> None:
    """Draw a floored quotient: ONNX divides towards 0, which is the same from 0 on.

    A multiple of the divisor lifts what may be negative, and is taken off the quotient; where there
    is no room for that, ``floor(x / d)`` below 0 is ``trunc((x + 1) / d) - 1``.
    """
    value, divisor = node.inputs
    held, by = _inputs(canvas, node)
    result, dtype = node.output, node.output.dtype
    if value.low >= 0:
        canvas.draw("Div", [held, by], result)
        return
    if divisor.data is not None:
        steps = [-(value.low // int(each)) for each in divisor.data.reshape(-1)]
        lifts = [turns * int(each) for turns, each in zip(steps, divisor.data.flat, strict=True)]
        if value.high + max(lifts) <= np.iinfo(dtype).max:
            shape = divisor.data.shape
            lift = canvas.constant(np.reshape(lifts, shape), dtype, result.name)
            turns = canvas.constant(np.reshape(steps, shape), dtype, result.name)
            lifted = canvas.step("Add", [held, lift], result)
            quotient = canvas.step("Div", [lifted, by], result)
            canvas.draw("Sub", [quotient, turns], result)
            return
    zero = canvas.constant(0, dtype, result.name)
    below = canvas.step("Less", [held, zero], result, np.bool_)
    to = {"to": int(ir.DataType.from_numpy(dtype))}
    one = canvas.step("Cast", [below], result, attributes=to)
    quotient = canvas.step("Div", [canvas.step("Add", [held, one], result), by], result)
    canvas.draw("Sub", [quotient, one], result)


def _clip(canvas: Canvas, node: Node) -> None:
    dtype, name = node.output.dtype, node.output.name
    low, high = (canvas.constant(node.options[each], dtype, name) for each in ("low", "high"))
    (value,) = _inputs(canvas, node)
    if not _is_wide(*node.inputs):
        canvas.draw("Clip", [value, low, high], node.output)
        return
    above = canvas.step("Greater", [value, high], node.output, np.bool_)
    capped = canvas.step("Where", [above, high, value], node.output, dtype)
    below = canvas.step("Less", [capped, low], node.output, np.bool_)
    canvas.draw("Where", [below, low, capped], node.output)


def _is_wide(*values: Value) -> bool:
    """Tell whether some value leaves 32 bits.

    ONNX Runtime (1.31.1) has Clip, Min and Max of int64 compare the lower halves of two numbers as
    signed ones where the upper halves are equal, so that 2**31 is not above 127. Less and Greater
    are right.
    """
    info = np.iinfo(np.int32)
    return any(value.low < info.min or value.high > info.max for value in values)


def _extreme(operator: str, comparison: str) -> _Draw:
    """Return what draws the smaller or the larger of two."""

    def draw(canvas: Canvas, node: Node) -> None:
        first, second = _inputs(canvas, node)
        if not _is_wide(*node.inputs):
            canvas.draw(operator, [first, second], node.output)
            return
        chosen = canvas.step(comparison, [first, second], node.output, np.bool_)
        canvas.draw("Where", [chosen, first, second], node.output)

    return draw


def _is_negative(canvas: Canvas, node: Node) -> None:
    zero = canvas.constant(0, node.inputs[0].dtype, node.output.name)
    below = canvas.step("Less", [*_inputs(canvas, node), zero], node.output, np.bool_)
    canvas.draw("Cast", [below], node.output, {"to": int(ir.DataType.INT32)})


def _take(canvas: Canvas, node: Node) -> None:
    canvas.draw("Gather", _inputs(canvas, node), node.output, {"axis": node.options["axis"]})


def _with_zeros(canvas: Canvas, node: Node) -> list[ir.Value | None]:
    """Return operands and their zero points, which are left out where both are 0."""
    zeros = (node.options["zero"], node.options["weight_zero"])
    values = _inputs(canvas, node)
    if zeros == (0, 0):
        return values
    for number, operand in zip(zeros, node.inputs, strict=True):
        values.append(canvas.constant(number, operand.dtype, node.output.name))
    return values


def _convolve(canvas: Canvas, node: Node) -> None:
    window: Window = node.options["window"]
    attributes = {**_window(window), "dilations": window.dilations, "group": window.groups}
    canvas.draw("ConvInteger", _with_zeros(canvas, node), node.output, attributes)


def _window(window: Window) -> dict[str, tuple[int, ...]]:
    before, after = zip(*window.pads, strict=True)
    return {
        "kernel_shape": window.kernel,
        "strides": window.strides,
        "pads": (*before, *after),
    }


def _multiply(canvas: Canvas, node: Node) -> None:
    canvas.draw("MatMulInteger", _with_zeros(canvas, node), node.output)


def _max_pool(canvas: Canvas, node: Node) -> None:
    window = _window(node.options["window"])
    canvas.draw("MaxPool", _inputs(canvas, node), node.output, window)


def _reduction(kind: str) -> _Draw:
    def drawn(canvas: Canvas, node: Node) -> None:
        axes = canvas.constant(node.options["axes"], np.int64, node.output.name)
        keep = {"keepdims": int(node.options["keep"])}
        canvas.draw(kind, [*_inputs(canvas, node), axes], node.output, keep)

    return drawn


def _with_numbers(kind: str, option: str) -> _Draw:
    """Return what draws an operator that takes an option as a constant of int64."""

    def drawn(canvas: Canvas, node: Node) -> None:
        numbers = canvas.constant(node.options[option], np.int64, node.output.name)
        canvas.draw(kind, [*_inputs(canvas, node), numbers], node.output)

    return drawn


def _transpose(canvas: Canvas, node: Node) -> None:
    permutation = {"perm": node.options["permutation"]}
    canvas.draw("Transpose", _inputs(canvas, node), node.output, permutation)


def _slice(canvas: Canvas, node: Node) -> None:
    options = node.options
    parts = list(zip(options["starts"], options["stops"], options["steps"], strict=True))
    axes = [axis for axis, part in enumerate(parts) if part != (None, None, 1)]
    starts, stops, steps = [], [], []
    for axis in axes:
        start, stop, step = parts[axis]
        far = INT64_MAX if step > 0 else -INT64_MAX
        starts.append((0 if step > 0 else INT64_MAX) if start is None else start)
        stops.append(far if stop is None else stop)
        steps.append(step)
    numbers = [
        canvas.constant(each, np.int64, node.output.name) for each in (starts, stops, axes, steps)
    ]
    canvas.draw("Slice", [*_inputs(canvas, node), *numbers], node.output)


def _pad(canvas: Canvas, node: Node) -> None:
    before, after = zip(*node.options["pads"], strict=True)
    name, dtype = node.output.name, node.output.dtype
    pads = canvas.constant((*before, *after), np.int64, name)
    (data,) = _inputs(canvas, node)
    if dtype.itemsize != 2:
        canvas.draw(
            "Pad", [data, pads, canvas.constant(node.options["number"], dtype, name)], node.output
        )
        return
    # ONNX Runtime pads no 16-bit integers.
    wide = canvas.step("Cast", [data], node.inputs[0], np.int32, {"to": int(ir.DataType.INT32)})
    number = canvas.constant(node.options["number"], np.int32, name)
    padded = canvas.step("Pad", [wide, pads, number], node.output, np.int32)
    to = ir.DataType.from_numpy(dtype)
    canvas.draw("Cast", [padded], node.output, {"to": int(to)})


def _concat(canvas: Canvas, node: Node) -> None:
    canvas.draw("Concat", _inputs(canvas, node), node.output, {"axis": node.options["axis"]})


_TABLE: dict[Op, _Draw] = {
    Op.CAST: _cast,
    Op.ADD: _plain("Add"),
    Op.SUB: _plain("Sub"),
    Op.MUL: _plain("Mul"),
    Op.FLOOR_DIV: _floor_div,
    Op.MINIMUM: _extreme("Min", "Less"),
    Op.MAXIMUM: _extreme("Max", "Greater"),
    Op.CLIP: _clip,
    Op.IS_NEGATIVE: _is_negative,
    Op.TAKE: _take,
    Op.CONVOLVE: _convolve,
    Op.MULTIPLY: _multiply,
    Op.MAX_POOL: _max_pool,
    Op.SUM: _reduction("ReduceSum"),
    Op.LARGEST: _reduction("ReduceMax"),
    Op.SMALLEST: _reduction("ReduceMin"),
    Op.RESHAPE: _with_numbers("Reshape", "lengths"),
    Op.TRANSPOSE: _transpose,
    Op.SLICE: _slice,
    Op.PAD: _pad,
    Op.CONCAT: _concat,
    Op.EXPAND: _with_numbers("Expand", "lengths"),
    Op.TILE: _with_numbers("Tile", "repeats"),
    Op.COPY: _plain("Identity"),
    Op.DIVIDE: _plain("Div"),
    Op.ROUND: _plain("Round"),
    Op.CEIL: _plain("Ceil"),
    Op.EQUAL: _plain("Equal"),
    Op.GREATER: _plain("Greater"),
    Op.LESS: _plain("Less"),
    Op.BOTH: _plain("And"),
    Op.CHOOSE: _plain("Where"),
}
