"""One-step programs of every operation that TFLite has, with int8 codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from msgspec import structs

from intact.ops import functions
from intact.ops.functions import Unary
from intact.program import Array, Encoding, Program, Shape, Step, Tensor
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Bounds,
    Concat,
    Convolution,
    DepthToSpace,
    Elementwise,
    Expand,
    FullyConnected,
    Function,
    Gather,
    Operation,
    Pad,
    Pads,
    Pool,
    PoolKind,
    PRelu,
    Reduce,
    Reduction,
    Requantize,
    Reshape,
    Resize,
    ResizeMode,
    Slice,
    Softmax,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
    TransposedConvolution,
)
from intact.targets import Arithmetic, FixedPoint, Functions, Product
from tests.program.one_step import int8, int32, one_step

ARITHMETIC = Arithmetic(requantize=FixedPoint(Product.DOUBLE))

X = int8(0.05, 3)
OUT = int8(0.09, -11)
FREE = Bounds()
RELU = Bounds(0)
RELU6 = Bounds(0, 6)


def _codes(shape: Sequence[int], low: int = -127, high: int = 127) -> Array:
    seed = sum(n * 31**k for k, n in enumerate(shape)) % 2**32
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(np.int8)


def weighted(
    operation: Operation,
    data: Shape,
    weight: tuple[int, ...],
    output: Shape,
    *,
    per_channel: bool = True,
    bias: bool = True,
) -> Program:
    """Return a convolution or product with codes that a seed chose."""
    count = weight[0]
    scales = np.float32(0.002) * (1 + np.arange(count, dtype=np.float32) / count)
    encoding = int8(scales, axis=0) if per_channel else int8(np.float32(0.003))
    products = np.float32(X.scale) * encoding.scale
    constants: list[Any] = [(_codes(weight), encoding)]
    if bias:
        values = np.random.default_rng(count).integers(-9999, 9999, count).astype(np.int32)
        constants.append((values, int32(products, axis=0 if per_channel else None)))
    return one_step(operation, ARITHMETIC, [(data, X), *constants], [(output, OUT)])


def convolution(
    data: Shape,
    weight: tuple[int, ...],
    output: Shape,
    strides: int = 1,
    pads: tuple[int, int] = (0, 0),
    *,
    dilations: int = 1,
    groups: int = 1,
    bounds: Bounds = FREE,
    bias: bool = True,
) -> Program:
    """Return a convolution that is alike along every spatial axis."""
    axes = len(weight) - 2
    operation = Convolution((strides,) * axes, (pads,) * axes, (dilations,) * axes, groups, bounds)
    return weighted(operation, data, weight, output, bias=bias)


def transposed(
    data: Shape,
    weight: tuple[int, ...],
    output: Shape,
    strides: int,
    pads: tuple[int, int],
    *,
    output_padding: int = 0,
    dilations: int = 1,
    groups: int = 1,
    bounds: Bounds = FREE,
) -> Program:
    """Return a transposed convolution that is alike along every spatial axis."""
    axes = len(weight) - 2
    operation = TransposedConvolution(
        (strides,) * axes,
        (pads,) * axes,
        (dilations,) * axes,
        (output_padding,) * axes,
        groups,
        bounds,
    )
    return weighted(operation, data, weight, output)


def on_data(
    operation: Operation,
    shapes: Shape | Sequence[Shape],
    outputs: Shape | Sequence[Shape],
    encoding: Encoding = X,
    result: Encoding | None = None,
) -> Program:
    """Return an operation on activations; ``result`` is that of the data if none is given."""
    return one_step(
        operation,
        ARITHMETIC,
        [(shape, encoding) for shape in _several(shapes)],
        [(shape, result or encoding) for shape in _several(outputs)],
    )


def _several(shapes: Shape | Sequence[Shape]) -> list[Shape]:
    if shapes and isinstance(shapes[0], tuple):
        return list(cast("Sequence[Shape]", shapes))
    return [cast("Shape", shapes)]


def _pool(
    kind: PoolKind, data: Shape, output: Shape, kernel: int, stride: int, pads: Pads, **more: Any
) -> Program:
    axes = len(data) - 2
    return on_data(Pool(kind, (kernel,) * axes, (stride,) * axes, pads, **more), data, output)


def _resize(data: Shape, mode: ResizeMode, sizes: tuple[int, ...], **how: bool) -> Program:
    return on_data(Resize(mode, sizes, **how), data, (data[0], *sizes, data[-1]))


def _binary(kind: Binary, other: Shape = (2, 3, 4), **more: Any) -> Program:
    b, out = int8(0.031, -7), OUT
    if kind in {Binary.MINIMUM, Binary.MAXIMUM}:
        b = out = X
    if kind is Binary.SQUARED_DIFFERENCE:
        out = int8(0.4, -128)
    return one_step(Elementwise(kind, **more), ARITHMETIC, [((2, 3, 4), X), (other, b)],
                    [((2, 3, 4), out)])  # fmt: skip


def _unary(kind: Unary, data: Encoding = X, out: Encoding = OUT, **more: Any) -> Program:
    return on_data(Function(kind, **more), (2, 128), (2, 128), data, out)


AVERAGE, MAX = PoolKind.AVERAGE, PoolKind.MAX
NEAREST, LINEAR = ResizeMode.NEAREST, ResizeMode.LINEAR
POSITIVE = int8(0.05, -128)
SIGMOID, TANH, LOGARITHM = int8(1 / 256, -128), int8(1 / 128), int8(1 / 16, 127)
ALL3 = (None, None, None)

CASES: dict[str, Program] = {
    "conv": convolution((1, 6, 7, 3), (4, 3, 3, 3), (1, 4, 5, 4)),
    "conv_same": convolution((1, 6, 7, 3), (4, 3, 3, 3), (1, 6, 7, 4), pads=(1, 1)),
    "conv_no_bias": convolution((1, 6, 7, 3), (4, 1, 1, 3), (1, 6, 7, 4), bias=False),
    "conv_stride_pads_before": convolution((1, 6, 8, 3), (4, 3, 3, 3), (1, 3, 4, 4), 2, (1, 1)),
    "conv_stride_same": convolution((1, 7, 9, 3), (4, 3, 3, 3), (1, 4, 5, 4), 2, (1, 1)),
    "conv_same_upper": convolution((1, 6, 8, 3), (4, 3, 3, 3), (1, 3, 4, 4), 2, (0, 1)),
    "conv_unused_pads": convolution((1, 6, 8, 3), (4, 3, 3, 3), (1, 3, 4, 4), 2, (0, 2)),
    "conv_dilated": convolution((1, 9, 9, 3), (4, 3, 3, 3), (1, 5, 5, 4), dilations=2),
    "conv_dilated_same": convolution(
        (1, 9, 9, 3), (4, 3, 3, 3), (1, 9, 9, 4), pads=(2, 2), dilations=2
    ),
    "conv_relu": convolution((1, 5, 5, 2), (3, 3, 3, 2), (1, 3, 3, 3), bounds=RELU),
    "conv_relu6": convolution((1, 5, 5, 2), (3, 3, 3, 2), (1, 3, 3, 3), bounds=RELU6),
    "conv_n1_to_1": convolution((1, 5, 5, 2), (3, 3, 3, 2), (1, 3, 3, 3), bounds=Bounds(-1, 1)),
    "conv_clip": convolution((1, 5, 5, 2), (3, 3, 3, 2), (1, 3, 3, 3), bounds=Bounds(-2, 3.5)),
    "conv_grouped": convolution((1, 5, 6, 4), (6, 3, 3, 2), (1, 5, 6, 6), pads=(1, 1), groups=2),
    "conv_1d": convolution((1, 9, 3), (4, 3, 3), (1, 5, 4), 2, (1, 1)),
    "conv_1d_asymmetric": convolution((1, 9, 3), (4, 3, 3), (1, 9, 4), 1, (2, 0)),
    "depthwise": convolution((1, 6, 7, 3), (3, 3, 3, 1), (1, 6, 7, 3), pads=(1, 1), groups=3),
    "depthwise_stride": convolution((1, 6, 8, 3), (3, 3, 3, 1), (1, 3, 4, 3), 2, (1, 1), groups=3),
    "depthwise_twice": convolution(
        (1, 6, 7, 3), (6, 3, 3, 1), (1, 6, 7, 6), pads=(1, 1), groups=3, bounds=RELU6
    ),
    "depthwise_dilated": convolution(
        (1, 8, 8, 3), (3, 3, 3, 1), (1, 8, 8, 3), pads=(2, 2), groups=3, dilations=2
    ),
    "depthwise_1d": convolution((1, 9, 3), (3, 3, 1), (1, 9, 3), pads=(1, 1), groups=3),
    "transposed": transposed((1, 3, 4, 3), (2, 2, 2, 3), (1, 6, 8, 2), 2, (0, 0)),
    "transposed_valid": transposed((1, 3, 4, 3), (2, 3, 3, 3), (1, 7, 9, 2), 2, (0, 0)),
    "transposed_same": transposed((1, 3, 4, 3), (2, 4, 4, 3), (1, 6, 8, 2), 2, (1, 1)),
    "transposed_same_upper": transposed((1, 3, 4, 3), (2, 3, 3, 3), (1, 6, 8, 2), 2, (0, 1)),
    "transposed_before": transposed((1, 3, 4, 3), (2, 3, 3, 3), (1, 6, 8, 2), 2, (1, 0)),
    "transposed_cut": transposed((1, 3, 4, 3), (2, 3, 3, 3), (1, 5, 7, 2), 2, (1, 1)),
    "transposed_padded": transposed(
        (1, 3, 4, 3), (2, 3, 3, 3), (1, 6, 8, 2), 2, (1, 1), output_padding=1
    ),
    "transposed_relu": transposed(
        (1, 3, 4, 3), (2, 2, 2, 3), (1, 6, 8, 2), 2, (0, 0), bounds=RELU
    ),
    "transposed_grouped": transposed(
        (1, 3, 4, 4), (6, 2, 2, 2), (1, 6, 8, 6), 2, (0, 0), groups=2
    ),
    "transposed_depthwise": transposed(
        (1, 3, 4, 3), (3, 4, 4, 1), (1, 6, 8, 3), 2, (1, 1), groups=3
    ),
    "transposed_dilated": transposed(
        (1, 3, 4, 3), (2, 2, 2, 3), (1, 7, 9, 2), 2, (0, 0), dilations=2
    ),
    "transposed_1d": transposed((1, 5, 3), (2, 4, 3), (1, 10, 2), 2, (1, 1)),
    "fully_connected": weighted(
        FullyConnected(), (2, 7), (5, 7), (2, 5), per_channel=False
    ),
    "fully_connected_relu": weighted(
        FullyConnected(RELU), (2, 7), (5, 7), (2, 5), per_channel=False
    ),
    "fully_connected_per_channel": weighted(FullyConnected(), (2, 7), (5, 7), (2, 5)),
    "fully_connected_3d": weighted(
        FullyConnected(), (2, 3, 7), (5, 7), (2, 3, 5), per_channel=False, bias=False
    ),
    "batch_matmul": one_step(
        BatchMatMul(), ARITHMETIC, [((2, 3, 5), X), ((2, 5, 4), int8(0.02, 5))],
        [((2, 3, 4), OUT)],
    ),
    "batch_matmul_relu6": one_step(
        BatchMatMul(RELU6), ARITHMETIC, [((2, 3, 5), X), ((2, 5, 4), int8(0.02, 5))],
        [((2, 3, 4), OUT)],
    ),
    "batch_matmul_broadcast": one_step(
        BatchMatMul(), ARITHMETIC, [((2, 3, 4, 5), X), ((1, 3, 5, 4), int8(0.02, 5))],
        [((2, 3, 4, 4), OUT)],
    ),
    "add": _binary(Binary.ADD),
    "add_relu": _binary(Binary.ADD, bounds=RELU),
    "add_clip": _binary(Binary.ADD, bounds=Bounds(high=2)),
    "add_broadcast": _binary(Binary.ADD, (1, 4)),
    "add_row": _binary(Binary.ADD, (4,)),
    "add_constant": one_step(
        Elementwise(Binary.ADD), ARITHMETIC,
        [((2, 3, 4), X), (_codes((4,), -128), int8(0.02, 9))], [((2, 3, 4), OUT)],
    ),
    "sub": _binary(Binary.SUB),
    "sub_relu6": _binary(Binary.SUB, bounds=RELU6),
    "mul": _binary(Binary.MUL),
    "mul_scalar": one_step(
        Elementwise(Binary.MUL), ARITHMETIC,
        [((2, 3, 4), X), (np.asarray(77, np.int8), int8(0.02, 9))], [((2, 3, 4), OUT)],
    ),
    "squared_difference": _binary(Binary.SQUARED_DIFFERENCE),
    "minimum": _binary(Binary.MINIMUM),
    "maximum": _binary(Binary.MAXIMUM, (3, 1)),
    "relu": _unary(functions.clamp, bounds=RELU),
    "relu_same": _unary(functions.clamp, out=X, bounds=RELU),
    "relu6": _unary(functions.clamp, bounds=RELU6),
    "relu_n1_to_1": _unary(functions.clamp, bounds=Bounds(-1, 1)),
    "relu_0_to_1": _unary(functions.clamp, bounds=Bounds(0, 1)),
    "clip": _unary(functions.clamp, bounds=Bounds(-1.5, 2.5)),
    "clip_same": _unary(functions.clamp, out=X, bounds=Bounds(-1.5, 2.5)),
    "clip_below": _unary(functions.clamp, out=X, bounds=Bounds(-1.5)),
    "leaky_relu": _unary(functions.leaky_relu, options=(0.1,)),
    "sigmoid": _unary(functions.sigmoid, out=SIGMOID),
    "tanh": _unary(functions.tanh, out=TANH),
    "hard_swish": _unary(functions.hard_swish),
    "gelu": _unary(functions.gelu),
    "gelu_tanh": _unary(functions.gelu, options=("tanh",)),
    "elu": _unary(functions.elu, options=(1.0,)),
    "elu_looked_up": one_step(
        Function(functions.elu, (1.0,)), structs.replace(ARITHMETIC, functions=Functions.TABLE),
        [((2, 128), X)], [((2, 128), OUT)],
    ),
    "elu_lower": _unary(functions.elu, options=(0.5,), bounds=Bounds(-0.3)),
    "elu_flat": _unary(functions.elu, options=(0.0,)),
    "sqrt of codes": _unary(functions.sqrt, POSITIVE),
    "reciprocal of codes": _unary(functions.reciprocal, int8(0.05, -129), int8(0.02, -128)),
    "mish": _unary(functions.mish),
    "softplus": _unary(functions.softplus),
    "rsqrt": _unary(functions.rsqrt, POSITIVE, int8(0.02, -128)),
    "exp": _unary(functions.exp, int8(0.02, 3), int8(0.05, -128)),
    "log": _unary(functions.log, POSITIVE, int8(0.04, 40)),
    "abs": _unary(functions.absolute, out=int8(0.06, -128)),
    "prelu": one_step(
        PRelu(), ARITHMETIC,
        [((1, 4, 5, 3), X), (_codes((1, 1, 3)), int8(0.004))], [((1, 4, 5, 3), OUT)],
    ),
    "softmax": on_data(Softmax(-1), (2, 10), (2, 10), X, SIGMOID),
    "softmax_4d": on_data(Softmax(3), (1, 2, 3, 5), (1, 2, 3, 5), X, SIGMOID),
    "softmax_middle": on_data(Softmax(1), (2, 5, 3), (2, 5, 3), X, SIGMOID),
    "log_softmax": on_data(Softmax(1, log=True), (2, 10), (2, 10), X, LOGARITHM),
    "average_pool": _pool(AVERAGE, (1, 6, 7, 3), (1, 3, 3, 3), 2, 2, ((0, 0), (0, 0))),
    "average_pool_same": _pool(AVERAGE, (1, 6, 7, 3), (1, 6, 7, 3), 3, 1, ((1, 1), (1, 1))),
    "average_pool_counting": _pool(
        AVERAGE, (1, 6, 7, 3), (1, 6, 7, 3), 3, 1, ((1, 1), (1, 1)), count_pads=True
    ),
    "average_pool_before": _pool(AVERAGE, (1, 6, 8, 3), (1, 3, 4, 3), 3, 2, ((1, 0), (1, 0))),
    "average_pool_behind": _pool(AVERAGE, (2, 10, 7, 3), (2, 6, 4, 3), 3, 2, ((1, 2), (1, 1))),
    "average_pool_wide": _pool(
        AVERAGE, (1, 9, 9, 2), (1, 11, 11, 2), 4, 1, ((3, 2), (2, 3)), bounds=Bounds(0)
    ),
    "average_pool_border": _pool(AVERAGE, (1, 3, 3, 2), (1, 1, 1, 2), 3, 3, ((1, 0), (2, 0))),
    "average_pool_1d_behind": _pool(AVERAGE, (1, 8, 3), (1, 3, 3), 3, 3, ((0, 1),)),
    "average_pool_1d": _pool(AVERAGE, (1, 8, 3), (1, 4, 3), 2, 2, ((0, 0),)),
    "max_pool": _pool(MAX, (1, 6, 7, 3), (1, 3, 3, 3), 2, 2, ((0, 0), (0, 0))),
    "max_pool_same": _pool(MAX, (1, 7, 7, 3), (1, 4, 4, 3), 3, 2, ((1, 1), (1, 1))),
    "max_pool_before": _pool(MAX, (1, 6, 8, 3), (1, 3, 4, 3), 3, 2, ((1, 0), (1, 0))),
    "max_pool_corner": _pool(MAX, (1, 6, 8, 3), (1, 4, 5, 3), 2, 2, ((1, 1), (1, 1))),
    "max_pool_relu": _pool(
        MAX, (1, 6, 7, 3), (1, 3, 3, 3), 2, 2, ((0, 0), (0, 0)), bounds=RELU
    ),
    "max_pool_1d": _pool(MAX, (1, 8, 3), (1, 4, 3), 2, 2, ((0, 0),)),
    "mean": on_data(Reduce(Reduction.MEAN, (1, 2), True), (2, 5, 7, 3), (2, 1, 1, 3), X, OUT),
    "mean_flat": on_data(Reduce(Reduction.MEAN, (1, 2), False), (2, 5, 7, 3), (2, 3), X, OUT),
    "mean_last": on_data(Reduce(Reduction.MEAN, (2,), True), (2, 5, 7), (2, 5, 1), X, OUT),
    "sum": on_data(Reduce(Reduction.SUM, (1,), False), (2, 5, 7), (2, 7), X, int8(0.2, 4)),
    "reduce_max": on_data(Reduce(Reduction.MAX, (1, 2), False), (2, 5, 7, 3), (2, 3)),
    "reduce_min": on_data(Reduce(Reduction.MIN, (2,), True), (2, 5, 7), (2, 5, 1)),
    "concat": on_data(Concat(2), [(2, 3, 4), (2, 3, 1)], (2, 3, 5)),
    "concat_of_many": on_data(Concat(1), [(2, 1 + k % 2, 3) for k in range(23)], (2, 34, 3)),
    "concat_rescaled": one_step(
        Concat(1), ARITHMETIC, [((2, 3), X), ((2, 4), OUT), ((2, 1), int8(0.1))], [((2, 8), OUT)],
    ),
    "pad": on_data(Pad(((0, 0), (1, 2), (0, 3))), (2, 3, 4), (2, 6, 7)),
    "reshape": on_data(Reshape((2, -1)), (2, 3, 4), (2, 12)),
    "transpose": on_data(Transpose((0, 3, 1, 2)), (2, 3, 4, 5), (2, 5, 3, 4)),
    "slice": on_data(Slice((0, 1, None), (2, None, -1), (1, 2, 1)), (2, 5, 6), (2, 2, 5)),
    "slice_reversed": on_data(Slice((None, None), ALL3[:2], (1, -1)), (2, 5), (2, 5)),
    "slice_reversed_part": on_data(Slice((None, -2), (None, 0), (1, -2)), (2, 7), (2, 3)),
    "split": on_data(Split(1, (2, 2)), (2, 4, 3), [(2, 2, 3), (2, 2, 3)]),
    "split_unequal": on_data(Split(2, (1, 3, 2)), (2, 2, 6), [(2, 2, 1), (2, 2, 3), (2, 2, 2)]),
    "gather": on_data(Gather(1, np.array([[2, 0], [1, 2]])), (2, 3, 4), (2, 2, 2, 4)),
    "gather_one": on_data(Gather(1, np.array(2)), (2, 3, 4), (2, 4)),
    "tile": on_data(Tile((1, 2, 3)), (2, 3, 4), (2, 6, 12)),
    "tile_often": on_data(Tile((1, 23, 2)), (2, 3, 4), (2, 69, 8)),
    "tile_once": on_data(Tile((1, 1, 1)), (2, 3, 4), (2, 3, 4)),
    "expand": on_data(Expand((2, 3, 4)), (3, 1), (2, 3, 4)),
    "expand_batch": on_data(Expand((-1, 3, 4)), (None, 1, 4), (None, 3, 4)),
    "resize_nearest": _resize((1, 3, 4, 2), NEAREST, (6, 8)),
    "resize_nearest_half": _resize((1, 3, 4, 2), NEAREST, (7, 5), half_pixel=True),
    "resize_nearest_corners": _resize((1, 3, 4, 2), NEAREST, (7, 5), align_corners=True),
    "resize_nearest_1d": _resize((1, 4, 2), NEAREST, (8,)),
    "resize_linear": _resize((1, 3, 4, 2), LINEAR, (6, 8)),
    "resize_linear_half": _resize((1, 3, 4, 2), LINEAR, (7, 5), half_pixel=True),
    "resize_linear_corners": _resize((1, 3, 4, 2), LINEAR, (7, 5), align_corners=True),
    "depth_to_space": on_data(DepthToSpace(2), (1, 2, 3, 8), (1, 4, 6, 2)),
    "space_to_depth": on_data(SpaceToDepth(2), (1, 4, 6, 2), (1, 2, 3, 8)),
    "requantize": on_data(Requantize(), (2, 50), (2, 50), X, OUT),
}  # fmt: skip

CODES_ONLY = ("mish", "requantize", "softplus")
"""Cases that TFLite has no operator of floats for."""

FLOAT_ONLY: dict[str, Program] = {
    "div": _binary(Binary.DIV),
    "sqrt": _unary(functions.sqrt, POSITIVE),
    "neg": _unary(functions.negative),
    "reciprocal": _unary(functions.reciprocal, int8(0.05, -129)),
}


def as_float(program: Program) -> Program:
    """Return the program with float tensors throughout."""
    (step,) = program.steps

    def stripped(tensor: Tensor) -> Tensor:
        if tensor.data is None or tensor.encoding is None:
            return replace(tensor, encoding=None)
        data = real(tensor.encoding, tensor.data).astype(np.float32)
        return replace(tensor, encoding=None, data=data)

    inputs = tuple(stripped(each) if each else None for each in step.inputs)
    outputs = tuple(stripped(each) for each in step.outputs)
    step = Step(step.name, step.operation, inputs, outputs, step.arithmetic)
    activations = {each.name: each for each in step.activations}
    return Program(activations, {each.name: each for each in outputs}, (step,))


def real(encoding: Encoding, codes: Array) -> Array:
    """Return what codes stand for, in float64."""
    shape = [1] * codes.ndim
    if encoding.axis is not None:
        shape[encoding.axis] = -1
    scale = encoding.scale.astype(np.float64).reshape(shape if encoding.axis is not None else ())
    return (codes - encoding.zero_point.reshape(scale.shape)) * scale


def codes_for(program: Program, seed: int = 0) -> dict[str, Array]:
    """Return codes for every input of a program, of all values."""
    generator = np.random.default_rng(seed)
    return {
        name: generator.integers(-128, 128, [2 if n is None else n for n in tensor.shape]).astype(
            np.int8
        )
        for name, tensor in program.inputs.items()
    }
