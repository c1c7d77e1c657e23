"""Holds the table of TFLite's operator readers, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.config import QuantState
from intact.errors import Unsupported
from intact.formats.base.clamps import highest, is_clamped_only, mark
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.file import FileTensor, Operator
from intact.formats.tflite.reader.schema import Element, Fused, Padding
from intact.formats.tflite.reader.tensors import ChannelLayout, Input, Operand
from intact.formats.tflite.spellings import FUSED
from intact.program.handlers import NamedHandlers

Reader: TypeAlias = Callable[[ModelBuilder, Operator], None]
"""Adds the nodes of an operator to a builder; raises `Unsupported` where it cannot."""

READERS: NamedHandlers[Reader] = NamedHandlers("intact reads no {} of TFLite")

_NEARLY = 1 / 512
"""Relative difference of two scales below which no 8-bit code changes from one to the other."""
_MOST = 1 << 20
"""Strides, kernels, pads and the like."""


def optional_slot(op: Operator, number: int) -> int:
    """Return the tensor at an input slot, -1 where it is absent."""
    return op.inputs[number] if number < len(op.inputs) else -1


def require_rank(tensor: FileTensor, *ranks: int) -> None:
    """Check the rank of a tensor."""
    if tensor.rank not in ranks:
        raise Unsupported(f"tensor {tensor.name!r} has {tensor.rank} dimensions")


def positive_options(op: Operator, *names: str) -> tuple[int, ...]:
    """Return options that are lengths."""
    numbers = tuple(int(op.options[name]) for name in names)
    if not all(0 < number <= _MOST for number in numbers):
        raise Unsupported(f"its {' and '.join(names)} are {list(numbers)}")
    return numbers


def window_pads(
    op: Operator,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output: Sequence[int],
) -> tuple[int, ...]:
    """Return the pads of a sliding window as ONNX lists them: all before, then all after.

    SAME puts the odd element behind.

    Raises:
        Unsupported: The window does not give the output that the file says.
    """
    pads = []
    for size, width, stride, dilation, wanted in zip(
        sizes, kernel, strides, dilations, output, strict=True
    ):
        reach = (width - 1) * dilation + 1
        if op.options["padding"] == Padding.SAME:
            length = -(-size // stride)
            total = max((length - 1) * stride + reach - size, 0)
        else:
            length, total = (size - reach) // stride + 1, 0
        # The file states the length as well; where both differ, it was not this padding.
        if length != wanted or length < 1:
            raise Unsupported(f"its windows give {length} elements where its output has {wanted}")
        pads.append((total // 2, total - total // 2))
    return tuple(before for before, _ in pads) + tuple(after for _, after in pads)


def add_activation(builder: ModelBuilder, value: Operand | ir.Value, activation: int) -> ir.Value:
    """Return a value behind a fused activation; that of an operand is no part of its chain."""
    if activation == Fused.NONE:
        return value.value if isinstance(value, Operand) else value
    if activation not in FUSED:
        known = activation in Fused.__members__.values()
        name = Fused(activation).name if known else str(activation)
        raise Unsupported(f"its fused activation is {name}")
    bounds = FUSED[Fused(activation)]
    # Not a Clip to infinity: plans know a Relu by its name.
    if activation == Fused.RELU:
        return builder.node("Relu", [value])
    return builder.node("Clip", [value, builder.number(bounds.low), builder.number(bounds.high)])


def cast(builder: ModelBuilder, value: Input, kind: ir.DataType) -> ir.Value:
    """Return a value in another type."""
    result = builder.node("Cast", [value], {"to": int(kind)})
    result.type = ir.TensorType(kind)
    return result


def finish(
    builder: ModelBuilder,
    op: Operator,
    value: Operand | ir.Value,
    layout: ChannelLayout = ChannelLayout.FILE,
) -> None:
    """Make a value, behind the operator's fused activation, its output."""
    activation = int(op.options.get("fused", 0))
    result = add_activation(builder, value, activation)
    if activation == Fused.NONE and "fused" in op.options:
        result = restore_clamp(builder, op, result)
    builder.write(op.outputs[0], result, layout)


def restore_clamp(builder: ModelBuilder, op: Operator, value: ir.Value) -> ir.Value:
    """Return a value behind the activation that a converter left to the range of the codes."""
    parameters = builder.parameters(op.outputs[0])
    config = None if parameters is None else parameters.config(QuantState.ACTIVATED)
    if config is None or not is_clamped_only(value, config, set()):
        return value
    bounds = [builder.number(0), builder.number(float(highest(config)))]
    result = builder.node("Clip", [value, *bounds])
    node = result.producer()
    if node is not None:
        mark(node)
    return result


def require_broadcast(builder: ModelBuilder, op: Operator, *shapes: Sequence[int]) -> None:
    """Check that operands broadcast to the output."""
    wanted = builder.tensor(op.outputs[0]).shape
    try:
        found = np.broadcast_shapes(*(tuple(shape) for shape in shapes))
    except ValueError:
        found = None
    if found != wanted:
        operands = " and ".join(str(list(shape)) for shape in shapes)
        raise Unsupported(f"operands {operands} do not give {list(wanted)}")


def require_shape(builder: ModelBuilder, index: int, shape: Sequence[int]) -> None:
    """Check that an output has the shape that the operator computes."""
    tensor = builder.tensor(index)
    if tensor.shape != tuple(shape):
        raise Unsupported(
            f"tensor {tensor.name!r} of shape {list(tensor.shape)} is computed as {list(shape)}"
        )


def require_same_scale(builder: ModelBuilder, source: int, *outputs: int) -> None:
    """Check that an operator that moves codes keeps their scale.

    LiteRT's kernels copy the codes whatever the scales are; no plan can express that. Where the
    scales differ by a rounding error of the converter, the codes are the same either way.
    """
    given = builder.parameters(source)
    for output in outputs:
        kept = builder.parameters(output)
        if (given is None) != (kept is None):
            raise Unsupported("it turns integers into floats or back")
        if given is None or kept is None or kept.equals(given):
            continue
        near = (
            (given.bits, given.signed, given.axis) == (kept.bits, kept.signed, kept.axis)
            and given.axis is None
            and int(given.zero_point) == int(kept.zero_point)
            and abs(float(given.scale) - float(kept.scale)) < _NEARLY * float(given.scale)
        )
        if not near:
            raise Unsupported("its output has another scale than its input, which it only moves")


def require_one_kind(builder: ModelBuilder, op: Operator) -> None:
    """Check that an operator does not compute with both integers and floats.

    Those with weights or a table may take floats and store codes.
    """
    operands = [*op.inputs, *op.outputs]
    if stores_codes(builder, op):
        del operands[1]
    elements = {builder.tensor(index).element for index in operands if index >= 0}
    if elements & _FLOATS and elements & _CODES:
        raise Unsupported("it mixes float tensors with integer ones")


def stores_codes(builder: ModelBuilder, op: Operator) -> bool:
    """Tell whether an operator gives floats and has a weight or a table of codes."""
    if op.name not in _STORING or len(op.inputs) < 2 or min(op.inputs[1], len(op.outputs) - 1) < 0:
        return False
    weight = builder.tensor(op.inputs[1])
    is_float = builder.tensor(op.outputs[0]).element is Element.FLOAT32
    return is_float and weight.element in _STORED and builder.is_constant(op.inputs[1])


def is_hybrid(builder: ModelBuilder, op: Operator) -> bool:
    """Tell whether an operator multiplies floats by codes.

    LiteRT quantizes such floats at run time, each row by its own largest number.
    """
    return op.name != EMBEDDING and stores_codes(builder, op)


EMBEDDING = "EMBEDDING_LOOKUP"
_STORING = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL", EMBEDDING}
_STORED = {Element.INT4, Element.INT8}


_FLOATS = {Element.FLOAT32, Element.FLOAT16}
_CODES = {Element.INT4, Element.INT8, Element.UINT8, Element.INT16}
