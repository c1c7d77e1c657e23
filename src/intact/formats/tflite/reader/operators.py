"""Makes a float graph of a TFLite file's operators, or lists the unsupported ones."""

from __future__ import annotations

from collections import Counter

from intact.errors import ModelError, Unsupported
from intact.formats.base.foreign import (
    clip_text,
    list_unsupported,
    refuse_mixed_batch,
    with_open_batch,
)
from intact.formats.tflite.reader import (
    loops,
    moves,
    pointwise,
    products,
    selections,
    slices,
    spatial,
)
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.file import TfliteFile
from intact.formats.tflite.reader.steps import read_operator

_MODULES = (loops, moves, pointwise, products, selections, slices, spatial)
"""Their readers are registered when they are imported."""


def build_model(file: TfliteFile, *, wide: bool = False) -> ModelBuilder:
    """Return the float graph of a file, with its batch open if nothing in it mixes samples.

    Args:
        file: What is read.
        wide: Activations of 16 bits are read, and not those of 8.

    Raises:
        ModelError: Some operators cannot be read; all of them are listed.
    """
    if not file.inputs or not file.outputs or not file.operators:
        raise ModelError(f"{file.source}: it has no inputs, outputs or operators")
    if len(set(file.inputs)) != len(file.inputs):
        raise ModelError(f"{file.source}: an input is listed twice")
    return with_open_batch(lambda batch: _build(file, batch=batch, wide=wide))


def _build(file: TfliteFile, *, batch: bool, wide: bool) -> ModelBuilder:
    try:
        builder = ModelBuilder(file, batch=batch, alias=_aliases(file))
    except Unsupported as reason:
        raise ModelError(f"{file.source}: an input: {clip_text(str(reason))}") from reason
    unsupported: list[tuple[str, str, str]] = []
    failed: set[int] = set()
    for op in file.operators:
        # It lacks an input for the reason that is told of another operator.
        if failed.intersection(op.inputs):
            failed.update(op.outputs)
            continue
        try:
            read_operator(builder, op, wide=wide)
        except Unsupported as reason:
            unsupported.append((op.name, str(op.index), str(reason)))
            failed.update(op.outputs)
    if not unsupported:
        try:
            for index in file.outputs:
                builder.operand(index)
                # A constant has the batch of the file, and none to be opened.
                refuse_mixed_batch(builder, builder.is_constant(index))
        except Unsupported as reason:
            raise ModelError(f"{file.source}: an output: {clip_text(str(reason))}") from reason
        return builder
    raise ModelError(
        f"{file.source}: {len(unsupported)} of {len(file.operators)} operators cannot be read:"
        f" {list_unsupported(unsupported)}",
        remedy="convert the model with full-integer int8 quantization and built-in operators",
    )


def _aliases(file: TfliteFile) -> dict[int, int]:
    """Return the float outputs that are another name of the integers before them.

    A DEQUANTIZE at the end of the graph needs no node: its producer's output is quantized.
    """
    readers = Counter(index for op in file.operators for index in op.inputs)
    made = {index for op in file.operators for index in op.outputs}
    ports, outputs = {*file.inputs, *file.outputs}, Counter(file.outputs)
    found: dict[int, int] = {}
    for op in file.operators:
        if op.name != "DEQUANTIZE" or len(op.inputs) != 1 or len(op.outputs) != 1:
            continue
        source, output = op.inputs[0], op.outputs[0]
        # Only where nothing else reads the integers: these keep their own name then.
        alone = readers[source] == 1 and source in made and source not in ports
        if alone and outputs[output] and not readers[output] and output not in file.inputs:
            found[output] = source
    return found
