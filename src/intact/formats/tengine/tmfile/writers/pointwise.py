"""Functions and operations on two tensors, element by element."""

from __future__ import annotations

import math

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.operators import Eltwise
from intact.formats.tengine.tmfile.spellings import WRITTEN
from intact.formats.tengine.tmfile.writers.builder import WRITERS, Operand, Shape, TmFileBuilder
from intact.ops import functions
from intact.program import Step
from intact.program.float_operations import Identity
from intact.program.operations import (
    Binary,
    Elementwise,
    FloatNodes,
    Function,
    PRelu,
    Softmax,
)

_PAIRS = {
    Binary.ADD: Eltwise.SUM,
    Binary.MUL: Eltwise.PROD,
    Binary.SUB: Eltwise.SUB,
    Binary.DIV: Eltwise.DIV,
    Binary.MAXIMUM: Eltwise.MAX,
}
_COMMUTE = (Binary.ADD, Binary.MUL, Binary.MAXIMUM)
_FULL_CODE = 127.5
"""From here on rounding leaves int8."""


@WRITERS.register(Function)
def _function(operation: Function, step: Step, builder: TmFileBuilder) -> None:
    kind = operation.kind
    if kind is functions.clamp:
        _clamp(step, builder)
        return
    if kind not in WRITTEN:
        raise Unsupported(f"Tengine has no {builder.operator(step)}")
    spelling = WRITTEN[kind]
    value = builder.value(step)
    builder.refuse_elements(*spelling.without_kernel)
    if spelling.of_one_image:
        images, *_ = builder.image_shape(step)
        if images != 1:
            raise Unsupported(f"Tengine computes it for one image, not for {images}")
    options = {theirs: operation.number(ours) for theirs, ours in spelling.options.items()}
    builder.add(step, spelling.name, [value], {**options, **spelling.constants})


@WRITERS.register(Identity)
def _identity(_: Identity, step: Step, builder: TmFileBuilder) -> None:
    builder.refuse_rescaling(step)
    builder.add(step, "Dropout", [builder.value(step)])


@WRITERS.register(FloatNodes)
def _float_nodes(operation: FloatNodes, step: Step, builder: TmFileBuilder) -> None:
    raise Unsupported(operation.reason or f"Tengine has no {builder.operator(step)}")


def _clamp(step: Step, builder: TmFileBuilder) -> None:
    """Relu or Clip; Tengine's int8 Clip must not make codes that wrap around."""
    operator, options = builder.clamp(step)
    before = builder.scales.of_activation(builder.value(step))
    after = builder.scales.of_activation(step.outputs[0].value)
    is_int8 = builder.scales.element is Element.INT8
    if operator == "Clip" and is_int8 and before is not None and after is not None:
        reach = 127 * float(before.scale[0])
        largest = max(min(reach, abs(options["min"])), min(reach, abs(options["max"])))
        if largest / float(after.scale[0]) >= _FULL_CODE:
            raise Unsupported(
                "its output has a smaller range, at which Tengine's int8 wraps around"
            )
    builder.add(step, operator, [builder.value(step)], options, clamps=False)


@WRITERS.register(PRelu)
def _prelu(_: PRelu, step: Step, builder: TmFileBuilder) -> None:
    """A slope for each channel; Tengine's uint8 reads slopes in float16."""
    shape = builder.shape(builder.value(step))
    is_int8 = builder.scales.element is Element.INT8
    builder.refuse_elements(Element.UINT8)
    if len(shape) not in ((4,) if is_int8 else (2, 4)):
        raise Unsupported(f"its input has {len(shape)} dimensions, for which Tengine has no loop")
    slope = builder.constant(step, 1)
    per_channel = slope.data.shape == (shape[1], *(1,) * (len(shape) - 2))
    if not per_channel and slope.data.size != 1:
        raise Unsupported(f"its slopes have the shape {list(slope.data.shape)}")
    if slope.data.size == 1 and is_int8 and shape[1] > 1:
        raise Unsupported("Tengine's int8 has a slope for each channel, not one")
    slopes = builder.stored(slope, slope.data.reshape(-1))
    builder.add(step, "PReLU", [builder.value(step), slopes])


@WRITERS.register(Softmax)
def _softmax(operation: Softmax, step: Step, builder: TmFileBuilder) -> None:
    if operation.log:
        raise Unsupported("Tengine's LogSoftmax is not written")
    builder.add(step, "Softmax", [builder.value(step)], {"axis": operation.axis})


@WRITERS.register(Elementwise)
def _elementwise(operation: Elementwise, step: Step, builder: TmFileBuilder) -> None:
    """Two tensors, the second of which may be a constant or spread over the first."""
    if operation.kind not in _PAIRS:
        raise Unsupported(f"Tengine has no {builder.operator(step)}")
    tensors = [tensor for tensor in step.inputs if tensor is not None]
    shapes = [
        builder.shape(tensor.value) if tensor.data is None else tensor.data.shape
        for tensor in tensors
    ]
    first, second = 0, 1
    smaller = tensors[0].is_constant or math.prod(shapes[0]) < math.prod(shapes[1])
    if smaller and operation.kind in _COMMUTE and not tensors[1].is_constant:
        first, second = 1, 0
    value = builder.value(step, first)
    if len(shapes[first]) not in (3, 4):
        raise Unsupported(f"it joins tensors of {len(shapes[first])} dimensions; Tengine's 3, 4")
    _refuse_spread(operation.kind, builder, shapes[second], shapes[first])
    options = {
        "type": _PAIRS[operation.kind],
        "caffe_flavor": 0,
        "shift": 0.0,
        "power": 0.0,
        "scale": 0.0,
    }
    if tensors[second].is_constant:
        constant = builder.constant(step, second)
        inputs: list[Operand] = [value, builder.stored(constant, constant.in_model)]
        builder.add(step, "Eltwise", inputs, options)
    else:
        builder.add(step, "Eltwise", [value, builder.value(step, second)], options)


def _refuse_spread(kind: Binary, builder: TmFileBuilder, shape: Shape, over: Shape) -> None:
    """Refuse shapes that Tengine's kernels join in another way than ONNX, or not at all."""
    if shape == over:
        return
    if kind is Binary.MAXIMUM:
        raise Unsupported(f"it joins {list(over)} and {list(shape)}, which Tengine does not")
    if math.prod(shape) == 1:
        return
    if kind is Binary.DIV:
        builder.refuse_elements(Element.INT8, Element.UINT8)
    channels = (1, over[1], *(1,) * (len(over) - 2))
    spread = (*(1,) * (len(over) - len(shape)), *shape)
    if spread != channels or over[0] != 1:
        raise Unsupported(f"it joins {list(over)} and {list(shape)}")
