"""From a program to a graph of integer operations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from intact.program.operations import Dequantize, FloatNodes, Quantize
from intact.program.program import Program, Step, Tensor
from intact.program.realize import (
    moving,
    pointwise,
    products,
    resizing,
    softmax,
    spatial,
    transposed,
)
from intact.program.realize.draft import Draft
from intact.program.realize.ends import dequantized, quantized
from intact.program.realize.graph import IntegerGraph, Place, Value
from intact.program.realize.part import Held, Part, Realize, Tensors, plain
from intact.program.realize.refusal import Faults, Refusal, follows_from_floats

_TABLE: dict[type, Realize] = {
    **moving.TABLE,
    **pointwise.TABLE,
    **products.TABLE,
    **resizing.TABLE,
    **softmax.TABLE,
    **spatial.TABLE,
    **transposed.TABLE,
}


def realize(program: Program, reasons: Mapping[str, str] | None = None) -> IntegerGraph:
    """Return a program as a graph of integer operations; it is not changed.

    Floats may stand at the ends alone: an input that is quantised, an output that is dequantised.

    Args:
        program: With codes of any type; its inputs and outputs are the graph's, with axes as they
            are stored.
        reasons: Why nodes compute in float, by their names, beside what the program says.

    Raises:
        ExportError: Some steps cannot be; all of them are listed, each with a remedy.
    """
    draft, tensors = Draft(), Tensors()
    faults = Faults({**(reasons or {}), **program.in_float})
    names = {name: draft.unique(name) for name in (*program.inputs, *program.outputs)}
    inputs = tuple(_input(names[name], tensor) for name, tensor in program.inputs.items())
    for value, tensor in zip(inputs, program.inputs.values(), strict=True):
        tensors.held[tensor.name] = Held(value, plain(len(value.shape)))
    ends = {tensor.name for tensor in program.outputs.values()}
    starts = {tensor.name for tensor in program.inputs.values()}
    for step in program.steps:
        draft.stem = step.name
        try:
            _step(Part(step, draft, tensors), starts, ends)
        except Refusal as refusal:
            if not follows_from_floats(program, step):
                faults.add_step(step, refusal)
            _assume(step, draft, tensors)
    if faults:
        raise faults.error()
    outputs = tuple(
        _output(name, tensor, draft, tensors) for name, tensor in program.outputs.items()
    )
    shown = tuple(
        (tensor, Place(held.value.name, held.order))
        for tensor in (tensor for step in program.steps for tensor in step.outputs)
        if (held := tensors.held[tensor.name]).value.data is None
    )
    return IntegerGraph(inputs, outputs, tuple(draft.nodes), shown)


def _input(name: str, tensor: Tensor) -> Value:
    if tensor.dtype.kind in "iu":
        info = np.iinfo(tensor.dtype)
        return Value(name, tensor.dtype, tensor.shape, int(info.min), int(info.max))
    return Value(name, tensor.dtype, tensor.shape, 0, 0)


def _output(name: str, tensor: Tensor, draft: Draft, tensors: Tensors) -> Value:
    """Return an output, which has a name of its own whatever else holds it."""
    draft.stem = name
    if tensor.data is not None:
        value = draft.constant(tensor.data)
    else:
        value = tensors.turned(draft, tensor.name, plain(len(tensors.held[tensor.name].order)))
    made = Value(name, value.dtype, value.shape, value.low, value.high)
    draft.copy(value, made)
    return made


def _step(part: Part, starts: set[str], ends: set[str]) -> None:
    step = part.step
    if isinstance(step.operation, Quantize):
        _quantize(part, starts)
    elif isinstance(step.operation, Dequantize):
        _dequantize(part, ends)
    elif isinstance(step.operation, FloatNodes):
        raise Refusal(
            "it computes in float", "quantise it, or cut the model there and compute it apart"
        )
    elif type(step.operation) in _TABLE:
        _TABLE[type(step.operation)](part)
    else:
        kind = type(step.operation).__name__
        raise Refusal(f"{kind} is not taken apart into integer operations", "leave it out")


def _quantize(part: Part, starts: set[str]) -> None:
    if part.tensor(0).name not in starts:
        raise Refusal(f"{part.tensor(0).name!r} is float", "quantise what makes it")
    encoding = part.encoding(part.output)
    part.give(quantized(part.draft, part.read(0), encoding, part.step.arithmetic))


def _dequantize(part: Part, ends: set[str]) -> None:
    if part.output.name not in ends:
        raise Refusal(f"{part.output.name!r} is float", "quantise what reads it")
    part.give(dequantized(part.draft, part.read(0), part.encoding(part.tensor(0))))


def _assume(step: Step, draft: Draft, tensors: Tensors) -> None:
    """Give results to a step that was refused, so that those behind it are looked at too."""
    for tensor in step.outputs:
        value = _input(draft.unique(tensor.name), tensor)
        tensors.held[tensor.name] = Held(value, plain(len(tensor.shape)))
