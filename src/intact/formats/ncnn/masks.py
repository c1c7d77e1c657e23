"""Computes masks with floats: ncnn has no layers for truth values and whole numbers.

What is true is 1, what is false 0. Inputs are fed as floats likewise; only those that are looked up
in a table stay whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.graph import facts
from intact.ops import functions
from intact.program import Array, Program, Shape, Step, Tensor
from intact.program.float_operations import Identity
from intact.program.forms import broadcast
from intact.program.operations import (
    MOVING,
    Binary,
    Bounds,
    Elementwise,
    FloatNodes,
    Function,
    Lookup,
    Operation,
    Reshape,
)

_FLOAT = np.dtype(np.float32)
_Value: TypeAlias = Tensor | None


def with_masks(program: Program) -> Program:
    """Return a program in which floats stand for truth values that inputs give, or constants.

    Each input by itself: where something reads it that floats cannot stand for, it stays.
    """
    for name, tensor in program.inputs.items():
        is_whole = tensor.encoding is None and tensor.dtype.kind in "biu"
        if is_whole and not _is_looked_up(program, tensor):
            try:
                program = _Masks(program, name).program()
            except Unsupported:  # the writer names what is left
                continue
    return _Masks(program, "constants").with_choices()


def _is_looked_up(program: Program, tensor: Tensor) -> bool:
    return any(
        isinstance(step.operation, Lookup) and tensor.name in {t.name for t in step.activations}
        for step in program.steps
    )


class _Masks:
    """Makes the steps of one input anew, or of constants."""

    def __init__(self, program: Program, name: str) -> None:
        self._given = program
        self._name = name
        self._floats: dict[str, Tensor] = {}
        self._steps: list[Step] = []
        self._count = 0

    def program(self) -> Program:
        """Return the program whose input is of floats.

        Raises:
            Unsupported: A step reads what floats cannot stand for.
        """
        source = self._given.inputs[self._name]
        self._floats[source.name] = replace(source, plain=_FLOAT)
        for step in self._given.steps:
            if any(tensor.name in self._floats for tensor in step.activations):
                self._add(step)
            else:
                self._steps.append(step)
        if any(t.name in self._floats and t.plain != _FLOAT for t in self._given.outputs.values()):
            raise Unsupported("an output of whole numbers")
        inputs = {**self._given.inputs, self._name: self._floats[source.name]}
        return replace(self._given, inputs=inputs, steps=tuple(self._steps))

    def with_choices(self) -> Program:
        """Return the program with each Where written whose condition is a constant."""
        for step in self._given.steps:
            count = len(self._steps)
            try:
                if not _is_fixed_choice(step):
                    raise Unsupported("it is no choice, or an input makes it")
                self.choose(step)
            except Unsupported:
                self._steps[count:] = [step]
        return self._given.with_steps(tuple(self._steps))

    def _add(self, step: Step) -> None:
        operation = step.operation
        nodes = operation.nodes if isinstance(operation, FloatNodes) else ()
        known = facts(nodes[0]) if len(nodes) == 1 else None
        if known is not None and known.converts:
            self.cast(step)
        elif known is not None and known.numpy in _WRITTEN:
            _WRITTEN[known.numpy](self, step)
        elif isinstance(operation, MOVING) or operation == Elementwise(Binary.MUL):
            self._emit(step, operation, step.inputs, step.outputs)
        elif known is not None and known.reshapes:
            self._emit(step, _reshape_to(step.outputs[0]), step.inputs[:1], step.outputs)
        else:
            raise Unsupported("it is computed with whole numbers")

    def _emit(
        self,
        step: Step,
        operation: Operation,
        inputs: tuple[_Value, ...],
        outputs: tuple[Tensor, ...],
    ) -> None:
        """Add a step with floats as its inputs and results."""
        made = tuple(map(self._as_float, outputs))
        read = tuple(None if tensor is None else self._read(tensor) for tensor in inputs)
        self._count += 1
        name = f"{step.name}_{self._count}_of_{self._name}"
        self._steps.append(replace(step, name=name, operation=operation, inputs=read, outputs=made))

    def _as_float(self, tensor: Tensor) -> Tensor:
        if tensor.plain == _FLOAT:
            return tensor
        self._floats[tensor.name] = replace(tensor, plain=_FLOAT)
        return self._floats[tensor.name]

    def _read(self, tensor: Tensor) -> Tensor:
        if tensor.name in self._floats or tensor.plain == _FLOAT:
            return self._floats.get(tensor.name, tensor)
        if tensor.data is None:
            raise Unsupported("it is computed from other whole numbers")
        data = tensor.data.astype(np.float32)
        # A value has one type elsewhere.
        value = f"{tensor.value}_as_floats"
        return replace(
            tensor, name=f"{tensor.name}_as_floats", value=value, data=data, plain=_FLOAT
        )

    def part(self, step: Step, name: str, shape: Shape) -> Tensor:
        """Name a result on the way to that of a step."""
        result = step.outputs[0]
        end = f"_{name}"
        named = replace(result, name=result.name + end, value=result.value + end)
        return replace(named, shape=shape, plain=_FLOAT, end=None)

    def cast(self, step: Step) -> None:
        """Write a Cast: to truth values what is not 0 is 1, to others nothing changes."""
        data, result = _operand(step, 0), step.outputs[0].plain
        if result != np.bool_ or data.plain == np.bool_:
            is_narrow = result.kind in "iu" and result.itemsize < np.dtype(np.int32).itemsize
            if (data.plain.kind in "iu" and is_narrow) or data.name not in self._floats:
                raise Unsupported("it cuts numbers off")
            self._emit(step, Identity(), (data,), step.outputs)
            return
        size = self.part(step, "size", data.shape)
        self._emit(step, Function(functions.absolute), (data,), (size,))
        self._emit(step, Function(functions.clamp, bounds=Bounds(0.0, 1.0)), (size,), step.outputs)

    def negate(self, step: Step) -> None:
        """Write Not: 1 - x."""
        self._emit(step, Elementwise(Binary.SUB), (_number(1.0), _operand(step, 0)), step.outputs)

    def combine(self, kind: Binary, step: Step) -> None:
        """Write And and Or."""
        self._emit(step, Elementwise(kind), (_operand(step, 0), _operand(step, 1)), step.outputs)

    def choose(self, step: Step) -> None:
        """Write Where: c * x + (1 - c) * y, of which a 0 for x or y is left out."""
        chooses, *chosen = (_operand(step, slot) for slot in range(3))
        for tensor in chosen:
            # A condition that is constant keeps infinities out of products.
            if tensor.dtype != _FLOAT or not (chooses.is_constant or _is_finite(tensor)):
                raise Unsupported("it chooses from others than finite floats")
        left = [slot for slot in (0, 1) if not _is_zero(chosen[slot])]
        if not left:
            raise Unsupported("it chooses from zeros")
        if len(left) == 1:
            shape = broadcast(chooses.shape, chosen[left[0]].shape)
            left = left if shape == step.outputs[0].shape else [0, 1]
        terms = tuple(self._term(step, chooses, chosen[k], k, alone=len(left) == 1) for k in left)
        if len(left) > 1:
            self._emit(step, Elementwise(Binary.ADD), terms, step.outputs)

    def _term(
        self, step: Step, chooses: Tensor, tensor: Tensor, slot: int, *, alone: bool
    ) -> Tensor:
        """Write what an operand adds to a result: itself where it is chosen, 0 elsewhere."""
        shape = broadcast(chooses.shape, tensor.shape)
        result = step.outputs[0] if alone else self.part(step, ("first", "second")[slot], shape)
        factor = chooses
        if chooses.data is not None:
            places = chooses.data != bool(slot)
            if tensor.data is not None and not alone:
                return _filled(result, np.where(places, tensor.data, np.float32(0.0)))
            share = self.part(step, f"share_{slot}", chooses.shape)
            factor = _filled(share, places.astype(np.float32))
        elif slot:
            factor = self.part(step, "otherwise", chooses.shape)
            self._emit(step, Elementwise(Binary.SUB), (_number(1.0), chooses), (factor,))
        self._emit(step, Elementwise(Binary.MUL), (factor, tensor), (result,))
        return result


_WRITTEN: Mapping[str, Callable[[_Masks, Step], None]] = {
    "logical_and": lambda masks, step: masks.combine(Binary.MUL, step),
    "logical_not": _Masks.negate,
    "logical_or": lambda masks, step: masks.combine(Binary.MAXIMUM, step),
    "where": _Masks.choose,
}
"""By NumPy's name of what a node computes."""


def _operand(step: Step, slot: int) -> Tensor:
    """Return an input of the node of a step, which lists what is computed only."""
    operation = step.operation
    if not isinstance(operation, FloatNodes):
        raise Unsupported("no node computes it")
    value = operation.nodes[0].inputs[slot]
    for own, tensor in zip(operation.inputs, step.inputs, strict=True):
        if own is value and tensor is not None:
            return tensor
    constant = None if value is None else value.const_value
    if value is None or constant is None:
        raise Unsupported("an input is absent")
    array = constant.numpy()
    name = str(value.name)
    return Tensor(name, array.shape, data=array, value=name, plain=array.dtype)


def _is_fixed_choice(step: Step) -> bool:
    operation = step.operation
    nodes = operation.nodes if isinstance(operation, FloatNodes) else ()
    is_choice = len(nodes) == 1 and facts(nodes[0]).numpy == "where"
    return is_choice and any(step.activations) and _operand(step, 0).is_constant


def _is_finite(tensor: Tensor) -> bool:
    return tensor.data is None or bool(np.isfinite(tensor.data).all())


def _is_zero(tensor: Tensor) -> bool:
    return tensor.data is not None and not tensor.data.any()


def _filled(tensor: Tensor, data: Array) -> Tensor:
    return replace(tensor, shape=data.shape, data=data)


def _number(value: float) -> Tensor:
    data: Array = np.array(value, np.float32)
    return Tensor(f"number_{value}", (), data=data)


def _reshape_to(tensor: Tensor) -> Operation:
    return Reshape(tuple(-1 if length is None else length for length in tensor.shape))
