"""Reads and writes the functions of a ``.tmfile``, and its operators on two tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import Shape, refuse_mixed_batch, slot
from intact.formats.tengine.tmfile.file import Element, FileNode
from intact.formats.tengine.tmfile.file_builder import WRITERS, Operand, TmFileBuilder
from intact.formats.tengine.tmfile.onnx_builder import READERS, OnnxBuilder
from intact.formats.tengine.tmfile.operators import Activation, Eltwise
from intact.ops import functions
from intact.ops.functions import Unary
from intact.program import Step
from intact.program.float_operations import Identity
from intact.program.operations import (
    Binary,
    Bounds,
    Elementwise,
    FloatNodes,
    Function,
    PRelu,
    Softmax,
)

_SINGLE = {Eltwise.EXP: "Exp", Eltwise.SQRT: "Sqrt"}
ACTIVATIONS: Mapping[Activation, tuple[str, Bounds]] = {
    Activation.RELU: ("Relu", Bounds(0)),
    Activation.RELU6: ("Clip", Bounds(0, 6)),
}
"""What Tengine applies to the sums of a layer, with ONNX's operator and the bounds."""
_FULL_CODE = 127.5
"""From here on rounding leaves int8."""
_NO_INT8 = (Element.INT8,)


@dataclass(frozen=True)
class Spelling:
    """An operator of Tengine that computes a function.

    Attributes:
        function: The function.
        name: Tengine's name of the operator.
        without_kernel: Elements for which Tengine has no kernel.
        renamed: Our names of options that Tengine calls otherwise, with its names.
        constants: Options that are always the same; Tengine's kernels leave them aside.
        is_written: It is; otherwise it is only read.
        of_one_image: Its kernels take the lengths of one image, whatever the tensor has.
    """

    function: Unary
    name: str
    without_kernel: tuple[Element, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    is_written: bool = True
    of_one_image: bool = False

    @property
    def options(self) -> Mapping[str, str]:
        """Tengine's names of options, with ours."""
        return {self.renamed.get(ours, ours): ours for ours in self.function.defaults}


class Pair(NamedTuple):
    """An operator on two tensors.

    Attributes:
        kind: Ours.
        theirs: Tengine's ``type`` of Eltwise.
        onnx: ONNX's name.
        commutes: Whether its operands may change places.
    """

    kind: Binary
    theirs: Eltwise
    onnx: str
    commutes: bool = True


PAIRS = (
    Pair(Binary.ADD, Eltwise.SUM, "Add"),
    Pair(Binary.MUL, Eltwise.PROD, "Mul"),
    Pair(Binary.SUB, Eltwise.SUB, "Sub", commutes=False),
    Pair(Binary.DIV, Eltwise.DIV, "Div", commutes=False),
    Pair(Binary.MAXIMUM, Eltwise.MAX, "Max"),
)

SPELLINGS = (
    Spelling(functions.sigmoid, "Sigmoid"),
    Spelling(functions.sigmoid, "Logistic", is_written=False),
    Spelling(functions.tanh, "Tanh", _NO_INT8),
    Spelling(functions.leaky_relu, "ReLu", renamed={"alpha": "negative_slope"}),
    Spelling(functions.elu, "Elu", _NO_INT8),
    Spelling(functions.hard_sigmoid, "HardSigmoid", _NO_INT8),
    Spelling(functions.hard_swish, "HardSwish", _NO_INT8, constants={"alpha": 1 / 6, "beta": 0.5}),
    Spelling(functions.mish, "Mish", _NO_INT8, of_one_image=True),
    Spelling(functions.softplus, "Softplus", (Element.INT8, Element.UINT8), of_one_image=True),
)
WRITTEN: Mapping[Unary, Spelling] = {each.function: each for each in SPELLINGS if each.is_written}
READ: Mapping[str, Spelling] = {each.name: each for each in SPELLINGS if each.name != "ReLu"}
"""By Tengine's name; ReLu is a Relu where its slope is 0."""


def add_activation(builder: OnnxBuilder, node: FileNode, value: ir.Value, activation: int) -> None:
    """Add what a node applies to its result."""
    if activation not in ACTIVATIONS:
        raise Unsupported(f"its activation is {activation}")
    # As a node of its own: the fused form has no operator in ONNX.
    kind, bounds = ACTIVATIONS[Activation(activation)]
    limits = (bounds.low, bounds.high) if kind == "Clip" else ()
    inputs = [value, *map(builder.number, limits)]
    shape, output = builder.shapes[value], node.outputs[0]
    builder.compute(node, kind, inputs, shape, part=kind.lower(), output=output)


@READERS.register("ReLu")
def _read_relu(builder: OnnxBuilder, node: FileNode) -> None:
    """Read ReLu, perhaps with a slope for negative numbers."""
    slope = node.options["negative_slope"]
    value = builder.activation(slot(node.inputs, 0))
    attributes = {"alpha": slope} if slope else None
    # A slope of 0 is the common Relu, which plans fuse and a LeakyRelu they do not.
    kind = "LeakyRelu" if slope else "Relu"
    builder.compute(node, kind, [value], builder.shapes[value], attributes, output=node.outputs[0])


@READERS.register("ReLu6")
def _read_relu6(builder: OnnxBuilder, node: FileNode) -> None:
    """Read ReLu6."""
    _add_clip(builder, node, 0, 6)


@READERS.register("Clip")
def _read_clip(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Clip."""
    _add_clip(builder, node, node.options["min"], node.options["max"])


def _add_clip(builder: OnnxBuilder, node: FileNode, low: float, high: float) -> None:
    if not low <= high:
        raise Unsupported(f"it clips to {low} .. {high}")
    value = builder.activation(slot(node.inputs, 0))
    inputs = [value, builder.number(low), builder.number(high)]
    builder.compute(node, "Clip", inputs, builder.shapes[value], output=node.outputs[0])


@READERS.register("PReLU")
def _read_prelu(builder: OnnxBuilder, node: FileNode) -> None:
    """Read PReLU: a slope for each channel, or one."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    count = builder.numbers(slot(node.inputs, 1)).size
    if len(shape) < 2 or count not in (1, shape[1]):
        raise Unsupported(f"{count} slopes for {list(shape)}")
    slopes = builder.store(slot(node.inputs, 1), (count, *(1,) * (len(shape) - 2)))
    builder.compute(node, "PRelu", [value, slopes], shape, output=node.outputs[0])


@WRITERS.register(PRelu)
def _write_prelu(_: PRelu, step: Step, builder: TmFileBuilder) -> None:
    """Write a slope for each channel; Tengine's uint8 reads slopes in float16."""
    shape = builder.shape(builder.value(step))
    is_int8 = builder.scales.element is Element.INT8
    builder.refuse_elements(Element.UINT8)
    # Each kernel has loops for these ranks only, and leaves the output of others as it was.
    if len(shape) not in ((4,) if is_int8 else (2, 4)):
        raise Unsupported(f"its input has {len(shape)} dimensions, for which Tengine has no loop")
    slope = builder.constant(step, 1)
    per_channel = slope.data.shape == (shape[1], *(1,) * (len(shape) - 2))
    if not per_channel and slope.data.size != 1:
        raise Unsupported(f"its slopes have the shape {list(slope.data.shape)}")
    # It would read beyond the one slope.
    if slope.data.size == 1 and is_int8 and shape[1] > 1:
        raise Unsupported("Tengine's int8 has a slope for each channel, not one")
    slopes = builder.store(slope, slope.data.reshape(-1))
    builder.add(step, "PReLU", [builder.value(step), slopes])


@READERS.register("Dropout", "Noop")
def _read_identity(builder: OnnxBuilder, node: FileNode) -> None:
    """Read operators that do nothing."""
    value = builder.activation(slot(node.inputs, 0))
    builder.compute(node, "Identity", [value], builder.shapes[value], output=node.outputs[0])


@WRITERS.register(Identity)
def _write_identity(_: Identity, step: Step, builder: TmFileBuilder) -> None:
    builder.refuse_rescaling(step)
    builder.add(step, "Dropout", [builder.value(step)])


@READERS.register(*READ)
def _read_function(builder: OnnxBuilder, node: FileNode) -> None:
    """Read a function of one tensor."""
    spelling = READ[node.operator]
    value = builder.activation(slot(node.inputs, 0))
    attributes = {ours: node.options[theirs] for theirs, ours in spelling.options.items()}
    shape, output = builder.shapes[value], node.outputs[0]
    kind = spelling.function.name
    builder.compute(node, kind, [value], shape, attributes or None, output=output)


@WRITERS.register(Function)
def _write_function(operation: Function, step: Step, builder: TmFileBuilder) -> None:
    kind = operation.kind
    if kind is functions.clamp:
        _clamp(step, builder)
        return
    if kind not in WRITTEN:
        raise builder.not_written(step)
    spelling = WRITTEN[kind]
    value = builder.value(step)
    builder.refuse_elements(*spelling.without_kernel)
    if spelling.of_one_image:
        images, *_ = builder.image_shape(step)
        if images != 1:
            raise Unsupported(f"Tengine computes it for one image, not for {images}")
    options = {theirs: operation.number(ours) for theirs, ours in spelling.options.items()}
    builder.add(step, spelling.name, [value], {**options, **spelling.constants})


@READERS.register("Softmax")
def _read_softmax(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Softmax."""
    value = builder.activation(slot(node.inputs, 0))
    shape = builder.shapes[value]
    axis = node.options["axis"]
    if not -len(shape) <= axis < len(shape):
        raise Unsupported(f"it has no axis {axis} of {len(shape)}")
    axis %= len(shape)
    refuse_mixed_batch(builder, axis == 0)
    builder.compute(node, "Softmax", [value], shape, {"axis": axis}, output=node.outputs[0])


@WRITERS.register(Softmax)
def _write_softmax(operation: Softmax, step: Step, builder: TmFileBuilder) -> None:
    if operation.log:
        raise Unsupported("Tengine's LogSoftmax is not written")
    builder.add(step, "Softmax", [builder.value(step)], {"axis": operation.axis})


@READERS.register("Eltwise")
def _read_eltwise(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Eltwise of one or two inputs."""
    kind = node.options["type"]
    if kind in _SINGLE and len(node.inputs) == 1:
        value = builder.activation(slot(node.inputs, 0))
        shape = builder.shapes[value]
        builder.compute(node, _SINGLE[Eltwise(kind)], [value], shape, output=node.outputs[0])
        return
    pair = next((each for each in PAIRS if each.theirs == kind), None)
    if pair is None or len(node.inputs) != 2:
        raise Unsupported(f"it is of type {kind} with {len(node.inputs)} inputs")
    first, second = node.inputs
    # Tengine spreads the second operand over the first.
    if builder.is_constant(first) and pair.commutes:
        first, second = second, first
    _add_pair(builder, node, pair.onnx, first, second, swaps=pair.commutes)


@WRITERS.register(Elementwise)
def _write_elementwise(operation: Elementwise, step: Step, builder: TmFileBuilder) -> None:
    """Write two tensors, the second of which may be a constant or spread over the first."""
    pair = next((each for each in PAIRS if each.kind is operation.kind), None)
    if pair is None:
        raise builder.not_written(step)
    tensors = [tensor for tensor in step.inputs if tensor is not None]
    shapes = [
        builder.shape(tensor.value) if tensor.data is None else tensor.data.shape
        for tensor in tensors
    ]
    first, second = 0, 1
    # The smaller operand has to be the second; a difference or quotient cannot be turned round.
    smaller = tensors[0].is_constant or math.prod(shapes[0]) < math.prod(shapes[1])
    if smaller and pair.commutes and not tensors[1].is_constant:
        first, second = 1, 0
    value = builder.value(step, first)
    if len(shapes[first]) not in (3, 4):
        raise Unsupported(f"it joins tensors of {len(shapes[first])} dimensions; Tengine's 3, 4")
    _refuse_spread(operation.kind, builder, shapes[second], shapes[first])
    options = {
        "type": pair.theirs,
        "caffe_flavor": 0,
        "shift": 0.0,
        "power": 0.0,
        "scale": 0.0,
    }
    if tensors[second].is_constant:
        constant = builder.constant(step, second)
        inputs: list[Operand] = [value, builder.store(constant, constant.in_model)]
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
    # One number a channel is what the kernels spread, and of the first image only.
    if spread != channels or over[0] != 1:
        raise Unsupported(f"it joins {list(over)} and {list(shape)}")


@READERS.register("Maximum", "Minimum")
def _read_extreme(builder: OnnxBuilder, node: FileNode) -> None:
    """Read Maximum and Minimum of two inputs of one shape."""
    kind = "Max" if node.operator == "Maximum" else "Min"
    shapes = {builder.shape(index) for index in node.inputs}
    if len(node.inputs) != 2 or len(shapes) != 1:
        raise Unsupported(f"it takes {len(node.inputs)} inputs of shapes {sorted(shapes)[:4]}")
    _add_pair(builder, node, kind, *node.inputs, swaps=True)


def _add_pair(
    builder: OnnxBuilder, node: FileNode, op_type: str, first: int, second: int, *, swaps: bool
) -> None:
    """Add an operator of two inputs, the smaller of which is spread as Tengine's kernels do."""
    left = builder.activation(first)
    shape = builder.shapes[left]
    if builder.is_constant(second):
        right = builder.store(second, _spread_shape(builder.tensor(second).shape, shape))
    else:
        right = builder.activation(second)
        other = builder.shapes[right]
        if swaps and math.prod(other) > math.prod(shape):
            left, right, shape, other = right, left, other, shape
        if _spread_shape(other, shape) != other:
            raise Unsupported(f"it joins {list(shape)} and {list(other)}")
    builder.compute(node, op_type, [left, right], shape, output=node.outputs[0])


def _spread_shape(shape: Shape, over: Shape) -> Shape:
    """Return a shape with which numbers are spread over a larger tensor.

    One number goes everywhere, as many as there are channels go to those, as many as an image has
    pixels to these.

    Raises:
        Unsupported: The lengths do not fit so.
    """
    size = math.prod(shape)
    if size == math.prod(over):
        if shape != over:
            raise Unsupported(f"it joins {list(over)} and {list(shape)}")
        return shape
    if len(over) in (3, 4) and over[0] == 1:
        ones = (1,) * (len(over) - 2)
        # As many as channels are taken for those first, as Tengine does, also where rows are as
        # long.
        if size == over[1]:
            return (1, over[1], *ones)
    if size == 1:
        return (1,) * len(over)
    if len(over) == 4 and shape[-2:] == over[2:] and size == math.prod(over[2:]):
        return (1, 1, *over[2:])
    raise Unsupported(f"it joins {list(over)} and {list(shape)}")


@WRITERS.register(FloatNodes)
def _write_float_nodes(operation: FloatNodes, step: Step, builder: TmFileBuilder) -> None:
    raise Unsupported(operation.reason) if operation.reason else builder.not_written(step)


def _clamp(step: Step, builder: TmFileBuilder) -> None:
    """Write Relu or Clip; Tengine's int8 Clip must not make codes that wrap around."""
    operator, options = builder.clamp(step)
    before = builder.scales.of_activation(builder.value(step))
    after = builder.scales.of_activation(step.outputs[0].value)
    is_int8 = builder.scales.element is Element.INT8
    if operator == "Clip" and is_int8 and before is not None and after is not None:
        # The kernel casts what lies beyond 127 to int8; incoming codes reach no further.
        reach = 127 * float(before.scale[0])
        largest = max(min(reach, abs(options["min"])), min(reach, abs(options["max"])))
        if largest / float(after.scale[0]) >= _FULL_CODE:
            raise Unsupported(
                "its output has a smaller range, at which Tengine's int8 wraps around"
            )
    builder.add(step, operator, [builder.value(step)], options, clamps=False)
