"""Writes LSTM, GRU and RNN as ncnn layers.

ONNX has their samples on the second axis, and ncnn on none.

What brings the samples in front of the steps, and back, is left out: ncnn's blobs hold one sample,
``[T, I]`` and ``[T, directions * H]``.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import replace

import numpy as np

from intact.errors import Unsupported
from intact.formats.ncnn.builder import WRITERS, NcnnBuilder, floats, input_of, name_of
from intact.formats.ncnn.model import Parameter, known_lengths
from intact.program import Array, Program, Step, Tensor
from intact.program.float_operations import Recurrent
from intact.program.operations import Reshape, Transpose

_DIRECTIONS = {"forward": 0, "reverse": 1, "bidirectional": 2}
_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 2, 1, 3), "RNN": (0,)}
"""ONNX's gates in ncnn's order: reset, update, new; input, forget, output, cell."""
_STATES = {"GRU": 1, "LSTM": 2, "RNN": 1}
_ANY_LENGTH = 3
"""Stands for a number of steps that is not known."""


def with_samples(program: Program) -> Program:
    """Let recurrent steps read and give samples, where nothing else sees the other axes.

    Args:
        program: As `lower_nodes` makes it; not changed.
    """
    makers = {tensor.name: step for step in program.steps for tensor in step.outputs}
    readers: dict[str, list[Step]] = defaultdict(list)
    for step in program.steps:
        for tensor in step.activations:
            readers[tensor.name].append(step)
    kept = {tensor.name for tensor in program.outputs.values()}
    new: dict[str, Step] = {}
    gone: set[str] = set()
    for step in program.steps:
        if isinstance(step.operation, Recurrent):
            turned: dict[str, Step] = {}
            whole = _as_sample(step, step.operation, makers, readers, kept, turned)
            if whole is not None:
                new |= turned
                new[step.name], moves = whole
                gone |= moves
    # Moves are left out only where a step was found whole: half of them gone would be another
    # model.
    steps = tuple(new.get(step.name, step) for step in program.steps if step.name not in gone)
    return replace(program, steps=_without_unread(steps, kept))


def _without_unread(steps: tuple[Step, ...], kept: set[str]) -> tuple[Step, ...]:
    """Leave out transposes that nothing reads any more."""
    read = {tensor.name for step in steps for tensor in step.activations} | kept
    return tuple(
        step
        for step in steps
        if not isinstance(step.operation, Transpose) or step.outputs[0].name in read
    )


def _as_sample(
    step: Step,
    operation: Recurrent,
    makers: dict[str, Step],
    readers: dict[str, list[Step]],
    kept: set[str],
    new: dict[str, Step],
) -> tuple[Step, set[str]] | None:
    """Return the step on samples and the names of the moves behind it; None where it has others."""
    data = input_of(step)
    turned = makers.get(data.name)
    if turned is None or not isinstance(turned.operation, Transpose):
        return None
    order, source = turned.operation.permutation, turned.inputs[0]
    turns = order == (2, 0, 1)
    if source is None or not (turns or order == (1, 0, 2)):
        return None
    if turns:  # what turns a sample as well stays, and leaves the samples in front
        # Another reader wants the samples where they were.
        if len(readers[data.name]) != 1 or data.name in kept:
            return None
        source = replace(data, shape=(data.shape[1], data.shape[0], data.shape[2]))
        new[turned.name] = replace(turned, operation=Transpose((0, 2, 1)), outputs=(source,))
    outputs, gone, read = [], set[str](), []
    for slot, tensor in enumerate(step.outputs):
        is_read = bool(readers[tensor.name]) or tensor.name in kept
        read.append(is_read)
        found = _behind(tensor, slot, readers, kept) if is_read else (tensor, set[str]())
        if found is None:
            return None
        outputs.append(found[0])
        gone |= found[1]
    whole = replace(operation, is_sample=True, read=tuple(read))
    inputs = (source, *step.inputs[1:])
    return replace(step, operation=whole, inputs=inputs, outputs=tuple(outputs)), gone


def _behind(
    tensor: Tensor, slot: int, readers: dict[str, list[Step]], kept: set[str]
) -> tuple[Tensor, set[str]] | None:
    """Return what an output becomes with samples in front, and the moves that make it so.

    It is found by moving the places of one sample.
    """
    if len(tensor.shape) != (3 if slot else 4):
        return None
    *others, samples, size = tensor.shape
    # Any number that is not 1 shows an order; 1 would hide a swap of axes.
    lengths = [_ANY_LENGTH if n is None else n for n in others]
    count = int(np.prod([*lengths, size or 0]))
    places: Array = np.arange(count).reshape(*lengths, 1, size or 0)
    gone: set[str] = set()
    while not (gone and tensor.shape[0] == samples and _keeps(places, count)):
        if tensor.name in kept or len(readers[tensor.name]) != 1:
            return None
        (reader,) = readers[tensor.name]
        match reader.operation:
            case Transpose(permutation=order):
                places = places.transpose(order)
            case Reshape() if None not in reader.outputs[0].shape[1:]:
                places = places.reshape([1 if n is None else n for n in reader.outputs[0].shape])
            case Reshape(shape=shape):
                places = places.reshape([1 if n == samples else n for n in shape])
            case _:
                return None
        gone.add(reader.name)
        tensor = reader.outputs[0]
    return tensor, gone


def _keeps(places: Array, count: int) -> bool:
    return bool(np.array_equal(places.reshape(-1), np.arange(count)))


@WRITERS.register(Recurrent)
def _recurrent(operation: Recurrent, step: Step, builder: NcnnBuilder) -> None:
    """Write ``LSTM``, ``GRU`` or ``RNN``."""
    if not operation.is_sample:
        raise Unsupported("its samples lie on the second axis, and no Transpose brings them there")
    weight, recurrent = (input_of(step, slot).data for slot in (1, 2))
    bias = None if step.inputs[3] is None else input_of(step, 3).data
    if weight is None or recurrent is None or (step.inputs[3] is not None and bias is None):
        raise Unsupported("its weights are computed")
    kind, gates = operation.kind, list(_GATES[operation.kind])
    count, _, size = recurrent.shape

    def ordered(array: Array) -> Array:
        return array.reshape(count, len(gates), size, -1)[:, gates]

    biases = np.zeros((count, 2, len(gates), size), np.float32)
    if bias is not None:
        biases = bias.reshape(biases.shape)[:, :, gates]
    # ONNX has a bias for each of the two products, ncnn one for their sum.
    sums = biases.sum(axis=1)
    if kind == "GRU":  # that of the recurrent product is reset with it
        sums = np.concatenate([sums[:, :2], biases[:, 0, 2:], biases[:, 1, 2:]], axis=1)
    tag = struct.pack("<I", 0)
    arrays = ordered(weight), sums, ordered(recurrent)
    data = b"".join(tag + floats(each) for each in arrays)
    parameters: dict[int, Parameter] = {0: size, 1: weight.size}
    parameters[2] = _DIRECTIONS[operation.direction]
    wanted = step.outputs if any(operation.read[1:]) else step.outputs[:1]
    # A layer of ncnn gives all its states or none.
    states = 1 + _STATES[kind] if any(operation.read[1:]) else 1
    tops = [builder.inner(step.outputs[min(k, len(wanted) - 1)]) for k in range(states)]
    builder.emit(kind, name_of(step), [builder.read(step)], tops, parameters, data)
    for slot, (tensor, top) in enumerate(zip(wanted, tops, strict=False)):
        if operation.read[slot]:
            shape = tuple(-1 if n is None else n for n in known_lengths(tensor))
            builder.reshape(f"{name_of(step)}_{slot}", top, builder.blob(tensor), shape)
