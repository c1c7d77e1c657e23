"""Writes a graph of integer operations as a Relax module in TVMScript, and its arrays.

The text says what is computed for one sample; the arrays are parameters of ``main`` behind its
inputs, in the order of the file (``num_input`` tells where they begin).
"""

from __future__ import annotations

import io
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import ExportError
from intact.graph.names import Names
from intact.program import Program, Tensor
from intact.program.handlers import NamedHandlers
from intact.program.realize import IntegerGraph, Node, Op, Value, Window, realize

_RESERVED = ("R", "I", "T", "Module", "main")

_STEM = re.compile(r"\W+", re.ASCII)


class ScriptBuilder:
    """A TVMScript function under construction.

    Attributes:
        lines: Text of the dataflow block.
        arrays: Parameters by their name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.arrays: dict[str, npt.NDArray[np.generic]] = {}
        self._names: dict[str, str] = {}
        # The text is parsed as Python: names of a model must not be words of it, nor of TVMScript.
        self._used = Names([*keyword.kwlist, *keyword.softkwlist, *_RESERVED])

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
            # In order of use: the arrays are positional parameters of `main`.
            self._names[name] = self._fresh(name)
            self.arrays[self._names[name]] = np.ascontiguousarray(data)
        return self._names[name]

    def let(self, value: Value, expression: str) -> None:
        """Write the line that makes a value."""
        self.lines.append(f"{self._name(value)} = {expression}")

    def _name(self, value: Value) -> str:
        self._names[value.name] = self._fresh(value.name)
        return self._names[value.name]

    def _fresh(self, name: str) -> str:
        stem = _STEM.sub("_", name).strip("_") or "value"
        return self._used.fresh(f"v_{stem}" if stem[0].isdigit() else stem)


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


_Writer: TypeAlias = Callable[[ScriptBuilder, Node], str]
"""Makes the expression of a node's result."""

_WRITERS: NamedHandlers[_Writer] = NamedHandlers("intact writes no {} as TVMScript")


def write_node(builder: ScriptBuilder, node: Node) -> None:
    """Add the line of one node."""
    builder.let(node.output, _WRITERS[node.op](builder, node))


def _call(function: str) -> _Writer:
    """Make the writer of a function that takes the operands as they are."""

    def write(builder: ScriptBuilder, node: Node) -> str:
        return f"R.{function}({', '.join(builder.use(value) for value in node.inputs)})"

    return write


@_WRITERS.register(Op.CAST)
def _cast(builder: ScriptBuilder, node: Node) -> str:
    return _typed(builder.use(node.inputs[0]), node.output.dtype)


def _typed(expression: str, dtype: object) -> str:
    return f'R.astype({expression}, "{np.dtype(dtype)}")'  # type: ignore[call-overload]


@_WRITERS.register(Op.FLOOR_DIV)
def _floor_div(builder: ScriptBuilder, node: Node) -> str:
    """Write a quotient; one by powers of two is a shift, which keeps the sign."""
    value, divisor = node.inputs
    data = divisor.data
    # A power of two has one bit, which the number below it lacks.
    if data is None or (data & (data - 1)).any():
        return f"R.floor_divide({builder.use(value)}, {builder.use(divisor)})"
    bits = np.frexp(data.astype(np.float64))[1] - 1
    shifts = np.asarray(bits, data.dtype)
    if shifts.ndim == 0:
        return f"R.right_shift({builder.use(value)}, {number_text(shifts)})"
    return f"R.right_shift({builder.use(value)}, {builder.array(shifts, f'{divisor.name}/bits')})"


@_WRITERS.register(Op.CLIP)
def _clip(builder: ScriptBuilder, node: Node) -> str:
    low, high = (
        number_text(np.asarray(node.options[each], node.output.dtype)) for each in ("low", "high")
    )
    return f"R.minimum(R.maximum({builder.use(node.inputs[0])}, {low}), {high})"


@_WRITERS.register(Op.IS_NEGATIVE)
def _is_negative(builder: ScriptBuilder, node: Node) -> str:
    zero = number_text(np.zeros((), node.inputs[0].dtype))
    return _typed(f"R.less({builder.use(node.inputs[0])}, {zero})", np.int32)


@_WRITERS.register(Op.TAKE)
def _take(builder: ScriptBuilder, node: Node) -> str:
    data, indices = (builder.use(value) for value in node.inputs)
    return _taken(data, indices, node.options["axis"])


def _taken(data: str, indices: str, axis: int) -> str:
    # The fast mode reads wherever an index points.
    return f'R.take({data}, {indices}, axis={axis}, mode="clip")'


def _factors(builder: ScriptBuilder, node: Node) -> list[str]:
    """Return the operands of a product: int8 as they are, else widened, zero points taken off."""
    zeros = (node.options["zero"], node.options["weight_zero"])
    narrow = zeros == (0, 0) and all(each.dtype == np.int8 for each in node.inputs)
    if narrow:
        return [builder.use(value) for value in node.inputs]
    return [_centred(builder, value, zero) for value, zero in zip(node.inputs, zeros, strict=True)]


def _centred(builder: ScriptBuilder, value: Value, zero: int) -> str:
    if value.data is not None:
        return builder.array(value.data.astype(np.int32) - np.int32(zero), f"{value.name}/centred")
    wide = _typed(builder.use(value), np.int32)
    return f"R.subtract({wide}, {number_text(np.asarray(zero, np.int32))})" if zero else wide


@_WRITERS.register(Op.CONVOLVE)
def _convolve(builder: ScriptBuilder, node: Node) -> str:
    window: Window = node.options["window"]
    data, weight = _factors(builder, node)
    options = f"{_places(window)}, dilation={text_of(window.dilations)}, groups={window.groups}"
    axes = len(window.kernel)
    return f'R.nn.conv{axes}d({data}, {weight}, {options}, out_dtype="int32")'


def _places(window: Window) -> str:
    before, after = zip(*window.pads, strict=True)
    return f"strides={text_of(window.strides)}, padding={text_of((*before, *after))}"


@_WRITERS.register(Op.MULTIPLY)
def _multiply(builder: ScriptBuilder, node: Node) -> str:
    return f'R.matmul({", ".join(_factors(builder, node))}, out_dtype="int32")'


@_WRITERS.register(Op.MAX_POOL)
def _max_pool(builder: ScriptBuilder, node: Node) -> str:
    window: Window = node.options["window"]
    options = f"pool_size={text_of(window.kernel)}, {_places(window)}"
    return f"R.nn.max_pool{len(window.kernel)}d({builder.use(node.inputs[0])}, {options})"


def _reduction(function: str) -> _Writer:
    def write(builder: ScriptBuilder, node: Node) -> str:
        axes, keep = text_of(node.options["axes"]), bool(node.options["keep"])
        return f"R.{function}({builder.use(node.inputs[0])}, axis={axes}, keepdims={keep})"

    return write


def _shaped(function: str) -> _Writer:
    """Make the writer of a function that is given the result's shape."""

    def write(builder: ScriptBuilder, node: Node) -> str:
        lengths = text_of([int(length or 1) for length in node.output.shape])
        return f"R.{function}({builder.use(node.inputs[0])}, R.shape({lengths}))"

    return write


@_WRITERS.register(Op.TRANSPOSE)
def _transpose(builder: ScriptBuilder, node: Node) -> str:
    axes = text_of(node.options["permutation"])
    return f"R.permute_dims({builder.use(node.inputs[0])}, axes={axes})"


@_WRITERS.register(Op.SLICE)
def _slice(builder: ScriptBuilder, node: Node) -> str:
    """Write a slice; an axis that is read backwards is taken element by element."""
    expression = builder.use(node.inputs[0])
    parts = zip(*(node.options[each] for each in ("starts", "stops", "steps")), strict=True)
    ahead: dict[int, range] = {}
    for axis, (part, length) in enumerate(zip(parts, node.inputs[0].shape, strict=True)):
        if part == (None, None, 1):
            continue
        places = range(*slice(*part).indices(int(length or 1)))
        if places.step > 0:
            ahead[axis] = places
            continue
        # `strided_slice` walks forward only.
        indices = np.asarray(places, np.int64)
        name = builder.array(indices, f"{node.output.name}/places_{axis}")
        expression = _taken(expression, name, axis)
    if not ahead:
        return expression
    axes, steps = text_of(list(ahead)), text_of([each.step for each in ahead.values()])
    begins = text_of([each.start for each in ahead.values()])
    ends = text_of([each.stop for each in ahead.values()])
    return (
        f"R.strided_slice({expression}, axes={axes}, begin={begins}, end={ends}, strides={steps})"
    )


@_WRITERS.register(Op.PAD)
def _pad(builder: ScriptBuilder, node: Node) -> str:
    pads = text_of([number for pair in node.options["pads"] for number in pair])
    number = int(node.options["number"])
    return f"R.nn.pad({builder.use(node.inputs[0])}, {pads}, pad_value={number})"


@_WRITERS.register(Op.CONCAT)
def _concat(builder: ScriptBuilder, node: Node) -> str:
    parts = ", ".join(builder.use(value) for value in node.inputs)
    return f"R.concat(({parts},), axis={node.options['axis']})"


@_WRITERS.register(Op.TILE)
def _tile(builder: ScriptBuilder, node: Node) -> str:
    return f"R.tile({builder.use(node.inputs[0])}, {text_of(node.options['repeats'])})"


@_WRITERS.register(Op.COPY)
def _copy(builder: ScriptBuilder, node: Node) -> str:
    return builder.use(node.inputs[0])


_CALLS = {
    Op.ADD: "add",
    Op.SUB: "subtract",
    Op.MUL: "multiply",
    Op.MINIMUM: "minimum",
    Op.MAXIMUM: "maximum",
    Op.DIVIDE: "divide",
    Op.ROUND: "round",
    Op.CEIL: "ceil",
    Op.EQUAL: "equal",
    Op.GREATER: "greater",
    Op.LESS: "less",
    Op.BOTH: "logical_and",
    Op.CHOOSE: "where",
}
"""Functions that take the operands as they are."""

for _op, _function in _CALLS.items():
    _WRITERS.register(_op)(_call(_function))
_WRITERS.register(Op.SUM)(_reduction("sum"))
_WRITERS.register(Op.LARGEST)(_reduction("max"))
_WRITERS.register(Op.SMALLEST)(_reduction("min"))
_WRITERS.register(Op.RESHAPE)(_shaped("reshape"))
_WRITERS.register(Op.EXPAND)(_shaped("broadcast_to"))


_HEAD = """\
# from tvm.script import ir as I
# from tvm.script import relax as R

@I.ir_module
class Module:
    @R.function
"""


@dataclass(frozen=True, eq=False)
class TvmModule:
    """What was written.

    Attributes:
        text: TVMScript.
        arrays: Parameters of ``main`` behind the inputs, in order.
        inputs: The model's names of what ``main`` takes first.
        outputs: The model's names of what it gives, then of values that are shown.
    """

    text: str
    arrays: dict[str, npt.NDArray[np.generic]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def archive(self) -> bytes:
        """Return the arrays as an .npz, the same bytes each time."""
        stream = io.BytesIO()
        # NumPy writes no time of day into it.
        np.savez(stream, **self.arrays)  # type: ignore[arg-type]
        return stream.getvalue()


def write_tvm(program: Program) -> TvmModule:
    """Return a program as a Relax module for one sample.

    Args:
        program: Floats stand at its ends alone, or nowhere.

    Raises:
        ExportError: Lengths other than the batch's are open, or some steps cannot be written with
            integers; all of them are listed.
    """
    return relax_module(realize(of_one_sample(program)))


def of_one_sample(program: Program) -> Program:
    """Return a program whose inputs have one sample: the length 1 along the open first axis.

    Raises:
        ExportError: Other lengths are open, which a module has to know; all inputs are listed.
    """
    listed = [
        f"input {name!r}: its lengths along axes {axes} are open"
        for name, tensor in program.inputs.items()
        if (axes := [axis for axis, n in enumerate(tensor.shape) if axis and n is None])
    ]
    if listed:
        raise ExportError(
            f"a TVM module is of known lengths: {'; '.join(listed)}",
            remedy="fix all axes of the model's inputs but the first",
            listed=listed,
        )
    return replace(
        program, inputs={name: _single(tensor) for name, tensor in program.inputs.items()}
    )


def _single(tensor: Tensor) -> Tensor:
    return replace(tensor, shape=tuple(1 if n is None else n for n in tensor.shape))


def relax_module(graph: IntegerGraph, shown: Sequence[str] = ()) -> TvmModule:
    """Return a graph as a Relax module.

    Args:
        graph: What is written; its shapes are known.
        shown: Values that are given too, behind the outputs.
    """
    builder = ScriptBuilder()
    parameters = [builder.input(value) for value in graph.inputs]
    for node in graph.nodes:
        write_node(builder, node)
    parameters += [
        f"{name}: {tensor_text(array.shape, array.dtype)}" for name, array in builder.arrays.items()
    ]
    made = {node.output.name: node.output for node in graph.nodes}
    results = [builder.use(made[name]) for name in (*(v.name for v in graph.outputs), *shown)]
    # A value may be given under several names, but leaves the block once.
    block = [*builder.lines, f"R.output({', '.join(dict.fromkeys(results))})"]
    body = [
        "    def main(",
        *(f"        {parameter}," for parameter in parameters),
        "    ):",
        f'        R.func_attr({{"num_input": {len(graph.inputs)}}})',
        "        with R.dataflow():",
        *(f"            {line}" for line in block),
        f"        return ({', '.join(results)},)",
        "",
    ]
    names = (*(value.name for value in graph.outputs), *shown)
    inputs = tuple(value.name for value in graph.inputs)
    return TvmModule(_HEAD + "\n".join(body), dict(builder.arrays), inputs, names)
