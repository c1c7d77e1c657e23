"""Declares the operations of a program: one frozen dataclass each, its fields their options.

A `Step` of a program has one of these, with the tensors that it reads and writes; the integer
engine has a kernel for each, and formats write it. ``Pool(PoolKind.MAX, (2, 2), (2, 2), ((0, 0),
(0, 0)))`` is a MaxPool.

Data of spatial operations has its channels last (``[batch, *spatial, channels]``), the layout of
microcontroller and TFLite kernels, and the one in which a product over channels is one run of
memory. Weights of convolutions are ``[out, *kernel, in / groups]`` (OHWI).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.numerics.dynamic import DynamicQuantizer
from intact.ops.functions import Option, Unary
from intact.program.float_operations import FloatOperation
from intact.targets.float16 import Rounded

Pads: TypeAlias = tuple[tuple[int, int], ...]
"""Elements before and after, by axis."""


@dataclass(frozen=True)
class Bounds:
    """Real numbers that a result is clamped to on its way to the output: a fused activation.

    ``Bounds()`` clamps nothing, ``Bounds(0)`` is Relu, ``Bounds(0, 6)`` Relu6.
    """

    low: float = -np.inf
    high: float = np.inf


class Binary(enum.StrEnum):
    """Operations on two broadcast operands."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    SQUARED_DIFFERENCE = "squared_difference"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"


class Reduction(enum.StrEnum):
    """The number that the elements along axes are reduced to."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    L1 = "l1"
    """In float only, as are the next two."""
    L2 = "l2"
    PRODUCT = "product"


class PadMode(enum.StrEnum):
    """The elements that pads hold."""

    CONSTANT = "constant"
    EDGE = "edge"
    REFLECT = "reflect"


class PoolKind(enum.StrEnum):
    """The number that a window is reduced to."""

    AVERAGE = "average"
    MAX = "max"


class ResizeMode(enum.StrEnum):
    """The way in which an element between samples is computed."""

    NEAREST = "nearest"
    LINEAR = "linear"


RESIDUAL_SLOT = 3
"""Present where a convolution adds a tensor to its sums."""


@dataclass(frozen=True)
class Convolution:
    """Inputs: data ``[N, *S, C]``, weight ``[O, *K, C / groups]``, bias ``[O]`` or None.

    A fourth input, of the output's shape, is added as a real number before the result is clamped
    and rounded to codes: a residual, whose sum with the convolution exists nowhere else.
    ``keeps_residual``: it is needed afterwards, so that it cannot be added in place. Its sum is
    multiplied by the output's factor then, which in place is the reciprocal of a stored scale.
    """

    strides: tuple[int, ...]
    pads: Pads
    dilations: tuple[int, ...]
    groups: int = 1
    bounds: Bounds = Bounds()
    keeps_residual: bool = False


@dataclass(frozen=True)
class TransposedConvolution:
    """Inputs as of :class:`Convolution`; ``pads`` are cut off the full result.

    Along an axis the output has ``(in - 1) * stride + (k - 1) * dilation + 1 + output_padding``
    elements less the pads.
    """

    strides: tuple[int, ...]
    pads: Pads
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int = 1
    bounds: Bounds = Bounds()


@dataclass(frozen=True)
class FullyConnected:
    """Inputs: data ``[..., K]``, constant weight ``[O, K]``, bias ``[O]`` or None."""

    bounds: Bounds = Bounds()


@dataclass(frozen=True)
class DynamicQuantize:
    """Floats to codes by the scale that their range gives while the program runs.

    Outputs: the codes, plain integers of the smallest type; the scale, float32; the zero point, in
    the type of the codes. The last two have the shape that ``quantizer.params`` gives them.
    """

    quantizer: DynamicQuantizer


@dataclass(frozen=True)
class DynamicFullyConnected:
    """A dense layer of what `DynamicQuantize` gives, with floats as its result.

    Inputs: codes ``[..., K]``, scale, zero point, constant weight ``[O, K]``, bias of floats
    ``[O]`` or None. Computes ``float(sum) * (scale * weight scale) + bias`` in float32.
    """

    quantizer: DynamicQuantizer


@dataclass(frozen=True)
class BatchMatMul:
    """Product of two activations ``[..., M, K]`` and ``[..., K, N]``; leading axes broadcast."""

    bounds: Bounds = Bounds()


@dataclass(frozen=True)
class Elementwise:
    """Inputs: two operands that broadcast against each other."""

    kind: Binary
    bounds: Bounds = Bounds()


@dataclass(frozen=True)
class Function:
    """Input: one operand.

    ``options`` are those of the kind, in the order of its declaration; empty for the defaults.
    """

    kind: Unary
    options: tuple[Option, ...] = ()
    bounds: Bounds = Bounds()

    @property
    def named(self) -> dict[str, Option]:
        """The options by name."""
        defaults = self.kind.defaults
        given = (*self.options, *list(defaults.values())[len(self.options) :])
        return dict(zip(defaults, given, strict=True))

    def number(self, name: str) -> float:
        """Return an option that is a number."""
        return float(self.named[name])


@dataclass(frozen=True)
class PRelu:
    """Inputs: data, constant slope that broadcasts to it."""


@dataclass(frozen=True)
class Softmax:
    """``log`` makes it LogSoftmax."""

    axis: int
    log: bool = False


@dataclass(frozen=True)
class Pool:
    """Input: data ``[N, *S, C]``.

    Attributes:
        count_pads: An average divides by the whole window, pads included.
        added_by_ceil: How many elements of the pads behind each axis complete the last window,
            because the model rounds lengths up; None where it rounds down.
    """

    kind: PoolKind
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: Pads
    count_pads: bool = False
    bounds: Bounds = Bounds()
    added_by_ceil: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Reduce:
    """Input: data; ``axes`` are not negative, ascending."""

    kind: Reduction
    axes: tuple[int, ...]
    keep_dims: bool


@dataclass(frozen=True)
class ArgReduce:
    """Input: data; the place of the largest element along an axis, or of the smallest (MIN).

    Of equal elements it is the first. The result is whole numbers, also of codes.
    """

    kind: Reduction
    axis: int
    keep_dims: bool


@dataclass(frozen=True)
class TopK:
    """Input: data. Outputs: the ``count`` largest elements along an axis, sorted, and their places.

    Of equal elements the first stands first. The smallest ones (``largest`` is false) are taken of
    floats only.
    """

    axis: int
    count: int
    largest: bool = True


@dataclass(frozen=True)
class Concat:
    """Inputs: any number of operands."""

    axis: int


@dataclass(frozen=True)
class Pad:
    """Adds elements around every axis.

    Codes get the code that is next to ``value`` (`intact.program.forms.code_of`): of 0 the zero
    point. Other modes are in float only.
    """

    pads: Pads
    mode: PadMode = PadMode.CONSTANT
    value: float = 0.0


@dataclass(frozen=True)
class Reshape:
    """``shape`` has at most one -1."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Transpose:
    """Axis ``k`` of the output is axis ``permutation[k]`` of the input."""

    permutation: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """``data[starts:stops:steps]`` by axis with Python's meaning; None is an open end."""

    starts: tuple[int | None, ...]
    stops: tuple[int | None, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Split:
    """One output for each size, along one axis."""

    axis: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Gather:
    """Takes constant ``indices`` (int64, any shape, not negative) along an axis."""

    axis: int
    indices: np.ndarray


@dataclass(frozen=True)
class Lookup:
    """Inputs: data (a table, as a rule constant) and integer indices of any shape.

    Takes slices along an axis, as an embedding does; a negative index counts from the end. A table
    of codes in blocks gives the floats that its rows stand for.
    """

    axis: int


@dataclass(frozen=True)
class Tile:
    """Repeats by axis."""

    repeats: tuple[int, ...]


@dataclass(frozen=True)
class Expand:
    """Broadcasts to a shape; -1 keeps the input's length of that axis."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Resize:
    """Input: data ``[N, *S, C]``; ``sizes`` are the output's spatial lengths.

    Where an output element ``o`` samples the input: ``o * (in - 1) / (out - 1)`` with
    ``align_corners``, ``(o + 0.5) * in / out - 0.5`` with ``half_pixel``, else ``o * in / out``.
    Nearest takes the floor of that without ``half_pixel`` and ``align_corners``, and rounds half
    up otherwise, computed in float32. Linear samples no further out than the outermost elements.
    Integer kernels round: TFLite's every step between samples and so every weight to 10 bits
    behind the point, XNNPACK's the weights of float32 samples to 11.
    """

    mode: ResizeMode
    sizes: tuple[int, ...]
    align_corners: bool = False
    half_pixel: bool = False


@dataclass(frozen=True)
class DepthToSpace:
    """Input: data ``[N, H, W, C]``; depth is split as (block row, block column, channel)."""

    block: int


@dataclass(frozen=True)
class SpaceToDepth:
    """The inverse of :class:`DepthToSpace`."""

    block: int


@dataclass(frozen=True)
class Quantize:
    """Float to codes."""


@dataclass(frozen=True)
class Dequantize:
    """Codes to float."""


@dataclass(frozen=True)
class Requantize:
    """Codes to codes of another scale or zero point."""


@dataclass(frozen=True, eq=False)
class FloatNodes:
    """Nodes of the float model, run in float as they are, in the model's own layout.

    Attributes:
        nodes: The nodes, in topological order.
        inputs: The model's value that each input of the step stands for.
        outputs: The same for the outputs.
        functions: The functions of the model, which the nodes may call.
        reason: Why no operation stands for a node; "" if that was not tried, or there is none for
            its operator.
        float16: Names of the nodes that compute in float16.
        rounded: What the target's runtime rounds there.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    functions: tuple[ir.Function, ...] = ()
    reason: str = ""
    float16: frozenset[str] = frozenset()
    rounded: Rounded = Rounded.VALUES


Operation: TypeAlias = (
    Convolution
    | TransposedConvolution
    | FullyConnected
    | DynamicQuantize
    | DynamicFullyConnected
    | BatchMatMul
    | Elementwise
    | Function
    | PRelu
    | Softmax
    | Pool
    | Reduce
    | ArgReduce
    | TopK
    | Concat
    | Pad
    | Reshape
    | Transpose
    | Slice
    | Split
    | Gather
    | Lookup
    | Tile
    | Expand
    | Resize
    | DepthToSpace
    | SpaceToDepth
    | Quantize
    | Dequantize
    | Requantize
    | FloatNodes
    | FloatOperation
)

ELEMENTWISE = (Dequantize, Elementwise, Function, PRelu, Quantize, Requantize)
"""Operations of which a result depends on one element of each operand; these broadcast."""

MOVING = (
    Concat,
    DepthToSpace,
    Expand,
    Gather,
    Pad,
    Reshape,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    TopK,
    Transpose,
)
"""Operations of which results hold codes of the data and nothing else, beside places."""
