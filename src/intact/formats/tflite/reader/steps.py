"""Reads operators one by one: checks what is so of all, then asks who reads one of its kind."""

from __future__ import annotations

from intact.errors import Unsupported
from intact.formats.tflite.reader import slices
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.common import READERS, require_one_kind
from intact.formats.tflite.reader.file import Operator
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.reader.turns import WHILE
from intact.formats.tflite.spellings import INT16_VERSIONS

_CONVERSIONS = frozenset({"QUANTIZE", "DEQUANTIZE"})
_MANY_OUTPUTS = frozenset({"SPLIT", "SPLIT_V", "TOPK_V2", "UNPACK", WHILE})


def read_operator(builder: ModelBuilder, op: Operator, *, wide: bool = False) -> None:
    """Add the nodes of an operator.

    Args:
        builder: The graph under construction.
        op: The operator.
        wide: Activations of 16 bits are read, and not those of 8.

    Raises:
        Unsupported: It cannot be read; nothing is added then.
    """
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
