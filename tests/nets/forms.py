"""Rarer forms of operators, as makers of grown nets: what exporters write beside the usual.

Optional inputs and outputs, defaults, shared and computed constants, sizes computed from shapes,
half precision, recurrent states. A name is an operator's, with the form behind a slash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import TensorProto

from tests.nets.grown import NetBuilder, Tensor, UnfitError
from tests.nets.makers import Made, Maker

_FORMS: dict[str, Maker] = {}
FORMS: Mapping[str, Maker] = _FORMS


def _form(name: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        _FORMS[name] = function
        return function

    return register


def _image(x: Tensor) -> bool:
    return x.rank == 4


def _matrix(x: Tensor) -> bool:
    return x.rank >= 2


def _fixed(b: NetBuilder) -> None:
    if b.dynamic:
        raise UnfitError


# ---- sums of products ----------------------------------------------------------------------------


@_form("Conv/shared")
def _two_of_one_weight(b: NetBuilder) -> Made:
    x = b.pick(_image)
    channels = x.sizes[1]
    weight, bias = b.weight(channels, channels, 3, 3, fan=9 * channels), b.weight(channels)
    first = b.add("Conv", x, weight, bias, pads=[1] * 4)
    second = b.any_of(first, b.add("Relu", first))
    return [first, b.add("Conv", second, weight, b.any_of(bias, None), pads=[1] * 4)]


@_form("Conv/computed")
def _weight_that_is_computed(b: NetBuilder) -> Made:
    x = b.pick(_image)
    raw = b.weight(3, 3, x.sizes[1], 4, fan=9 * x.sizes[1], axis=3)
    weight = b.add("Transpose", raw, perm=[3, 2, 0, 1])
    if b.random.random() < 0.5:
        weight = b.add("Mul", weight, b.weight(4, 1, 1, 1))
    return b.add("Conv", x, weight, strides=[b.integer(1, 3), 1], pads=[1] * 4)


@_form("Conv/dynamic")
def _weight_that_varies(b: NetBuilder) -> Made:
    _fixed(b)
    x = b.pick(_image)
    weight = b.add("Reshape", b.add("GlobalAveragePool", x), b.constant(np.array([1, -1, 1, 1])))
    return b.add("Conv", x, weight)


@_form("ConvTranspose/sizes")
def _transposed_to_a_size(b: NetBuilder) -> Made:
    x = b.pick(_image)
    _, ins, height, width = x.sizes
    weight = b.weight(ins, 3, 3, 3, fan=ins * 4, axis=1)
    if b.random.random() < 0.5:
        sizes = [height * 2, width * 2]
        return b.add("ConvTranspose", x, weight, strides=[2, 2], output_shape=sizes)
    way = b.any_of("SAME_UPPER", "SAME_LOWER")
    return b.add("ConvTranspose", x, weight, strides=[2, 2], auto_pad=way)


@_form("Gemm/bare")
def _gemm_without_bias(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank == 2)
    if not b.dynamic and b.random.random() < 0.5:
        return b.add("Gemm", x, b.weight(1, 4), transA=1, alpha=b.any_of(1.0, 0.3))
    return b.add("Gemm", x, b.weight(x.sizes[1], 4, fan=x.sizes[1], axis=1))


@_form("MatMul/left")
def _constant_on_the_left(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank >= 3)
    return b.add("MatMul", b.weight(5, x.sizes[-2], fan=x.sizes[-2]), x)


@_form("MatMul/vector")
def _matrix_times_vector(b: NetBuilder) -> Made:
    x = b.pick(_matrix)
    return b.add("MatMul", x, b.weight(x.sizes[-1], fan=x.sizes[-1]))


@_form("LSTM/state")
def _recurrent_with_state(b: NetBuilder) -> Made:
    """States that are given, or that are read; backwards; other forms of a GRU."""
    x = b.pick(lambda each: each.rank == 3)
    name, gates = b.any_of(("LSTM", 4), ("GRU", 3))
    turned = b.add("Transpose", x, perm=[1, 0, 2])
    size = x.sizes[2]
    parts: list[Tensor | None] = [
        b.weight(1, gates * 4, size, fan=size),
        b.weight(1, gates * 4, 4, fan=4),
        b.any_of(None, b.weight(1, 8 * gates, fan=4)),
    ]
    more = {"linear_before_reset": b.integer(0, 1)} if name == "GRU" else {}
    if not b.dynamic and b.random.random() < 0.5:
        parts += [None, b.weight(1, 1, 4)]
    way = b.any_of("forward", "reverse")
    count = 2 if b.random.random() < 0.6 else 1
    outs = b.add_all(name, count, turned, *parts, hidden_size=4, direction=way, **more)
    last = [b.add("Transpose", b.add("Squeeze", outs[0], axes=[1]), perm=[1, 0, 2])]
    if count > 1:
        last.append(b.add("Squeeze", outs[1], axes=[0]))
    return last


@_form("Attention/written")
def _attention(b: NetBuilder) -> Made:
    """Attention as exporters write it out, with a mask or without."""
    x = b.pick(lambda each: each.rank == 3)
    size = x.sizes[2]
    q, k, v = (b.add("MatMul", x, b.weight(size, 4, fan=size, axis=1)) for _ in range(3))
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 2, 1]))
    scores = b.add(b.any_of("Mul", "Div"), scores, b.constant(np.float32(b.any_of(0.5, 2.0))))
    if b.random.random() < 0.5:
        steps = x.sizes[1]
        mask = np.where(np.tri(steps), 0, b.any_of(-1e4, -1e9, -3.4e38)).astype(np.float32)
        scores = b.add("Add", scores, b.constant(mask))
    return b.add("MatMul", b.add("Softmax", scores, axis=2), v)


# ---- pools, reductions, norms --------------------------------------------------------------------


@_form("MaxPool/indices")
def _pool_with_places(b: NetBuilder) -> Made:
    x = b.pick(_image)
    more = {"dilations": [1, 2]} if b.opset >= 10 and b.random.random() < 0.5 else {}
    outs = b.add_all("MaxPool", 2, x, kernel_shape=[2, 2], strides=[2, 1], **more)
    return outs[0]


@_form("AveragePool/large")
def _window_of_the_whole(b: NetBuilder) -> Made:
    x = b.pick(_image)
    kernel = list(x.sizes[2:])
    return b.add(b.any_of("AveragePool", "MaxPool"), x, kernel_shape=kernel)


@_form("ReduceMean/all")
def _all_axes(b: NetBuilder) -> Made:
    name = b.any_of("ReduceMean", "ReduceSum", "ReduceMax")
    if b.opset >= 18 and b.random.random() < 0.3:
        return b.add(name, b.pick(_matrix), noop_with_empty_axes=1)
    _fixed(b)
    return b.add(name, b.pick(), keepdims=b.integer(0, 1))


@_form("Softmax/default")
def _default_axis(b: NetBuilder) -> Made:
    return b.add(b.any_of("Softmax", "LogSoftmax"), b.pick(_matrix))


@_form("LayerNormalization/written")
def _norm_written_out(b: NetBuilder) -> Made:
    x = b.pick(_matrix)
    mean = b.add("ReduceMean", x, axes=[x.rank - 1], keepdims=1)
    centred = b.add("Sub", x, mean)
    squares = b.any_of(
        b.add("Mul", centred, centred), b.add("Pow", centred, b.constant(np.float32(2)))
    )
    variance = b.add("ReduceMean", squares, axes=[x.rank - 1], keepdims=1)
    spread = b.add("Sqrt", b.add("Add", variance, b.constant(np.float32(1e-5))))
    return b.add("Mul", b.add("Div", centred, spread), b.weight(x.sizes[-1]))


@_form("Sigmoid/gated")
def _gated(b: NetBuilder) -> Made:
    """Squeeze and excite; x * sigmoid(x); GELU with tanh or Erf."""
    x = b.pick(_image)
    if b.random.random() < 0.4:
        inner = b.add("Erf", b.add("Div", x, b.constant(np.float32(np.sqrt(2)))))
        half = b.add("Mul", x, b.add("Add", inner, b.constant(np.float32(1))))
        return b.add("Mul", half, b.constant(np.float32(0.5)))
    if b.random.random() < 0.4:
        return b.add("Mul", x, b.add(b.any_of("Sigmoid", "HardSigmoid"), x))
    channels = x.sizes[1]
    pooled = b.add("Conv", b.add("GlobalAveragePool", x), b.weight(channels, channels, 1, 1))
    return b.add("Mul", x, b.add("Sigmoid", pooled))


# ---- values moved --------------------------------------------------------------------------------


@_form("Shape/reshape")
def _size_that_is_computed(b: NetBuilder) -> Made:
    x = b.pick(_matrix)
    batch = b.add("Gather", b.add("Shape", x), b.constant(np.array([0])), axis=0)
    sizes = b.add("Concat", batch, b.constant(np.array([-1])), axis=0)
    # ONNX does not infer the shape: what follows reads a tensor that has one.
    made = b.add_unshaped("Reshape", x, sizes, shape=(x.shape[0], int(np.prod(x.sizes[1:]))))
    return b.add("Relu", made) if b.random.random() < 0.5 else made


@_form("Resize/sizes")
def _resize_to_sizes(b: NetBuilder) -> Made:
    x = b.pick(_image)
    if b.opset < 11 or b.dynamic:
        raise UnfitError
    sizes = b.constant(np.array([1, x.sizes[1], b.any_of(4, 8, 16), b.any_of(3, 12)]))
    empty = b.constant(np.zeros(0, np.float32)) if b.opset < 13 else None
    mode = b.any_of("nearest", "linear", "cubic")
    ways = ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
    more = {"nearest_mode": b.any_of("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")}
    how = {"coordinate_transformation_mode": b.any_of(*ways), **(more if mode[0] == "n" else {})}
    return b.add("Resize", x, empty, empty, sizes, mode=mode, **how)


@_form("Pad/axes")
def _pad_of_some_axes(b: NetBuilder) -> Made:
    x = b.pick(_matrix)
    if b.opset < 18:
        raise UnfitError
    axis = b.axis(x)
    mode = b.any_of("constant", "edge", "wrap" if b.opset >= 19 else "reflect")
    return b.add("Pad", x, mode=mode, pads=[1, 1], axes=[axis])


@_form("Slice/several")
def _slice_of_several_axes(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank >= 3)
    if b.opset < 10:
        raise UnfitError
    axes = [1, x.rank - 1]
    return b.add("Slice", x, starts=[-2, 0], ends=[100, -1], axes=axes, steps=[1, b.integer(1, 2)])


@_form("Split/equal")
def _equal_parts(b: NetBuilder) -> Made:
    x = b.pick(_matrix)
    axis = b.axis(x)
    if x.sizes[axis] % 2:
        raise UnfitError
    more = {"num_outputs": 2} if b.opset >= 18 else {}
    return b.add_all("Split", 2, x, axis=axis, **more)


@_form("Transpose/default")
def _axes_turned(b: NetBuilder) -> Made:
    _fixed(b)
    return b.add("Transpose", b.pick(_matrix))


@_form("Concat/same")
def _same_twice(b: NetBuilder) -> Made:
    x = b.pick(_matrix)
    return b.add("Concat", x, b.any_of(x, b.add("Neg", x)), x, axis=b.axis(x))


@_form("ScatterND/constant")
def _numbers_set(b: NetBuilder) -> Made:
    _fixed(b)
    x = b.pick(_matrix)
    at = b.constant(np.array([[0] * x.rank], np.int64))
    return b.add("ScatterND", x, at, b.weight(1))


@_form("Gather/table")
def _table(b: NetBuilder) -> Made:
    """Positions of the largest look up rows of a table."""
    x = b.pick(_matrix)
    at = b.add("ArgMax", x, axis=x.rank - 1, keepdims=0)
    return b.add("Gather", b.weight(x.sizes[-1], 4), at)


@_form("ShuffleNet/shuffle")
def _shuffled_channels(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank == 4 and each.sizes[1] % 2 == 0)
    _, channels, height, width = x.sizes
    first = 0 if b.dynamic else 1
    apart = b.add("Reshape", x, b.constant(np.array([first, 2, channels // 2, height, width])))
    turned = b.add("Transpose", apart, perm=[0, 2, 1, 3, 4])
    return b.add("Reshape", turned, b.constant(np.array([first, channels, height, width])))


# ---- other types ---------------------------------------------------------------------------------


@_form("Cast/half")
def _in_half_precision(b: NetBuilder) -> Made:
    x = b.add("Cast", b.pick(), to=TensorProto.FLOAT16)
    half = b.constant(np.float16(b.any_of(0.5, 2.0)))
    return b.add("Cast", b.add("Mul", x, half), to=TensorProto.FLOAT)


@_form("And/mask")
def _conditions_joined(b: NetBuilder) -> Made:
    x = b.pick()
    low = b.add("Greater", x, b.constant(np.float32(-0.5)))
    high = b.add("Less", x, b.constant(np.float32(0.5)))
    mask = b.add(b.any_of("And", "Or", "Xor"), low, high)
    if b.random.random() < 0.4:
        mask = b.add("Not", mask)
    fill = b.constant(np.float32(b.any_of(0.0, -1e9, 1.0)))
    return b.add("Where", mask, *b.any_of((x, fill), (fill, x)))


@_form("Clip/computed")
def _computed_ends(b: NetBuilder) -> Made:
    x = b.pick()
    if b.opset < 11:
        raise UnfitError
    top = b.add("Add", b.constant(np.float32(5)), b.constant(np.float32(1)))
    return b.add("Clip", b.add("Add", x, b.constant(np.float32(3))), b.constant(np.float32(0)), top)


@_form("Dropout/mask")
def _dropped(b: NetBuilder) -> Made:
    return b.add_all("Dropout", 2, b.pick())[0]


@_form("Max/many")
def _many(b: NetBuilder) -> Made:
    x = b.pick()
    return b.add(b.any_of("Max", "Min", "Sum"), x, b.add("Abs", x), b.constant(np.float32(0.1)))
