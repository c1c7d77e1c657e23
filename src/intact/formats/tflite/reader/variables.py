"""Turns TFLite's resource variables, which keep state between runs, into inputs and outputs.

A graph has no such memory here. What READ_VARIABLE gives becomes an input, what ASSIGN_VARIABLE is
given an output, and the constants of the subgraph that CALL_ONCE runs are the first values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from intact.errors import ModelError
from intact.formats.base.foreign import clip_text
from intact.formats.tflite.reader.file import (
    FileTensor,
    Operator,
    Quantization,
    Signature,
    State,
    Subgraph,
    TfliteFile,
)

_ONCE, _HANDLE, _READ, _ASSIGN = "CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"
_KINDS = frozenset({_ONCE, _HANDLE, _READ, _ASSIGN})
_NEXT = "next"
"""Last part of the name of an output that is a state for the next run."""
_SHAPE = {_ONCE: (0, 0), _HANDLE: (0, 1), _READ: (1, 1), _ASSIGN: (2, 0)}
"""How many tensors they read and write."""


def has_variables(operators: tuple[Operator, ...]) -> bool:
    """Tell whether some operator has to do with resource variables."""
    return any(op.name in _KINDS for op in operators)


def without_variables(file: TfliteFile, others: Mapping[int, Subgraph]) -> TfliteFile:
    """Return a file whose variables are inputs and outputs.

    Args:
        file: Its main graph.
        others: The subgraphs that its CALL_ONCE run, by number.

    Raises:
        ModelError: Variables are used in a way that is not read.
    """
    walk = _Walk(file)
    for op in file.operators:
        if op.name == _ONCE:
            # All first values before the walk, wherever in the graph they are called for.
            walk.initialize(others[int(op.options["init_subgraph_index"])], op)
    for op in file.operators:
        walk.step(op)
    return walk.result()


@dataclass
class _Walk:
    """Follows what each variable holds, operator by operator.

    Attributes:
        file: What is walked.
        first: First values by the name of the variable.
        handles: Names of variables by the tensor that stands for them.
        before: The tensor that first held a variable's value in this run.
        held: The tensor that holds it now.
        same: Tensors that are another one, as a variable's value was read again.
        operators: Those that are left.
    """

    file: TfliteFile
    first: dict[str, FileTensor] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)

    def initialize(self, part: Subgraph, once: Operator) -> None:
        """Take the first values that a subgraph assigns."""
        handles: dict[int, str] = {}
        for op in part.operators:
            self._check(op)
            if op.name == _HANDLE:
                handles[op.outputs[0]] = _name(op)
            elif op.name == _ASSIGN and op.inputs[0] in handles:
                value = part.tensors[op.inputs[1]]
                if value.data is None or value.odd:
                    raise self._error(once, "what it assigns is no constant")
                self.first[handles[op.inputs[0]]] = value
            else:
                raise self._error(once, f"its subgraph has {clip_text(op.name)}")

    def step(self, op: Operator) -> None:
        """Follow one operator of the main graph."""
        self._check(op)
        if op.name == _ONCE:
            return
        if op.name == _HANDLE:
            self.handles[op.outputs[0]] = _name(op)
            return
        if op.name not in _KINDS:
            if any(index in self.handles for index in op.inputs):
                raise self._error(op, "it reads a variable, which only READ_VARIABLE does here")
            if op.turn is not None:
                raise self._error(op, "loops are not read beside variables")
            inputs = tuple(self.same.get(index, index) for index in op.inputs)
            self.operators.append(replace(op, inputs=inputs))
            return
        name = self.handles.get(op.inputs[0])
        if name is None:
            raise self._error(op, "its variable has no VAR_HANDLE before it")
        if op.name == _ASSIGN:
            self.held[name] = self.same.get(op.inputs[1], op.inputs[1])
        # What was assigned before in this run is what is read; only the first read is a state.
        elif name in self.held:
            self._needs_alike(op, op.outputs[0], self.file.tensors[self.held[name]])
            self.same[op.outputs[0]] = self.held[name]
        else:
            self.before[name] = self.held[name] = op.outputs[0]

    def result(self) -> TfliteFile:
        """Return the file with its states as inputs and outputs; those never read again are none.

        A variable that keeps its first value is a constant.
        """
        file, tensors, states = self.file, list(self.file.tensors), []
        for name, before in self.before.items():
            first, after = self.first.get(name), self.held[name]
            if first is None:
                raise ModelError(
                    f"{file.source}: variable {clip_text(repr(name))} has no first value"
                )
            self._needs_alike(None, before, first)
            if after == before:
                # Read and never assigned, it is what it was before the first run.
                tensors[before] = replace(tensors[before], data=first.data)
                continue
            self._needs_alike(None, before, tensors[after])
            states.append(State(name, f"{name}/{_NEXT}", before, after, first))
        outputs = tuple(self.same.get(index, index) for index in file.outputs)
        signed = file.signature
        signature = Signature(
            {**signed.inputs, **{state.name: state.before for state in states}},
            {
                **{name: self.same.get(index, index) for name, index in signed.outputs.items()},
                **{state.next_name: state.after for state in states},
            },
        )
        return replace(
            file,
            tensors=tuple(tensors),
            operators=tuple(self.operators),
            inputs=(*file.inputs, *(state.before for state in states)),
            outputs=(*outputs, *(state.after for state in states)),
            signature=signature,
            states=tuple(states),
            same=dict(self.same),
        )

    def _check(self, op: Operator) -> None:
        counts = _SHAPE.get(op.name)
        found = len(op.inputs), len(op.outputs)
        if counts is not None and (found != counts or -1 in op.inputs):
            raise self._error(op, f"it has {found[0]} inputs and {found[1]} outputs")

    def _needs_alike(self, op: Operator | None, index: int, value: FileTensor) -> None:
        """Check that the codes of a value mean the same in the tensor that a variable is read as.

        The runtime copies bytes, whatever the scales are.
        """
        tensor = self.file.tensors[index]
        alike = tensor.element is value.element and tensor.shape == value.shape
        if not (alike and _equal(tensor.quantization, value.quantization)):
            reason = f"tensor {tensor.name!r} and {value.name!r} have other shapes or scales"
            raise self._error(op, f"values of one variable, {reason}")

    def _error(self, op: Operator | None, reason: str) -> ModelError:
        where = "" if op is None else f"{op.name} ({op.index}): "
        return ModelError(
            f"{self.file.source}: {where}{clip_text(reason)}",
            remedy="convert the model with its states as inputs and outputs",
        )


def _name(op: Operator) -> str:
    parts = (op.options["container"], op.options["shared_name"])
    return "/".join(str(part) for part in parts if part) or f"state_{op.index}"


def _equal(first: Quantization | None, second: Quantization | None) -> bool:
    if first is None or second is None:
        return first is second
    return (
        np.array_equal(first.scale, second.scale)
        and np.array_equal(first.zero_point, second.zero_point)
        and (first.axis, first.is_custom) == (second.axis, second.is_custom)
    )
