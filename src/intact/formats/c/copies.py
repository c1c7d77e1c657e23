"""Writes operations that only move elements as C copies from grid to grid."""

from __future__ import annotations

from intact.errors import Unsupported
from intact.formats.c.layer import WRITERS, Layer, encoding_of
from intact.formats.c.moves import MOVES, Move, moves_of
from intact.program import Tensor
from intact.program.forms import code_of
from intact.program.operations import Gather, Pad
from intact.program.passes.whole_inputs import is_whole


@WRITERS.register(*MOVES)
def write_moves(layer: Layer) -> None:
    """Write every move whose elements do not lie in place already."""
    if is_whole(layer.input()):
        return  # only a view of an input has no codes
    _same_codes(layer)
    if isinstance(layer.step.operation, Pad):
        # All of it, before the data is copied in: the frame is in as many pieces as there are axes.
        _fill(layer, layer.output, layer.step.operation.value)
    for move in moves_of(layer.step, layer.all_shapes):
        source, target = layer.input(move.source), layer.step.outputs[move.target]
        # C has no arrays of no elements to point to.
        if layer.size(target) and move.grid.rows * move.grid.length:
            _write(layer, move, layer.pointer(source), layer.pointer(target))


def _same_codes(layer: Layer) -> None:
    outputs = [encoding_of(tensor) for tensor in layer.step.outputs]
    for tensor in layer.step.inputs:
        # A copy does not requantize: with other scales the same codes would be other numbers.
        if tensor is not None and not all(encoding_of(tensor).same_as(out) for out in outputs):
            raise Unsupported(
                f"{tensor.name!r} has another scale than the result", "tie the scales of the two"
            )


def _fill(layer: Layer, output: Tensor, value: float) -> None:
    code, size = int(code_of(value, encoding_of(output))), layer.size(output)
    layer.call_function("memset", layer.pointer(output), code, size)


def _write(layer: Layer, move: Move, source: str, target: str) -> None:
    grid = move.grid
    if grid.is_run:
        start, end = _moved(source, move.input_start), _moved(target, move.output_start)
        # A view lies where it is read already.
        if start != end:
            layer.call_function("memcpy", end, start, grid.length)
        return
    params = layer.params(
        "copy",
        {
            "rows": grid.rows,
            "axes": len(grid.lengths),
            "lengths": grid.lengths,
            "input_strides": grid.strides[0],
            "output_strides": grid.strides[1],
            "length": grid.length,
            "input_step": grid.steps[0],
            "output_step": grid.steps[1],
            "input_start": move.input_start,
            "output_start": move.output_start,
        },
    )
    layer.call("copy", params, source, target)


def _moved(pointer: str, start: int) -> str:
    """Return a pointer so many elements on; sums are joined, so that equal places read alike."""
    base, _, known = pointer.partition(" + ")
    total = int(known or 0) + start
    return f"{base} + {total}" if total else base


@WRITERS.register(Gather)
def write_gather(layer: Layer) -> None:
    """Write a Gather with constant indices."""
    operation = layer.step.operation
    if not isinstance(operation, Gather):
        raise Unsupported("it is no Gather", "")
    _same_codes(layer)
    source = layer.input()
    shape, axis = layer.shape(source), operation.axis
    outer = block = 1
    for length in shape[:axis]:
        outer *= length
    for length in shape[axis + 1 :]:
        block *= length
    # 16-bit chips have no cheap 64 bits, and no tensor has more elements than an int32 counts.
    indices = operation.indices.astype("int32")
    layer.call(
        "gather",
        layer.array(indices, "_indices", "indices"),
        indices.size,
        outer,
        shape[axis],
        block,
        layer.pointer(source),
        layer.pointer(layer.output),
    )
