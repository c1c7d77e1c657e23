"""How each integer operation is said with Relax operators."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.program.realize import Node, Op, Value, Window

_TAKEN = ("R", "I", "T", "Module", "main")

_STEM = re.compile(r"\W+", re.ASCII)


class Script:
    """Lines so far, and what the graph's values are called in them.

    Attributes:
        lines: Of the dataflow block.
        arrays: Parameters by their name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.arrays: dict[str, npt.NDArray[np.generic]] = {}
        self._names: dict[str, str] = {}
        self._taken = {*keyword.kwlist, *keyword.softkwlist, *_TAKEN}

    def input(self, value: Value) -> str:
        """Return the declaration of an input."""
        return f"{self._name(value)}: {tensor_text(value.shape, value.dtype)}"

    def use(self, value: Value) -> str:
        """Return an expression for a value: its name, or a number."""
        if value.data is None:
            return self._names[value.name]
        if value.data.ndim == 0:
            return number_text(value.data)
        return self.array(value.data, value.name)

    def array(self, data: npt.NDArray[np.generic], name: str) -> str:
        """Return the name of a parameter that holds an array; one for each name."""
        if name not in self._names:
            self._names[name] = self._unique(name)
            self.arrays[self._names[name]] = np.ascontiguousarray(data)
        return self._names[name]

    def let(self, value: Value, expression: str) -> None:
        """Write the line that makes a value."""
        self.lines.append(f"{self._name(value)} = {expression}")

    def _name(self, value: Value) -> str:
        self._names[value.name] = self._unique(value.name)
        return self._names[value.name]

    def _unique(self, name: str) -> str:
        stem = _STEM.sub("_", name).strip("_") or "value"
        stem = f"v_{stem}" if stem[0].isdigit() else stem
        found, number = stem, 2
        while found in self._taken:
            found, number = f"{stem}_{number}", number + 1
        self._taken.add(found)
        return found


def tensor_text(shape: tuple[int | None, ...], dtype: npt.DTypeLike) -> str:
    """Return the type of a tensor.

    >>> tensor_text((1, 3), np.int8)
    'R.Tensor((1, 3), "int8")'
    """
    lengths = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    return f'R.Tensor(({lengths}), "{np.dtype(dtype)}")'


def number_text(array: npt.NDArray[np.generic]) -> str:
    """Return a number in its type; a float32 reads back to the bit.

    >>> number_text(np.asarray(-3, np.int64))
    'R.const(-3, "int64")'
    """
    return f'R.const({array.item()!r}, "{array.dtype}")'


def text_of(numbers: tuple[int, ...] | list[int]) -> str:
    """Return a list of integers."""
    return f"[{', '.join(str(int(number)) for number in numbers)}]"


_Say: TypeAlias = Callable[[Script, Node], str]

"""Returns the expression that makes a node's result."""


def say(script: Script, node: Node) -> None:
    """Write the line of one node."""
    script.let(node.output, _TABLE[node.op](script, node))


def _call(function: str) -> _Say:
    """Return what says an operator that takes the operands as they are."""

    def said(script: Script, node: Node) -> str:
        return f"R.{function}({', '.join(script.use(value) for value in node.inputs)})"

    return said


def _cast(script: Script, node: Node) -> str:
    return _typed(script.use(node.inputs[0]), node.output.dtype)


def _typed(expression: str, dtype: object) -> str:
    return f'R.astype({expression}, "{np.dtype(dtype)}")'  # type: ignore[call-overload]


def _floor_div(script: Script, node: Node) -> str:
    """Say a quotient; one by powers of two is a shift, which keeps the sign."""
    value, divisor = node.inputs
    data = divisor.data
    if data is None or (data & (data - 1)).any():
        return f"R.floor_divide({script.use(value)}, {script.use(divisor)})"
    bits = np.frexp(data.astype(np.float64))[1] - 1
    shifts = np.asarray(bits, data.dtype)
    if shifts.ndim == 0:
        return f"R.right_shift({script.use(value)}, {number_text(shifts)})"
    return f"R.right_shift({script.use(value)}, {script.array(shifts, f'{divisor.name}/bits')})"


def _clip(script: Script, node: Node) -> str:
    low, high = (
        number_text(np.asarray(node.options[each], node.output.dtype)) for each in ("low", "high")
    )
    return f"R.minimum(R.maximum({script.use(node.inputs[0])}, {low}), {high})"


def _is_negative(script: Script, node: Node) -> str:
    zero = number_text(np.zeros((), node.inputs[0].dtype))
    return _typed(f"R.less({script.use(node.inputs[0])}, {zero})", np.int32)


def _take(script: Script, node: Node) -> str:
    data, indices = (script.use(value) for value in node.inputs)
    return _taken(data, indices, node.options["axis"])


def _taken(data: str, indices: str, axis: int) -> str:
    # The fast mode reads wherever an index points.
    return f'R.take({data}, {indices}, axis={axis}, mode="clip")'


def _factors(script: Script, node: Node) -> list[str]:
    """Return the operands of a product: int8 as they are, else widened, zero points taken off."""
    zeros = (node.options["zero"], node.options["weight_zero"])
    narrow = zeros == (0, 0) and all(each.dtype == np.int8 for each in node.inputs)
    if narrow:
        return [script.use(value) for value in node.inputs]
    return [_centred(script, value, zero) for value, zero in zip(node.inputs, zeros, strict=True)]


def _centred(script: Script, value: Value, zero: int) -> str:
    if value.data is not None:
        return script.array(value.data.astype(np.int32) - np.int32(zero), f"{value.name}/centred")
    wide = _typed(script.use(value), np.int32)
    return f"R.subtract({wide}, {number_text(np.asarray(zero, np.int32))})" if zero else wide


def _convolve(script: Script, node: Node) -> str:
    window: Window = node.options["window"]
    data, weight = _factors(script, node)
    options = f"{_places(window)}, dilation={text_of(window.dilations)}, groups={window.groups}"
    axes = len(window.kernel)
    return f'R.nn.conv{axes}d({data}, {weight}, {options}, out_dtype="int32")'


def _places(window: Window) -> str:
    before, after = zip(*window.pads, strict=True)
    return f"strides={text_of(window.strides)}, padding={text_of((*before, *after))}"


def _multiply(script: Script, node: Node) -> str:
    return f'R.matmul({", ".join(_factors(script, node))}, out_dtype="int32")'


def _max_pool(script: Script, node: Node) -> str:
    window: Window = node.options["window"]
    options = f"pool_size={text_of(window.kernel)}, {_places(window)}"
    return f"R.nn.max_pool{len(window.kernel)}d({script.use(node.inputs[0])}, {options})"


def _reduction(function: str) -> _Say:
    def said(script: Script, node: Node) -> str:
        axes, keep = text_of(node.options["axes"]), bool(node.options["keep"])
        return f"R.{function}({script.use(node.inputs[0])}, axis={axes}, keepdims={keep})"

    return said


def _shaped(function: str) -> _Say:
    """Return what says an operator whose result has a shape that is told."""

    def said(script: Script, node: Node) -> str:
        lengths = text_of([int(length or 1) for length in node.output.shape])
        return f"R.{function}({script.use(node.inputs[0])}, R.shape({lengths}))"

    return said


def _transpose(script: Script, node: Node) -> str:
    axes = text_of(node.options["permutation"])
    return f"R.permute_dims({script.use(node.inputs[0])}, axes={axes})"


def _slice(script: Script, node: Node) -> str:
    """Say a slice; an axis that is read backwards is taken element by element."""
    expression = script.use(node.inputs[0])
    parts = zip(*(node.options[each] for each in ("starts", "stops", "steps")), strict=True)
    ahead: dict[int, range] = {}
    for axis, (part, length) in enumerate(zip(parts, node.inputs[0].shape, strict=True)):
        if part == (None, None, 1):
            continue
        places = range(*slice(*part).indices(int(length or 1)))
        if places.step > 0:
            ahead[axis] = places
            continue
        indices = np.asarray(places, np.int64)
        name = script.array(indices, f"{node.output.name}/places_{axis}")
        expression = _taken(expression, name, axis)
    if not ahead:
        return expression
    axes, steps = text_of(list(ahead)), text_of([each.step for each in ahead.values()])
    begins = text_of([each.start for each in ahead.values()])
    ends = text_of([each.stop for each in ahead.values()])
    return (
        f"R.strided_slice({expression}, axes={axes}, begin={begins}, end={ends}, strides={steps})"
    )


def _pad(script: Script, node: Node) -> str:
    pads = text_of([number for pair in node.options["pads"] for number in pair])
    number = int(node.options["number"])
    return f"R.nn.pad({script.use(node.inputs[0])}, {pads}, pad_value={number})"


def _concat(script: Script, node: Node) -> str:
    parts = ", ".join(script.use(value) for value in node.inputs)
    return f"R.concat(({parts},), axis={node.options['axis']})"


def _tile(script: Script, node: Node) -> str:
    return f"R.tile({script.use(node.inputs[0])}, {text_of(node.options['repeats'])})"


def _copy(script: Script, node: Node) -> str:
    return script.use(node.inputs[0])


_TABLE: dict[Op, _Say] = {
    Op.CAST: _cast,
    Op.ADD: _call("add"),
    Op.SUB: _call("subtract"),
    Op.MUL: _call("multiply"),
    Op.FLOOR_DIV: _floor_div,
    Op.MINIMUM: _call("minimum"),
    Op.MAXIMUM: _call("maximum"),
    Op.CLIP: _clip,
    Op.IS_NEGATIVE: _is_negative,
    Op.TAKE: _take,
    Op.CONVOLVE: _convolve,
    Op.MULTIPLY: _multiply,
    Op.MAX_POOL: _max_pool,
    Op.SUM: _reduction("sum"),
    Op.LARGEST: _reduction("max"),
    Op.SMALLEST: _reduction("min"),
    Op.RESHAPE: _shaped("reshape"),
    Op.TRANSPOSE: _transpose,
    Op.SLICE: _slice,
    Op.PAD: _pad,
    Op.CONCAT: _concat,
    Op.EXPAND: _shaped("broadcast_to"),
    Op.TILE: _tile,
    Op.COPY: _copy,
    Op.DIVIDE: _call("divide"),
    Op.ROUND: _call("round"),
    Op.CEIL: _call("ceil"),
    Op.EQUAL: _call("equal"),
    Op.GREATER: _call("greater"),
    Op.LESS: _call("less"),
    Op.BOTH: _call("logical_and"),
    Op.CHOOSE: _call("where"),
}
