"""Gives values of one sample an axis in front, where theirs is no batch.

Where a model takes one sample, exporters drop its axis, join it with the heads of attentions, or
move it behind the tokens. What runs there reads and gives values whose first axis is not the
sample's; a blob holds all of their axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from intact.formats.ncnn.model import shape_in_model
from intact.program import Program, Step, Tensor
from intact.program.float_operations import (
    BatchNormalization,
    CumulativeSum,
    Flatten,
    Identity,
    LayerNormalization,
)
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Concat,
    Dequantize,
    Elementwise,
    Expand,
    FullyConnected,
    Function,
    Gather,
    Operation,
    Pad,
    Quantize,
    Reduce,
    Requantize,
    Reshape,
    Slice,
    Softmax,
    Split,
    Tile,
    Transpose,
)

_Behind: TypeAlias = Callable[[Any], Operation]


def _same(operation: Operation) -> Operation:
    return operation


def _axis(operation: Any) -> Operation:
    moved: Operation = replace(operation, axis=operation.axis + 1)
    return moved


_BEHIND: Mapping[type, _Behind] = {
    **dict.fromkeys((Dequantize, Flatten, FullyConnected, Function, Identity, Quantize), _same),
    **dict.fromkeys((Requantize, Reshape), _same),
    **dict.fromkeys((BatchMatMul, Elementwise), _same),
    **dict.fromkeys((Concat, CumulativeSum, Gather, LayerNormalization, Softmax, Split), _axis),
    Expand: lambda op: Expand((-1, *op.shape)),
    Pad: lambda op: replace(op, pads=((0, 0), *op.pads)),
    Reduce: lambda op: replace(op, axes=tuple(axis + 1 for axis in op.axes)),
    Slice: lambda op: Slice((None, *op.starts), (None, *op.stops), (1, *op.steps)),
    Tile: lambda op: Tile((1, *op.repeats)),
    Transpose: lambda op: Transpose((0, *(axis + 1 for axis in op.permutation))),
}
"""What operations are on data with one more axis in front."""
_BROADCASTING = (BatchMatMul, Elementwise)


def with_fronts(program: Program) -> Program:
    """Return a program in which values of one sample have that in front, where they can.

    Args:
        program: As `lower_nodes` makes it; one with open batches stays as it is.
    """
    if not all(tensor.shape[:1] == (1,) for tensor in program.inputs.values()):
        return program
    fronts = _Fronts()
    for step in program.steps:
        fronts.add(step)
    return program.with_steps(tuple(fronts.steps))


def is_without_sample(tensor: Tensor) -> bool:
    """Tell whether the first axis of an activation is not that of one sample."""
    return not tensor.is_constant and (shape_in_model(tensor) or (1,))[0] not in (None, 1)


class _Fronts:
    """Adds steps; those of values without the sample in front read and give them with it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._known: dict[str, Tensor] = {}
        self._made: dict[str, Tensor] = {}
        """Other forms of values, by their names: each is one blob, whoever reads it."""

    def add(self, step: Step) -> None:
        if isinstance(step.operation, Reshape | Flatten):
            for tensor in filter(_can_have_front, step.outputs):
                self._known[tensor.name] = _in_front(tensor)
            self.steps.append(self._renamed(step))
        elif isinstance(step.operation, _BROADCASTING):
            self._add_broadcasting(step)
        elif any(map(is_without_sample, (*step.activations, *step.outputs))):
            if isinstance(step.operation, BatchNormalization):
                for part in _as_product(step, step.operation):
                    self._add_broadcasting(part)
            else:
                self._add_with(step, 1)
        else:
            self.steps.append(step)

    def _add_broadcasting(self, step: Step) -> None:
        """Give operands of fewer axes those of the others too, and a sample in front."""
        ranks = [len(tensor.shape) for tensor in (*filter(None, step.inputs), *step.outputs)]
        most = max(ranks)
        shifts = any(
            is_without_sample(tensor) and len(tensor.shape) == most
            for tensor in (*step.activations, *step.outputs)
        )
        operands = {len(tensor.shape) for tensor in step.activations}
        if shifts or operands != {most}:
            self._add_with(step, int(shifts), most)
        else:
            self.steps.append(step)

    def _add_with(self, step: Step, count: int, rank: int | None = None) -> None:
        """Add a step on data with so many axes more in front."""
        behind = _BEHIND.get(type(step.operation))
        if behind is None or not all(map(_is_plain, (*step.activations, *step.outputs))):
            self.steps.append(step)  # the writer names it
            return
        inputs = []
        for tensor in step.inputs:
            if tensor is None or (tensor.is_constant and not isinstance(step.operation, Concat)):
                inputs.append(tensor)
                continue
            more = count if rank is None else rank + count - len(tensor.shape)
            inputs.append(self._read(step, tensor, more))
        outputs, back = [], []
        for tensor in step.outputs:
            fronted = _in_front(tensor, count) if count else tensor
            if is_without_sample(tensor):
                self._known[tensor.name] = fronted
            elif count:
                fronted = _named(fronted, count)
                self._made[fronted.name] = fronted
                back.append(_reshaped(step, fronted, tensor))
            outputs.append(fronted)
        operation = behind(step.operation) if count else step.operation
        made = replace(step, operation=operation, inputs=tuple(inputs), outputs=tuple(outputs))
        self.steps += [made, *back]

    def _read(self, step: Step, tensor: Tensor, count: int) -> Tensor:
        """Return an operand with so many axes more, which a step may have to add."""
        known = self._known.get(tensor.name, tensor)
        result = _in_front(tensor, count)
        if result.shape == known.shape:
            return known
        if tensor.data is not None:
            return replace(result, data=tensor.data.reshape(_sizes(result)))
        result = _named(result, count)
        if result.name not in self._made:
            self._made[result.name] = result
            self.steps.append(_reshaped(step, known, result))
        return self._made[result.name]

    def _renamed(self, step: Step) -> Step:
        def known(tensor: Tensor) -> Tensor:
            return self._known.get(tensor.name, tensor)

        inputs = tuple(tensor and known(tensor) for tensor in step.inputs)
        return replace(step, inputs=inputs, outputs=tuple(map(known, step.outputs)))


def _as_product(step: Step, operation: BatchNormalization) -> tuple[Step, ...]:
    """Write a normalization of channels, which are the second axis, as a product and a sum."""
    data, result = step.inputs[0], step.outputs[0]
    arrays = [None if tensor is None else tensor.data for tensor in step.inputs[1:]]
    if data is None or any(array is None for array in arrays):
        return (step,)
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + operation.epsilon)
    numbers = {Binary.MUL: factor, Binary.ADD: bias - mean * factor}
    product = _named(result, 0)
    pairs = {Binary.MUL: (data, product), Binary.ADD: (product, result)}
    steps = []
    for kind, (source, target) in pairs.items():
        array = numbers[kind].astype(np.float32).reshape(-1, *(1,) * (len(data.shape) - 2))
        name = f"{step.name}_{kind}"
        constant = Tensor(name, array.shape, data=array, value=name)
        made = replace(step, name=name, operation=Elementwise(kind), inputs=(source, constant))
        steps.append(replace(made, outputs=(target,)))
    return tuple(steps)


def _is_plain(tensor: Tensor) -> bool:
    """Tell whether a tensor holds floats, or codes of one scale, as the model has their axes."""
    is_float = tensor.plain == np.float32 and None not in tensor.shape and tensor.shape
    has_axis = tensor.encoding is not None and tensor.encoding.axis is not None
    return bool(is_float) and tensor.permutation is None and not has_axis


def _can_have_front(tensor: Tensor) -> bool:
    return is_without_sample(tensor) and _is_plain(tensor)


def _in_front(tensor: Tensor, count: int = 1) -> Tensor:
    return replace(tensor, shape=(1,) * count + tensor.shape)


def _named(tensor: Tensor, count: int) -> Tensor:
    """Return a form of a value under another name, as a blob has one shape."""
    end = f"_{count}_in_front"
    return replace(tensor, name=tensor.name + end, value=tensor.value + end)


def _reshaped(step: Step, source: Tensor, result: Tensor) -> Step:
    name = f"{step.name}_{result.name}"
    operation = Reshape(_sizes(result))
    return replace(step, name=name, operation=operation, inputs=(source,), outputs=(result,))


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(n for n in tensor.shape if n is not None)
