"""Moves transposes through a program until they meet and cancel.

Lowering puts a transpose before and behind every spatial operation. This pass does not run a
transpose where it stands: its result becomes a *view* of the stored tensor. An operation that works
in any order of axes runs on the stored tensor, with its own axes renumbered, and its result is a
view too. Where an operation needs its operand in the model's order, the view is stored after all.
Between two spatial operations the views compose to the identity, so the inside of a convolutional
network has no transposes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from intact.graph import facts
from intact.graph.names import Names
from intact.program.float_operations import Flatten
from intact.program.forms import moved_last, permute
from intact.program.operations import (
    BatchMatMul,
    Dequantize,
    FloatNodes,
    FullyConnected,
    Lookup,
    Reshape,
    TopK,
    Transpose,
)
from intact.program.passes.reordering import Order, flattened_columns, inverse, reorder
from intact.program.program import Program, Step, Tensor

_OTHER_AXES = (BatchMatMul, Flatten, FullyConnected, Lookup, Reshape, TopK, Transpose)
"""Operations whose result has axes of another meaning than what they read."""


class IoLayout(enum.StrEnum):
    """How a program takes its inputs and gives its outputs."""

    MODEL = "model"
    """The order of the float model."""
    CHANNELS_LAST = "channels_last"
    """Images with their channels last: inputs that spatial operations read, and outputs that are
    made of what they give, with nothing between but operators that keep the axes.
    """


@dataclass(frozen=True)
class View:
    """A tensor that is a transpose of a stored one: its axis ``k`` is axis ``order[k]`` there."""

    stored: Tensor
    order: Order

    @property
    def is_plain(self) -> bool:
        """Whether nothing is moved."""
        return self.order == tuple(range(len(self.order)))


def cancel_transposes(program: Program, layout: IoLayout = IoLayout.MODEL) -> Program:
    """Return an equal program with as few transposes as moving them through gets.

    Tensors are named after the values that they stand for.
    """
    mover = _Mover(program)
    inputs = {name: mover.input(tensor, layout) for name, tensor in program.inputs.items()}
    for step in program.steps:
        mover.add(step)
    outputs = {name: mover.output(tensor, layout) for name, tensor in program.outputs.items()}
    moved = replace(program, inputs=inputs, outputs=outputs, steps=tuple(mover.steps))
    return name_after_values(moved, mover.outputs)


class _Mover:
    """The program so far, and what is stored in another order than it was asked for."""

    def __init__(self, program: Program) -> None:
        self.steps: list[Step] = []
        self._views: dict[str, View] = {}
        self.outputs: dict[str, Tensor] = {}
        """Stored tensors that are outputs made by a transpose: as these outputs, by their names."""
        self._plain: dict[tuple[str, Order], Tensor] = {}
        self._moved: dict[tuple[str, Order], Tensor] = {}
        self._columns: dict[str, np.ndarray] = {}
        self._images = _images(program)
        self._kept = {tensor.name for tensor in program.outputs.values()}
        self._ends = self._kept | {tensor.name for tensor in program.inputs.values()}
        self._readers: dict[str, list[Step]] = {}
        self._names = Names(tensor.name for tensor in program.tensors())
        self._step_names = Names(step.name for step in program.steps)
        for step in program.steps:
            self._arithmetic = step.arithmetic  # a transpose computes nothing: any will do
            for tensor in step.activations:
                self._readers.setdefault(tensor.name, []).append(step)

    def input(self, tensor: Tensor, layout: IoLayout) -> Tensor:
        """Return an input as it is taken."""
        order = moved_last(len(tensor.shape)) if len(tensor.shape) > 2 else ()
        if layout is IoLayout.MODEL or not self._is_moved(tensor, order):
            return tensor
        stored = permute(tensor, order)
        self._views[tensor.name] = View(stored, inverse(order))
        return stored

    def _is_moved(self, tensor: Tensor, order: Order) -> bool:
        """Tell whether a spatial operation reads a tensor, or what is made of it in any order."""
        waiting, seen = [tensor], {tensor.name}
        while waiting:
            for step in self._readers.get(waiting.pop().name, ()):
                operation = step.operation
                if isinstance(operation, Transpose) and operation.permutation == order:
                    return True
                for result in step.outputs if _keeps_axes(step) else ():
                    if len(result.shape) == len(order) and result.name not in seen:
                        seen.add(result.name)
                        waiting.append(result)
        return False

    def output(self, tensor: Tensor, layout: IoLayout) -> Tensor:
        """Return an output as it is given."""
        view = self._view(tensor)
        if layout is IoLayout.CHANNELS_LAST and tensor.name in self._images:
            last = moved_last(len(view.order))
            view = View(view.stored, tuple(view.order[axis] for axis in last))
            tensor = permute(tensor, last)
        stored = view.stored if view.is_plain else self._store_moved(view)
        if stored.value == tensor.value:
            return stored
        known = self.outputs.get(stored.name)
        if stored.name in self._ends or (known is not None and known.value != tensor.value):
            # It is an end of the program as another value: this one needs a tensor of its own.
            stored = self._transpose(stored, tuple(range(len(stored.shape))))
        self.outputs[stored.name] = tensor
        return stored

    def _store_moved(self, view: View) -> Tensor:
        """Store a view; of floats that are codes just dequantized, move the codes instead."""
        key = (view.stored.name, view.order)
        if key in self._moved:
            return self._moved[key]
        for step in self.steps:
            if isinstance(step.operation, Dequantize) and step.outputs[0] is view.stored:
                # A quarter of the bytes to move, and the transpose may cancel with one in front of
                # the codes.
                codes = self._transpose(step.activations[0], view.order)
                name = self._names.fresh(f"{codes.name}_float")
                moved = replace(permute(view.stored, view.order), name=name)
                name = self._step_names.fresh(f"{step.name}_moved")
                self.steps.append(replace(step, name=name, inputs=(codes,), outputs=(moved,)))
                self._moved[key] = moved
                return moved
        return self._transpose(view.stored, view.order)

    def add(self, step: Step) -> None:
        """Add a step, or remember it where it is a transpose."""
        operation = step.operation
        if isinstance(operation, Transpose):
            view = self._view(step.activations[0]) if step.activations else None
            if view is not None:
                order = tuple(view.order[axis] for axis in operation.permutation)
                self._views[step.outputs[0].name] = View(view.stored, order)
                return
        if isinstance(operation, FullyConnected):
            step = self._shuffle_columns(step)
        if isinstance(operation, Reshape) and self._reshape(step, operation):
            return
        if not self._add_moved(step):
            inputs = [None if each is None else self._store(each) for each in step.inputs]
            self.steps.append(replace(step, inputs=tuple(inputs)))

    def _add_moved(self, step: Step) -> bool:
        """Run a step on what is stored, if it can be; tell whether it was."""
        views = [self._view(tensor) for tensor in step.activations]
        order = next((view.order for view in views if not view.is_plain), None)
        if order is None:
            return False
        moved = reorder(step, order)
        if moved is None:
            return False
        inputs: list[Tensor | None] = []
        for old, new in zip(step.inputs, moved.inputs, strict=True):
            if old is None or old.is_constant:
                inputs.append(new)
            else:
                inputs.append(self._store_ordered(old, order))
        self.steps.append(replace(moved.step, inputs=tuple(inputs), outputs=moved.outputs))
        for old, stored in zip(step.outputs, moved.outputs, strict=True):
            self._views[old.name] = View(stored, moved.order)
        return True

    def _view(self, tensor: Tensor) -> View:
        plain = View(tensor, tuple(range(len(tensor.shape))))
        return self._views.get(tensor.name, plain)

    def _store_ordered(self, tensor: Tensor, order: Order) -> Tensor:
        """Return a stored tensor of which the view ``order`` is the given one."""
        view = self._view(tensor)
        if view.order == order:
            return view.stored
        back = inverse(order)
        return self._transpose(view.stored, tuple(view.order[axis] for axis in back))

    def _store(self, tensor: Tensor) -> Tensor:
        if tensor.is_constant:
            return tensor
        view = self._view(tensor)
        return view.stored if view.is_plain else self._transpose(view.stored, view.order)

    def _transpose(self, stored: Tensor, order: Order) -> Tensor:
        key = (stored.name, order)
        if key not in self._plain:
            letters = "_".join(str(axis) for axis in order)
            name = self._names.fresh(f"{stored.name}_{letters}")
            result = replace(permute(stored, order), name=name)
            name = self._step_names.fresh(name)
            step = Step(name, Transpose(order), (stored,), (result,), self._arithmetic)
            self.steps.append(step)
            self._plain[key] = result
        return self._plain[key]

    def _reshape(self, step: Step, operation: Reshape) -> bool:
        """Reshape the stored tensor, where its readers then compute the same."""
        view = self._view(step.activations[0]) if step.activations else None
        if view is None or view.is_plain:
            return False
        result = step.outputs[0]
        if _keeps_order(view):
            self.steps.append(replace(step, inputs=(view.stored,)))
            return True
        columns = flattened_columns(view.stored.shape, view.order, operation.shape)
        if columns is None or not self._only_feeds_products(result):
            return False
        shuffled = replace(result, value="", end=None)
        self._columns[result.name] = columns
        self._views[result.name] = View(shuffled, (0, 1))
        self.steps.append(replace(step, inputs=(view.stored,), outputs=(shuffled,)))
        return True

    def _only_feeds_products(self, tensor: Tensor) -> bool:
        readers = self._readers.get(tensor.name, [])
        return tensor.name not in self._kept and all(
            isinstance(step.operation, FullyConnected) for step in readers
        )

    def _shuffle_columns(self, step: Step) -> Step:
        """Return a product whose weights are in the order of its shuffled input."""
        data, weight, *rest = step.inputs
        columns = None if data is None else self._columns.get(data.name)
        if columns is None or weight is None or weight.data is None:
            return step
        shuffled = np.empty_like(weight.data)
        # The weight moves with the data: a constant costs nothing while the model runs.
        shuffled[:, columns] = weight.data
        return replace(step, inputs=(data, replace(weight, data=shuffled), *rest))


def _keeps_axes(step: Step) -> bool:
    """Tell whether axes of a step's results mean what those of its operands do."""
    operation = step.operation
    if isinstance(operation, FloatNodes):
        return all(node.domain == "" and not facts(node).moves_axes for node in operation.nodes)
    return not isinstance(operation, _OTHER_AXES)


def _images(program: Program) -> frozenset[str]:
    """Return the tensors that spatial operations give, and what is made of them in their axes."""
    found: set[str] = set()
    for step in program.steps:
        operation = step.operation
        if isinstance(operation, Transpose) and not step.nodes:
            rank = len(operation.permutation)
            if rank > 2 and operation.permutation == inverse(moved_last(rank)):
                found.add(step.outputs[0].name)
        elif _keeps_axes(step):
            ranks = {len(tensor.shape) for tensor in step.activations if tensor.name in found}
            found |= {tensor.name for tensor in step.outputs if len(tensor.shape) in ranks}
    return frozenset(found)


def _keeps_order(view: View) -> bool:
    """Tell whether only axes of length 1 are moved, so that the elements lie in the same order."""
    long = [axis for axis in view.order if view.stored.shape[axis] != 1]
    return long == sorted(long)


def name_after_values(program: Program, standing: Mapping[str, Tensor]) -> Program:
    """Return the program with the first tensor of each value called as that value is.

    Others of it are called ``NAME_quantized`` or ``NAME_float``, with a number where those are
    taken too.

    Args:
        program: The program.
        standing: By names of its tensors, tensors whose value these stand for instead of theirs.
    """
    taken: set[str] = set()
    renamed: dict[str, Tensor] = {}
    for tensor in program.tensors():
        own = standing.get(tensor.name, tensor)
        value = replace(tensor, value=own.value, permutation=own.permutation, end=own.end)
        name = next(each for each in _candidates(value) if each not in taken)
        taken.add(name)
        renamed[tensor.name] = replace(value, name=name)
    steps = tuple(
        replace(
            step,
            inputs=tuple(None if t is None else renamed[t.name] for t in step.inputs),
            outputs=tuple(renamed[t.name] for t in step.outputs),
        )
        for step in program.steps
    )
    outputs = {name: renamed.get(t.name, t) for name, t in program.outputs.items()}
    inputs = {name: renamed[t.name] for name, t in program.inputs.items()}
    return replace(program, inputs=inputs, outputs=outputs, steps=steps)


def _candidates(tensor: Tensor) -> Iterator[str]:
    base = tensor.value or tensor.name
    yield base
    base = f"{base}_{'float' if tensor.encoding is None else 'quantized'}"
    yield base
    count = 2
    while True:
        yield f"{base}_{count}"
        count += 1
