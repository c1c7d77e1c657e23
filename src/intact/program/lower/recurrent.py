"""Lowers recurrent operators in float, step by step, for runtimes without them.

Weights stay the integers that the plan stores. The products with the data of all steps are one
dense layer; every step adds the product with the state before it. States go in and come out as
tensors, so that a file has no memory of the run before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import constant_array, input_value
from intact.ops import RECURRENT, functions
from intact.ops.functions import Unary
from intact.ops.operators import GRU, LSTM, RNN, ConstantOfShape, Expand, Relu, Tile, is_a
from intact.program.forms import dequantize_constant
from intact.program.lower.attributes import constant_input
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.lowerings import UNROLLING_LOWERINGS
from intact.program.operations import (
    Binary,
    Bounds,
    Concat,
    Elementwise,
    FullyConnected,
    Function,
    Operation,
    Reshape,
    Slice,
    Split,
)
from intact.program.program import Array, Shape, Tensor
from intact.targets import Granularity

_MOST_STEPS = 1024
"""Each is about a dozen operations of the file."""

_WEIGHT, _RECURRENT, _BIAS, _LENGTHS, _HIDDEN, _CELL, _PEEPHOLES = range(1, 8)
"""Input slots of the operators (https://onnx.ai/onnx/operators/onnx__LSTM.html)."""

_GATES = {GRU.name: 3, LSTM.name: 4, RNN.name: 1}
_ACTIVATIONS = {
    GRU.name: (functions.sigmoid.name, functions.tanh.name),
    LSTM.name: (functions.sigmoid.name, functions.tanh.name, functions.tanh.name),
    RNN.name: (functions.tanh.name,),
}
"""By default, for one direction."""

_OF_RNN = {
    Relu.name: functions.clamp,
    functions.sigmoid.name: functions.sigmoid,
    functions.tanh.name: functions.tanh,
}

_State: TypeAlias = tuple[Tensor | None, Tensor | None]
"""Hidden and cell state ``[1, N, H]``; None for zeros, and where there is no cell state."""

_Advance: TypeAlias = Callable[[Tensor, _State], tuple[Tensor, Tensor | None]]
"""Computes the next state from the data's sums ``[1, N, gates * H]`` and the state."""


@UNROLLING_LOWERINGS.register(*RECURRENT)
def recurrent(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Write out the steps of GRU, LSTM and RNN."""
    unrolled = _Unrolled(builder, chain[0])
    values = dict(enumerate(chain[0].outputs))
    for slot, tensor in enumerate(unrolled.results({s for s, v in values.items() if v.name})):
        if tensor is not None:
            builder.set_result(values[slot], replace(tensor, value=str(values[slot].name)))


class _Unrolled:
    """The operations of one recurrent node.

    Raises:
        Unsupported: It has an option that is not written out, or an unknown length.
    """

    def __init__(self, builder: ProgramBuilder, node: ir.Node) -> None:
        self._builder, self._node = builder, node
        self._value = next(value for value in node.outputs if value.name)
        self._data = builder.read(node, 0)
        steps, self._batch, _ = self._data.shape
        if steps is None:
            raise Unsupported("the length of its sequence is open: fix it with --input-shape")
        if self._data.is_constant:
            raise Unsupported("its data is constant")
        if not 0 < steps <= _MOST_STEPS:
            raise Unsupported(f"its sequence has {steps} steps, written out are 1 to {_MOST_STEPS}")
        self._steps = steps
        _check(node, steps)
        self._weights = {slot: _constant(builder, node, slot) for slot in (_WEIGHT, _RECURRENT)}
        self._directions, _, self._size = _data(self._weights[_RECURRENT]).shape
        biases = constant_input(node, _BIAS)
        gates = _GATES[node.op_type]
        self._rows = gates * self._size
        shape = (self._directions, 2, gates, self._size)
        self._biases = np.zeros(shape, np.float32) if biases is None else biases.reshape(shape)

    def results(self, wanted: set[int]) -> list[Tensor | None]:
        """Add all operations; return the outputs Y, Y_h and Y_c that are wanted."""
        mode = GRU.of(self._node).direction
        runs = [self._run(k, k == 1 or mode == "reverse") for k in range(self._directions)]
        results: list[Tensor | None] = [None] * (max(wanted, default=-1) + 1)
        if 0 in wanted:
            shape = (self._steps, 1, self._batch, self._size)
            whole = [self._reshape(self._join(states, 0), shape) for states, _ in runs]
            results[0] = self._join(whole, 1)
        for slot in wanted - {0}:
            results[slot] = self._join([last[slot - 1] for _, last in runs], 0)
        return results

    def _run(self, direction: int, is_reverse: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Return the hidden states by step, and the last hidden and cell state."""
        advance, bias = _CELLS[self._node.op_type](self, direction)
        weight = self.part(_WEIGHT, direction, 0, self._rows)
        sums = self.dense(self._data, weight, bias.reshape(-1))
        state: _State = (self._initial(_HIDDEN, direction), self._initial(_CELL, direction))
        states: list[Tensor] = []
        order = self._split(sums, (1,) * self._steps, 0)
        for each in reversed(order) if is_reverse else order:
            state = advance(each, state)
            states += state[:1]
        last = [tensor for tensor in state if tensor is not None]
        return states[::-1] if is_reverse else states, last

    def _initial(self, slot: int, direction: int) -> Tensor | None:
        if input_value(self._node, slot) is None:
            return None
        state = self._builder.read(self._node, slot)
        if state.data is not None:
            part = state.data[direction : direction + 1]
            return self._inner(part.shape, part) if np.any(part) else None
        if self._directions == 1:
            return state
        rows = (direction, None, None), (direction + 1, None, None), (1, 1, 1)
        return self._add(Slice(*rows), (state,), (1, self._batch, self._size))

    # ---- what cells are made of ---------------------------------------------------------------

    @property
    def size(self) -> int:
        """The length of a state."""
        return int(self._size)

    @property
    def resets_product(self) -> bool:
        """Whether a GRU resets the product with the state, and not the state."""
        return GRU.of(self._node).linear_before_reset == 1

    def activation(self, direction: int) -> Unary:
        """Return the function of an RNN."""
        return _OF_RNN[_activations(self._node, self._directions)[direction]]

    def biases(self, direction: int) -> Array:
        """Return the biases ``[2, gates, H]`` of the products with data and with the state."""
        biases: Array = self._biases[direction]
        return biases

    def part(self, slot: int, direction: int, start: int, stop: int) -> Tensor:
        """Return rows of a weight, in the integers that it is stored as."""
        tensor = self._weights[slot]
        encoding = tensor.encoding
        if encoding is not None and encoding.axis is not None:
            # Weights are [directions, gates * H, K]: scales along axis 1 are those of rows, along
            # axis 0 one a direction.
            is_of_rows = encoding.axis == 1
            own = slice(start, stop) if is_of_rows else direction
            scale, zero_point = encoding.scale[own], encoding.zero_point[own]
            axis = 0 if is_of_rows else None
            encoding = replace(encoding, scale=scale, zero_point=zero_point, axis=axis)
        data = _data(tensor)[direction, start:stop]
        return replace(self._inner(data.shape, data), encoding=encoding)

    def dense(self, data: Tensor, weight: Tensor, bias: Array | None = None) -> Tensor:
        """Multiply by a weight ``[O, K]``, add a bias ``[O]``."""
        addend = None if bias is None or not np.any(bias) else self.constant(bias)
        rows = weight.shape[0]
        return self._add(FullyConnected(), (data, weight, addend), (*data.shape[:2], rows))

    def constant(self, data: Array) -> Tensor:
        """Return floats."""
        return self._inner(data.shape, data)

    def function(self, kind: Unary, data: Tensor) -> Tensor:
        """Compute element by element."""
        bounds = Bounds(0.0) if kind is functions.clamp else Bounds()
        return self._add(Function(kind, bounds=bounds), (data,), data.shape)

    def binary(self, kind: Binary, left: Tensor, right: Tensor) -> Tensor:
        """Compute with two operands, of which the left has the result's shape."""
        return self._add(Elementwise(kind), (left, right), left.shape)

    def gates(self, data: Tensor, *counts: int) -> list[Tensor]:
        """Split sums into gates, as many together as asked for."""
        return self._split(data, tuple(count * self._size for count in counts), 2)

    # ---- operations ---------------------------------------------------------------------------

    def _split(self, data: Tensor, sizes: tuple[int, ...], axis: int) -> list[Tensor]:
        if len(sizes) == 1:
            return [data]
        shapes = [(*data.shape[:axis], size, *data.shape[axis + 1 :]) for size in sizes]
        results = [self._inner(shape) for shape in shapes]
        self._builder.emit((self._node,), Split(axis, sizes), (data,), results)
        return results

    def _join(self, parts: list[Tensor], axis: int) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        shape = parts[0].shape
        length = sum(part.shape[axis] or 1 for part in parts)
        return self._add(Concat(axis), parts, (*shape[:axis], length, *shape[axis + 1 :]))

    def _reshape(self, data: Tensor, shape: Shape) -> Tensor:
        sizes = tuple(-1 if size is None else size for size in shape)
        return self._add(Reshape(sizes), (data,), shape)

    def _add(
        self, operation: Operation, inputs: tuple[Tensor | None, ...] | list[Tensor], shape: Shape
    ) -> Tensor:
        result = self._inner(shape)
        self._builder.emit((self._node,), operation, inputs, (result,))
        return result

    def _inner(self, shape: Shape, data: Array | None = None) -> Tensor:
        return self._builder.inner(self._value, shape, data)


def _lstm(layer: _Unrolled, direction: int) -> tuple[_Advance, Array]:
    """Gates are input, output, forget and cell."""
    weight = layer.part(_RECURRENT, direction, 0, 4 * layer.size)

    def advance(sums: Tensor, state: _State) -> tuple[Tensor, Tensor]:
        hidden, cell = state
        if hidden is not None:
            sums = layer.binary(Binary.ADD, sums, layer.dense(hidden, weight))
        opened, new = layer.gates(sums, 3, 1)
        opens = layer.gates(layer.function(functions.sigmoid, opened), 1, 1, 1)
        added = layer.binary(Binary.MUL, opens[0], layer.function(functions.tanh, new))
        if cell is not None:
            added = layer.binary(Binary.ADD, layer.binary(Binary.MUL, opens[2], cell), added)
        shown = layer.function(functions.tanh, added)
        return layer.binary(Binary.MUL, opens[1], shown), added

    return advance, layer.biases(direction).sum(axis=0)


def _gru(layer: _Unrolled, direction: int) -> tuple[_Advance, Array]:
    """Gates are update, reset and hidden; the reset comes before or behind the last product."""
    size = layer.size
    opening = layer.part(_RECURRENT, direction, 0, 2 * size)
    weight = layer.part(_RECURRENT, direction, 2 * size, 3 * size)
    bias, other = layer.biases(direction)
    resets_product = layer.resets_product
    # With linear_before_reset the hidden gate's bias of the state is inside what is reset; every
    # other bias is added to the data's sums, once.
    late = other[2] if resets_product else np.zeros_like(other[2])
    bias = bias + np.concatenate([other[:2], other[2:] - late])

    def candidate(reset: Tensor, hidden: Tensor | None) -> Tensor | None:
        if hidden is None:
            return layer.binary(Binary.MUL, reset, layer.constant(late)) if np.any(late) else None
        if resets_product:
            return layer.binary(Binary.MUL, reset, layer.dense(hidden, weight, late))
        return layer.dense(layer.binary(Binary.MUL, reset, hidden), weight)

    def advance(sums: Tensor, state: _State) -> tuple[Tensor, None]:
        hidden = state[0]
        opened, new = layer.gates(sums, 2, 1)
        if hidden is not None:
            opened = layer.binary(Binary.ADD, opened, layer.dense(hidden, opening))
        update, reset = layer.gates(layer.function(functions.sigmoid, opened), 1, 1)
        addend = candidate(reset, hidden)
        if addend is not None:
            new = layer.binary(Binary.ADD, new, addend)
        new = layer.function(functions.tanh, new)
        # new - update * (new - hidden): one product less than (1 - update) * new + update * hidden.
        kept = new if hidden is None else layer.binary(Binary.SUB, new, hidden)
        return layer.binary(Binary.SUB, new, layer.binary(Binary.MUL, update, kept)), None

    return advance, bias


def _rnn(layer: _Unrolled, direction: int) -> tuple[_Advance, Array]:
    weight = layer.part(_RECURRENT, direction, 0, layer.size)
    kind = layer.activation(direction)

    def advance(sums: Tensor, state: _State) -> tuple[Tensor, None]:
        if state[0] is not None:
            sums = layer.binary(Binary.ADD, sums, layer.dense(state[0], weight))
        return layer.function(kind, sums), None

    return advance, layer.biases(direction).sum(axis=0)


_CELLS = {GRU.name: _gru, LSTM.name: _lstm, RNN.name: _rnn}


def check_alone(node: ir.Node) -> None:
    """Check that one layer of a runtime computes a node: usual functions, states of zeros.

    Raises:
        Unsupported: It has another option.
    """
    lengths = input_value(node, _LENGTHS)
    steps = node.inputs[0].shape[0] if node.inputs[0] and node.inputs[0].shape else None
    if lengths is not None and not isinstance(steps, int):
        raise Unsupported("its sequences have lengths of their own")
    _check(node, steps if isinstance(steps, int) else 0)
    given = _activations(node, 1)
    if given != list(_ACTIVATIONS[node.op_type]) * (len(given) // len(_ACTIVATIONS[node.op_type])):
        raise Unsupported(f"its activations are {', '.join(given)}")
    if is_a(node, GRU) and not node.attributes.get_int("linear_before_reset", 0):
        raise Unsupported("it resets its state before the product")
    if not all(_is_zero(input_value(node, slot)) for slot in (_HIDDEN, _CELL)):
        raise Unsupported("its first state is given")


def _is_zero(value: ir.Value | None) -> bool:
    """Tell whether a state is left out, or zeros as many as there are samples."""
    array = constant_array(value)
    if value is None or array is not None:
        return array is None or not np.any(array)
    maker = value.producer()
    if not is_a(maker, ConstantOfShape, Expand, Tile):
        return False
    if is_a(maker, ConstantOfShape):
        number = maker.attributes.get_tensor("value", None)
        return number is None or not np.any(number.numpy())
    return constant_array(maker.inputs[0]) is not None and _is_zero(maker.inputs[0])


def _check(node: ir.Node, steps: int) -> None:
    """Check that a node has no option that is not written out.

    Raises:
        Unsupported: It has one.
    """
    if "clip" in node.attributes:
        raise Unsupported("it clips its sums")
    if LSTM.of(node).input_forget:
        raise Unsupported("it couples its gates")
    if LSTM.of(node).layout:
        raise Unsupported("its batch is the first axis")
    if input_value(node, _PEEPHOLES) is not None and np.any(constant_input(node, _PEEPHOLES)):
        raise Unsupported("it has peepholes")
    lengths = constant_input(node, _LENGTHS)
    if lengths is not None and np.any(lengths != steps):
        raise Unsupported("its sequences have lengths of their own")
    given = _activations(node, 1)
    usual = _ACTIVATIONS[node.op_type]
    is_known = all(name in _OF_RNN for name in given)
    if not is_known or (not is_a(node, RNN) and given != list(usual) * (len(given) // len(usual))):
        raise Unsupported(f"its activations are {', '.join(given)}")


def _activations(node: ir.Node, directions: int) -> list[str]:
    """Return the names of a node's functions, for all directions."""
    if "activations" in node.attributes:
        return [str(name).capitalize() for name in node.attributes["activations"].as_strings()]
    return list(_ACTIVATIONS[node.op_type]) * directions


def _constant(builder: ProgramBuilder, node: ir.Node, slot: int) -> Tensor:
    """Return a weight in the integers that it is stored as, or in floats.

    A model that others quantized may have scales that the file cannot: of columns, which are no
    rows of a dense layer, or several where the target has one.

    Raises:
        Unsupported: It is computed.
    """
    constant_input(node, slot)
    weight, target = builder.read_stored(node, slot), builder.plan.target
    if weight.encoding is None or weight.encoding.axis is None:
        return weight
    rule = target.rule_for(node)
    has_one = rule is not None and target.weight_scheme(rule).granularity is Granularity.PER_TENSOR
    is_of_columns = weight.encoding.axis == 2
    return dequantize_constant(weight) if has_one or is_of_columns else weight


def _data(tensor: Tensor) -> Array:
    if tensor.data is None:
        raise Unsupported(f"its weight {tensor.name!r} is computed")
    return tensor.data
