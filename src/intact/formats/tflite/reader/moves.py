"""Reads TFLite's operators that give their input another shape or order."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import axis_in, refuse_mixed_batch, slot
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.common import (
    EMBEDDING,
    READERS,
    cast,
    optional_slot,
    require_same_scale,
    require_shape,
)
from intact.formats.tflite.reader.file import Operator, parameters_of
from intact.formats.tflite.reader.tensors import (
    ChannelLayout,
    Input,
    Operand,
    arranged,
    channels_first,
)

_MOST_GATHERED = 1 << 16
"""Elements of an axis that is mirrored."""


@READERS.register("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshape(builder: ModelBuilder, op: Operator) -> None:
    """Read RESHAPE, SQUEEZE and EXPAND_DIMS: the shape is the output's.

    Where batch and channels stay what they are, it is a reshape with the channels first too.
    """
    index, output = slot(op.inputs, 0), builder.tensor(op.outputs[0])
    data = builder.tensor(index)
    if data.size != output.size:
        raise Unsupported(f"{list(data.shape)} does not become {list(output.shape)}")
    require_same_scale(builder, index, op.outputs[0])
    activation = builder.activation(index)
    if activation is None:
        refuse_mixed_batch(builder, True)
        value = builder.reshaped(builder.operand(index), output.shape).value
        builder.write(op.outputs[0], value)
        return
    if not activation.values:  # no long chain is left to be made at once
        builder.operand(index, next(iter(activation.sources)))
    sources: dict[ChannelLayout, Callable[[], ir.Value]] = {}
    shape, first = output.shape, arranged(output.shape, ChannelLayout.FIRST)
    keeps_channels = min(data.rank, output.rank) > 2 and (
        (data.shape[0], data.shape[-1]) == (shape[0], shape[-1])
    )
    # Channels that stay last in the file stay second here, and rows between are joined alike in
    # both.
    if keeps_channels and activation.has(ChannelLayout.FIRST):
        sources[ChannelLayout.FIRST] = lambda: (
            builder.reshaped(builder.operand(index, ChannelLayout.FIRST), first).value
        )
    if activation.has(ChannelLayout.FILE) or not sources:
        sources[ChannelLayout.FILE] = lambda: (
            builder.reshaped(builder.in_file_order(index), shape).value
        )
        if output.rank > 2 and all(length == 1 for length in shape[1:-1]):
            sources[ChannelLayout.FIRST] = lambda: (
                builder.reshaped(builder.in_file_order(index), first).value
            )
    builder.offer(op.outputs[0], sources)


@READERS.register("TRANSPOSE")
def transpose(builder: ModelBuilder, op: Operator) -> None:
    """Read TRANSPOSE; one that only says where the channels lie is none in this graph."""
    index, output = slot(op.inputs, 0), op.outputs[0]
    shape, permutation = builder.tensor(index).shape, builder.list_of(slot(op.inputs, 1))
    if sorted(permutation) != list(range(len(shape))):
        raise Unsupported(f"its permutation is {list(permutation)}")
    require_shape(builder, output, [shape[axis] for axis in permutation])
    require_same_scale(builder, index, output)
    permutation = _batch_in_front(permutation, shape) if builder.batch else permutation
    refuse_mixed_batch(builder, permutation[:1] != (0,))
    rank = len(shape)
    given, kept = builder.parameters(index), builder.parameters(output)
    activation = builder.activation(index)
    may_share = given is None or given.equals(kept)
    # An output of the graph needs a value of its own.
    may_share &= activation is not None and rank > 2 and not builder.is_output(output)
    layouts = (
        [ChannelLayout.FILE]
        if activation is None
        else [each for each in ChannelLayout if each in activation.values]
    )
    # In whichever layouts it adds nothing, a Transpose is only another name.
    for source in layouts or [ChannelLayout.FILE]:
        for target in ChannelLayout:
            order = _composed(permutation, source, target)
            if order == tuple(range(rank)) and may_share:
                builder.write(output, builder.operand(index, source).value, target)
                return
    source = (layouts or [ChannelLayout.FILE])[0]
    order = _composed(permutation, source, ChannelLayout.FILE)
    operand = builder.operand(index, source)
    builder.write(output, builder.node("Transpose", [operand], {"perm": order}))


def _batch_in_front(permutation: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a permutation that moves no data before the batch, if one does the same.

    Among axes of one element any order is the same, and the first of them is taken for the batch.
    """
    ahead = permutation[: permutation.index(0)] if 0 in permutation else ()
    if not all(shape[axis] == 1 for axis in ahead):
        return permutation
    return (0, *(axis for axis in permutation if axis != 0))


def _composed(
    permutation: tuple[int, ...], source: ChannelLayout, target: ChannelLayout
) -> tuple[int, ...]:
    """Return the permutation from a layout of the input to one of the output."""
    rank = len(permutation)
    order = channels_first(rank) if source is ChannelLayout.FIRST else tuple(range(rank))
    return tuple(order.index(axis) for axis in arranged(permutation, target))


@READERS.register("GATHER")
def gather(builder: ModelBuilder, op: Operator) -> None:
    """Read GATHER, by stored indices or by those that the caller feeds."""
    index, chosen = slot(op.inputs, 0), slot(op.inputs, 1)
    shape, indices = builder.tensor(index).shape, builder.tensor(chosen)
    axis = axis_in(int(op.options["axis"]), len(shape))
    if op.options["batch_dims"]:
        _gather_in_rows(builder, op, axis)
        return
    refuse_mixed_batch(builder, axis == 0 and not builder.is_constant(index))
    refuse_mixed_batch(builder, builder.is_constant(index) and builder.is_constant(chosen))
    require_shape(builder, op.outputs[0], (*shape[:axis], *indices.shape, *shape[axis + 1 :]))
    require_same_scale(builder, index, op.outputs[0])
    _require_inside(builder, chosen, shape[axis])
    # Indices that are fed have a batch too, which would meet that of the data.
    refuse_mixed_batch(builder, axis != 0 and not builder.is_constant(chosen))
    value = builder.node(
        "Gather", [builder.operand(index), builder.operand(chosen)], {"axis": axis}
    )
    builder.write(op.outputs[0], value)


def _gather_in_rows(builder: ModelBuilder, op: Operator, axis: int) -> None:
    """Read a GATHER whose samples, or rows along the last axis, have indices of their own."""
    index, chosen = slot(op.inputs, 0), slot(op.inputs, 1)
    shape, indices = builder.tensor(index).shape, builder.tensor(chosen).shape
    if op.options["batch_dims"] != axis or indices[:axis] != shape[:axis]:
        raise Unsupported("it gathers along another axis than the first behind those it shares")
    require_shape(builder, op.outputs[0], (*indices, *shape[axis + 1 :]))
    require_same_scale(builder, index, op.outputs[0])
    _require_inside(builder, chosen, shape[axis])
    refuse_mixed_batch(builder, builder.is_constant(index) or builder.is_constant(chosen))
    data, places = builder.operand(index), builder.operand(chosen)
    if axis == len(shape) - 1 == len(indices) - 1:
        value = builder.node("GatherElements", [data, places], {"axis": axis})
    else:
        wide = Operand(cast(builder, places, ir.DataType.INT64), indices)
        rows = builder.reshaped(wide, (*indices, 1))
        rows.value.type = ir.TensorType(ir.DataType.INT64)
        value = builder.node("GatherND", [data, rows], {"batch_dims": axis})
    builder.write(op.outputs[0], value)


def _require_inside(builder: ModelBuilder, chosen: int, length: int) -> None:
    """Check stored indices: a negative one counts from the end in ONNX, and is none in TFLite."""
    if builder.is_constant(chosen):
        numbers = builder.array(chosen)
        builder.charge(numbers.size)
        if numbers.dtype.kind != "i" or ((numbers < 0) | (numbers >= length)).any():
            raise Unsupported("an index lies outside its axis")


@READERS.register(EMBEDDING)
def embedding(builder: ModelBuilder, op: Operator) -> None:
    """Read EMBEDDING_LOOKUP: rows of a stored table; codes may become floats on the way."""
    chosen, index = slot(op.inputs, 0), slot(op.inputs, 1)
    indices, table = builder.tensor(chosen), builder.tensor(index)
    if indices.rank != 1 or not table.rank or not builder.is_constant(index):
        raise Unsupported("its indices are no list, or its table is computed")
    require_shape(builder, op.outputs[0], (*indices.shape, *table.shape[1:]))
    parameters = parameters_of(table)
    if parameters is None or builder.parameters(op.outputs[0]) is not None:
        require_same_scale(builder, index, op.outputs[0])
    elif parameters.zero_point.any() or parameters.axis not in (None, 0):
        raise Unsupported("its table has zero points, or scales along another axis than the rows")
    _require_inside(builder, chosen, table.shape[0])
    refuse_mixed_batch(builder, builder.is_constant(chosen))
    rows = builder.rearranged(index, ("table",), lambda array: array, parameters)
    value = builder.node("Gather", [rows, builder.operand(chosen)], {"axis": 0})
    builder.write(op.outputs[0], value)


@READERS.register("TILE")
def tile(builder: ModelBuilder, op: Operator) -> None:
    """Read TILE."""
    index, repeats = slot(op.inputs, 0), builder.list_of(slot(op.inputs, 1))
    shape = builder.tensor(index).shape
    if len(repeats) != len(shape) or min(repeats, default=1) < 1:
        raise Unsupported(f"its repeats are {list(repeats)}")
    require_shape(builder, op.outputs[0], [n * k for n, k in zip(shape, repeats, strict=True)])
    require_same_scale(builder, index, op.outputs[0])
    refuse_mixed_batch(builder, repeats[:1] != (1,))
    layout = builder.layout_of(index)
    counts = builder.integers(*arranged(repeats, layout))
    builder.write(
        op.outputs[0], builder.node("Tile", [builder.operand(index, layout), counts]), layout
    )


@READERS.register("BROADCAST_TO")
def broadcast_to(builder: ModelBuilder, op: Operator) -> None:
    """Read BROADCAST_TO: the shape is the output's."""
    index, output = slot(op.inputs, 0), builder.tensor(op.outputs[0])
    shape = builder.tensor(index).shape
    ahead = (1,) * (output.rank - len(shape))
    if len(shape) > output.rank or any(
        length not in (1, wanted)
        for length, wanted in zip((*ahead, *shape), output.shape, strict=True)
    ):
        raise Unsupported(f"{list(shape)} does not broadcast to {list(output.shape)}")
    require_same_scale(builder, index, op.outputs[0])
    refuse_mixed_batch(builder, bool(ahead) or builder.is_constant(index))
    # Axes that are added in front would move the channels to another place.
    layout = ChannelLayout.FILE if ahead else builder.layout_of(index)
    lengths = builder.integers(*arranged(output.shape, layout))
    inputs: list[Input] = [builder.operand(index, layout), lengths]
    builder.write(op.outputs[0], builder.node("Expand", inputs), layout)


@READERS.register("PAD", "PADV2")
def pad(builder: ModelBuilder, op: Operator) -> None:
    """Read PAD and PADV2: with zeros, or with a stored number."""
    index, pads = slot(op.inputs, 0), _pads(builder, op)
    require_same_scale(builder, index, op.outputs[0])
    layout = builder.layout_of(index)
    sides = [arranged([each[side] for each in pads], layout) for side in (0, 1)]
    inputs: list[Input] = [
        builder.operand(index, layout),
        builder.integers(*sides[0], *sides[1]),
    ]
    filler = _filler(builder, optional_slot(op, 2))
    if filler:
        inputs.append(builder.number(filler))
    builder.write(op.outputs[0], builder.node("Pad", inputs), layout)


def _filler(builder: ModelBuilder, index: int) -> float:
    """Return the number that a pad is filled with."""
    if index < 0:
        return 0.0
    parameters, array = builder.parameters(index), builder.array(index)
    if array.size != 1 or (parameters is not None and parameters.axis is not None):
        raise Unsupported("it is filled with more than one number")
    numbers = array if parameters is None else parameters.numbers(array)
    return float(numbers.reshape(-1)[0])


@READERS.register("MIRROR_PAD")
def mirror_pad(builder: ModelBuilder, op: Operator) -> None:
    """Read MIRROR_PAD, as a Gather along each axis that grows: ONNX mirrors in one way only."""
    index, pads = slot(op.inputs, 0), _pads(builder, op)
    require_same_scale(builder, index, op.outputs[0])
    with_edge = int(op.options["mode"]) == 1
    operand = builder.operand(index)
    grown = list(operand.shape)
    for axis, (before, after) in enumerate(pads):
        if not (before or after):
            continue
        length = grown[axis]
        # A mirror shows every element once, the edge itself in one of two modes.
        if max(before, after) > length - (not with_edge) or length > _MOST_GATHERED:
            raise Unsupported(f"{before} and {after} elements are no mirror of {length}")
        start = 0 if with_edge else 1
        indices = [
            *range(before - 1 + start, start - 1, -1),
            *range(length),
            *range(length - 1 - start, length - 1 - start - after, -1),
        ]
        builder.charge(len(indices))
        grown[axis] = len(indices)
        inputs: list[Input] = [operand, builder.integers(*indices)]
        operand = builder.moved("Gather", inputs, {"axis": axis}, tuple(grown))
    # Nothing was mirrored: the output still needs a value of its own.
    if operand.value.name is not None:
        operand = builder.copied(operand)
    builder.write(op.outputs[0], operand.value)


def _pads(builder: ModelBuilder, op: Operator) -> list[tuple[int, int]]:
    """Read the pads before and behind each axis."""
    shape, flat = builder.tensor(slot(op.inputs, 0)).shape, builder.list_of(slot(op.inputs, 1))
    if len(flat) != 2 * len(shape) or min(flat, default=0) < 0:
        raise Unsupported(f"its pads are {list(flat)}")
    pads = list(zip(flat[::2], flat[1::2], strict=True))
    require_shape(builder, op.outputs[0], [n + sum(p) for n, p in zip(shape, pads, strict=True)])
    refuse_mixed_batch(builder, any(pads[0]))
    return pads


@READERS.register("DENSIFY")
def densify(builder: ModelBuilder, op: Operator) -> None:
    """Read DENSIFY: a sparse constant with its zeros."""
    index, output = slot(op.inputs, 0), op.outputs[0]
    require_shape(builder, output, builder.tensor(index).shape)
    given, kept = parameters_of(builder.tensor(index)), parameters_of(builder.tensor(output))
    if given is not kept and (given is None or not given.equals(kept)):
        raise Unsupported("its output has another scale than its input, which it only moves")
    builder.known[output] = builder.array(index)


@READERS.register("QUANTIZE", "DEQUANTIZE")
def requantize(builder: ModelBuilder, op: Operator) -> None:
    """Read QUANTIZE and DEQUANTIZE: the same numbers at another end, or as floats.

    A float input of the graph needs no node: it is quantized where it is read.
    """
    index, output = slot(op.inputs, 0), op.outputs[0]
    require_shape(builder, output, builder.tensor(index).shape)
    index = builder.alias.get(index, index)
    if builder.alias.get(output) == index:
        return
    if builder.is_constant(index):
        parameters = builder.parameters(index)
        if op.name != "DEQUANTIZE":
            raise Unsupported("it quantizes a constant")
        array = builder.array(index)
        builder.charge(array.size)
        builder.known[output] = array if parameters is None else parameters.numbers(array)
        return
    activation = builder.activations.get(index)
    source = None if activation is None else activation.values.get(ChannelLayout.FILE)
    is_port = source in builder.graph.inputs
    if is_port and builder.parameters(index) is None and not builder.is_output(output):
        builder.stand_for(output, index)
        return
    layout = builder.layout_of(index)
    builder.write(output, builder.node("Identity", [builder.operand(index, layout)]), layout)
