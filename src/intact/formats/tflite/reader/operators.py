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
from intact.formats.tflite.reader import moves, pointwise, products, slices, spatial
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.common import READERS, require_one_kind
from intact.formats.tflite.reader.file import Operator, TfliteFile
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.spellings import INT16_VERSIONS

_MODULES = (moves, pointwise, products, slices, spatial)
"""Their readers are registered when they are imported."""

_CONVERSIONS = frozenset({"QUANTIZE", "DEQUANTIZE"})
_MANY_OUTPUTS = frozenset({"SPLIT", "SPLIT_V", "UNPACK"})


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
            _read(builder, op, wide=wide)
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


def _read(builder: ModelBuilder, op: Operator, *, wide: bool) -> None:
    wanted = len(op.outputs) >= 1 if op.name in _MANY_OUTPUTS else len(op.outputs) == 1
    if op.name in READERS and not wanted:
        raise Unsupported(f"it has {len(op.outputs)} outputs")
    for index in op.outputs:
        # A value of ONNX has one producer: a second one would change what was read before.
        if index in builder.activations or builder.is_constant(index):
            raise Unsupported(f"its output {builder.tensor(index).name!r} is there already")
    # Integers of shapes follow from the file, also by operators that are not read otherwise.
    if slices.is_known(builder, op):
        slices.compute(builder, op)
        return
    read = READERS.get(op.name)
    if read is None:
        raise Unsupported("operators of this kind are not read")
    if op.name not in _CONVERSIONS:
        require_one_kind(builder, op)
        _one_width(builder, op, wide=wide)
    for index in op.outputs:
        # Asked before the first node is added, because a refused operator must leave none.
        builder.parameters(index)
    read(builder, op)


def _one_width(builder: ModelBuilder, op: Operator, *, wide: bool) -> None:
    """Check that an operator has kernels that compute as the target does."""
    activations = [i for i in op.inputs if i >= 0 and not builder.is_constant(i)]
    elements = {builder.tensor(index).element for index in (*activations, *op.outputs)}
    if Element.INT16 in elements and op.name not in INT16_VERSIONS:
        raise Unsupported("its int16 form is not read")
    if elements & {Element.INT8, Element.UINT8} and wide:
        raise Unsupported("its codes have 8 bits, those of the target 16: try target tflite")
    if Element.INT16 in elements and not wide:
        raise Unsupported("its codes have 16 bits, those of the target 8: try target tflite-16x8")


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
