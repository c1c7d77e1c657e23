"""What a step of a grown net can be: one maker an operator, in the form that each opset has of it.

A maker adds nodes and returns the tensors that later steps may read. Whether an argument is an
attribute or an input follows from the opset's own schema (`NetBuilder.add`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from tests.nets.grown import NetBuilder, Tensor, UnfitError

Made = Tensor | Sequence[Tensor]
Maker = Callable[[NetBuilder], Made]

_MAKERS: dict[str, Maker] = {}
MAKERS: Mapping[str, Maker] = _MAKERS
COMMON = (
    *("Conv", "Conv", "Gemm", "MatMul", "Add", "Concat", "Relu", "BatchNormalization", "Reshape"),
) * 3
"""What networks mostly consist of: drawn more often."""


def _maker(*names: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        _MAKERS.update(dict.fromkeys(names, function))
        return function

    return register


def _image(x: Tensor) -> bool:
    return 3 <= x.rank <= 5


def _has(axes: int) -> Callable[[Tensor], bool]:
    return lambda x: x.rank >= axes


# ---- functions of single numbers -----------------------------------------------------------------


def _function(name: str) -> Maker:
    return lambda b: b.add(name, b.pick())


for _name in (
    *("Relu", "Elu", "Selu", "Celu", "Sigmoid", "HardSwish", "Mish", "Gelu", "Tanh", "Swish"),
    *("Softplus", "Softsign", "Erf", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sin", "Cos"),
    *("Atan", "Asinh", "Identity", "Dropout"),
):
    _MAKERS[_name] = _function(_name)


@_maker("LeakyRelu", "ThresholdedRelu")
def _sloped(b: NetBuilder) -> Made:
    name = b.any_of("LeakyRelu", "ThresholdedRelu")
    return b.add(name, b.pick(), alpha=b.any_of(0.01, 0.2, 1.5))


@_maker("HardSigmoid")
def _hard_sigmoid(b: NetBuilder) -> Made:
    return b.add("HardSigmoid", b.pick(), alpha=b.any_of(0.2, 1 / 6), beta=0.5)


@_maker("Shrink")
def _shrink(b: NetBuilder) -> Made:
    return b.add("Shrink", b.pick(), lambd=0.3, bias=b.any_of(0.0, 0.3))


@_maker("Sqrt")
def _square_root(b: NetBuilder) -> Made:
    return b.add("Sqrt", b.add("Abs", b.pick()))


@_maker("Log")
def _logarithm(b: NetBuilder) -> Made:
    return b.add("Log", b.add("Add", b.add("Abs", b.pick()), b.constant(0.1)))


@_maker("Exp")
def _exponential(b: NetBuilder) -> Made:
    return b.add("Exp", b.add("Tanh", b.pick()))


@_maker("Reciprocal")
def _reciprocal(b: NetBuilder) -> Made:
    return b.add("Reciprocal", b.add("Add", b.add("Abs", b.pick()), b.constant(0.5)))


@_maker("Clip")
def _clip(b: NetBuilder) -> Made:
    x, (low, high) = b.pick(), b.any_of((0.0, 6.0), (-1.0, 1.0), (0.5, 2.0), (-100.0, 0.0))
    ends = {"min": np.float32(low), "max": np.float32(high)}
    if b.opset < 11:
        return b.add("Clip", x, **{name: float(value) for name, value in ends.items()})
    if b.random.random() < 0.3:
        del ends[b.any_of("min", "max")]
    return b.add("Clip", x, **ends)


@_maker("PRelu")
def _prelu(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    return b.add("PRelu", x, b.weight(x.sizes[1], *[1] * (x.rank - 2)))


@_maker("Softmax", "LogSoftmax", "Hardmax")
def _softmax(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    return b.add(b.any_of("Softmax", "Softmax", "LogSoftmax", "Hardmax"), x, axis=b.axis(x))


@_maker("Cast")
def _cast(b: NetBuilder) -> Made:
    whole = b.add("Cast", b.pick(), to=b.any_of(TensorProto.INT32, TensorProto.INT64))
    return b.add("Cast", whole, to=TensorProto.FLOAT)


# ---- functions of several tensors ----------------------------------------------------------------


def _broadcasts(x: Tensor) -> Callable[[Tensor], bool]:
    def fits(other: Tensor) -> bool:
        pairs = list(zip(reversed(x.shape), reversed(other.shape), strict=False))
        return all(a == b or 1 in (a, b) for a, b in pairs)

    return fits


def _other(b: NetBuilder, x: Tensor) -> Tensor:
    """A second operand: a tensor, the same one, or a constant of some of the axes."""
    draw = b.random.random()
    if draw < 0.5:
        return b.pick(_broadcasts(x))
    first = 1 if b.dynamic else 0
    sizes = [1 if b.random.random() < 0.4 else size for size in x.sizes[first:]]
    if b.random.random() < 0.3:
        sizes = sizes[b.integer(0, len(sizes)) :]
    elif b.random.random() < 0.3:
        sizes = [1, *sizes]
    return b.weight(*sizes)


@_maker("Add", "Sub", "Mul", "Min", "Max")
def _binary(b: NetBuilder) -> Made:
    name = b.any_of("Add", "Add", "Mul", "Mul", "Sub", "Min", "Max")
    x = b.pick()
    pair = [x, _other(b, x)]
    return b.add(name, *(pair[::-1] if b.random.random() < 0.2 else pair))


@_maker("Div")
def _divide(b: NetBuilder) -> Made:
    x = b.pick()
    divisor = b.add("Add", b.add("Abs", _other(b, x)), b.constant(0.5))
    return b.add("Div", x, divisor)


@_maker("Pow")
def _power(b: NetBuilder) -> Made:
    x = b.pick()
    if b.random.random() < 0.5:
        return b.add("Pow", x, b.constant(b.any_of(2.0, 3.0)))
    return b.add("Pow", b.add("Sigmoid", x), b.constant(b.any_of(0.5, -1.0, 1.5)))


@_maker("Sum", "Mean")
def _variadic(b: NetBuilder) -> Made:
    x = b.pick()
    several = [b.pick(_broadcasts(x)) for _ in range(b.integer(0, 2))]
    return b.add(b.any_of("Sum", "Mean"), x, *several)


@_maker("Where", "Greater", "Less")
def _where(b: NetBuilder) -> Made:
    x = b.pick()
    other = _other(b, x)
    mask = b.add(b.any_of("Greater", "Less"), x, b.any_of(other, b.constant(0.0)))
    if b.random.random() < 0.3:
        return b.add("Cast", mask, to=TensorProto.FLOAT)
    return b.add("Where", mask, x, other)


@_maker("Concat")
def _concat(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    axis = b.axis(x)
    at = axis % x.rank

    def fits(other: Tensor) -> bool:
        return other.rank == x.rank and all(
            k == at or mine == its
            for k, (mine, its) in enumerate(zip(x.shape, other.shape, strict=True))
        )

    parts = [x, *(b.pick(fits) for _ in range(b.integer(1, 2)))]
    if not b.dynamic and b.random.random() < 0.3:
        parts.append(b.weight(*x.sizes))
    return b.add("Concat", *parts, axis=axis)


# ---- sums of products ----------------------------------------------------------------------------


def _windows(b: NetBuilder, x: Tensor, kernels: Sequence[int]) -> dict[str, object]:
    """Kernel, strides, dilations and pads of a window."""
    axes = x.rank - 2
    kernel = [int(b.random.choice(kernels)) for _ in range(axes)]
    found: dict[str, object] = {"kernel_shape": kernel}
    if b.random.random() < 0.4:
        found["strides"] = [b.integer(1, 2) for _ in range(axes)]
    if b.random.random() < 0.15:
        found["auto_pad"] = b.any_of("SAME_UPPER", "SAME_LOWER", "VALID")
    elif b.random.random() < 0.4:
        found["pads"] = [b.integer(0, size // 2) for size in kernel * 2]
    else:
        found["pads"] = [size // 2 for size in kernel * 2]
    return found


@_maker("Conv")
def _conv(b: NetBuilder) -> Made:
    x = b.pick(_image)
    ins = x.sizes[1]
    groups = b.any_of(1, 1, 1, ins, 2)
    if ins % groups:
        raise UnfitError
    outs = groups * b.any_of(1, 2) if groups > 1 else b.any_of(4, 6, 8)
    window = _windows(b, x, (1, 3, 3, 5))
    if b.random.random() < 0.15 and "auto_pad" not in window:
        window["dilations"] = [2] * (x.rank - 2)
    kernel = window["kernel_shape"]
    assert isinstance(kernel, list)
    fan = ins // groups * int(np.prod(kernel))
    weights = b.weight(outs, ins // groups, *kernel, fan=fan)
    bias = [b.weight(outs)] if b.random.random() < 0.6 else []
    return b.add("Conv", x, weights, *bias, group=groups, **window)


@_maker("ConvTranspose")
def _transposed_conv(b: NetBuilder) -> Made:
    x = b.pick(_image)
    ins, axes = x.sizes[1], x.rank - 2
    groups = ins if b.random.random() < 0.2 else 1
    outs = 1 if groups > 1 else b.any_of(3, 4)
    kernel = [b.integer(2, 3) for _ in range(axes)]
    strides = [b.integer(1, 2) for _ in range(axes)]
    pads = [b.integer(0, 1)] * axes * 2
    weights = b.weight(ins, outs, *kernel, fan=ins // groups * 4, axis=1)
    bias = [b.weight(outs * groups)] if b.random.random() < 0.5 else []
    return b.add(
        "ConvTranspose",
        *(x, weights, *bias),
        group=groups,
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
        output_padding=[stride - 1 if b.random.random() < 0.5 else 0 for stride in strides],
    )


@_maker("Gemm")
def _gemm(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    if x.rank > 2:
        x = b.add("Flatten", x, axis=1)
    ins, outs = x.sizes[1], b.any_of(1, 6, 10)
    turned = b.integer(0, 1)
    shape = (outs, ins) if turned else (ins, outs)
    weights = b.weight(*shape, fan=ins, axis=1 - turned)
    bias = b.any_of(b.weight(outs), b.weight(1, outs), b.weight(1))
    scaled = {"alpha": 0.5, "beta": 2.0} if b.random.random() < 0.2 else {}
    return b.add("Gemm", x, weights, bias, transB=turned, **scaled)


@_maker("MatMul")
def _matmul(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    if b.random.random() < 0.3:  # attention
        order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        if b.dynamic and x.rank == 2:
            raise UnfitError
        return b.add("MatMul", x, b.add("Transpose", x, perm=order))
    ins, outs = x.sizes[-1], b.any_of(1, 5, 8)
    batch = x.sizes[1:-2] if x.rank > 3 and b.random.random() < 0.3 else ()
    y = b.add("MatMul", x, b.weight(*batch, ins, outs, fan=ins, axis=len(batch) + 1))
    return b.add("Add", y, b.weight(outs)) if b.random.random() < 0.5 else y


@_maker("Einsum")
def _einsum(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank == 3)
    return b.add("Einsum", x, b.weight(x.sizes[2], 2, 3, fan=8), equation="btk,khd->bthd")


@_maker("LSTM", "GRU", "RNN")
def _recurrent(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank == 3)
    name, gates = b.any_of(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    hidden, ways = 4, b.any_of(1, 2)
    turned = b.add("Transpose", x, perm=[1, 0, 2])
    parts = [
        b.weight(ways, gates * hidden, x.sizes[2], fan=x.sizes[2]),
        b.weight(ways, gates * hidden, hidden, fan=hidden),
        b.weight(ways, 2 * gates * hidden, fan=4),
    ]
    way = "bidirectional" if ways > 1 else "forward"
    y = b.add(name, turned, *parts, hidden_size=hidden, direction=way)
    if ways > 1:
        return b.add("Transpose", y, perm=[2, 0, 1, 3])
    return b.add("Transpose", b.add("Squeeze", y, axes=[1]), perm=[1, 0, 2])


# ---- pools and normalizations --------------------------------------------------------------------


@_maker("MaxPool", "AveragePool", "LpPool")
def _pool(b: NetBuilder) -> Made:
    x = b.pick(_image)
    name = b.any_of("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool")
    window = _windows(b, x, (2, 2, 3, 3, 1))
    if b.opset >= 10 and "auto_pad" not in window and name != "LpPool":
        window["ceil_mode"] = b.integer(0, 1)
    if name == "AveragePool":
        window["count_include_pad"] = b.integer(0, 1)
    return b.add(name, x, **window)


@_maker("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(b: NetBuilder) -> Made:
    return b.add(b.any_of("GlobalAveragePool", "GlobalMaxPool"), b.pick(_image))


@_maker("BatchNormalization")
def _batch_norm(b: NetBuilder) -> Made:
    x = b.pick(lambda each: 2 <= each.rank <= 5)
    size = x.sizes[1]
    gamma, beta, mean = (b.weight(size) for _ in range(3))
    variance = b.constant(b.random.uniform(0.2, 3.0, size) * b.any_of(1.0, 1.0, 1e-3))
    return b.add("BatchNormalization", x, gamma, beta, mean, variance)


@_maker("InstanceNormalization")
def _instance_norm(b: NetBuilder) -> Made:
    x = b.pick(_image)
    return b.add("InstanceNormalization", x, b.weight(x.sizes[1]), b.weight(x.sizes[1]))


@_maker("LayerNormalization", "RMSNormalization")
def _layer_norm(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    if b.opset >= 23 and b.random.random() < 0.5:
        return b.add("RMSNormalization", x, b.weight(x.sizes[-1]), axis=-1)
    bias = [b.weight(x.sizes[-1])] if b.random.random() < 0.6 else []
    return b.add("LayerNormalization", x, b.weight(x.sizes[-1]), *bias, axis=-1)


@_maker("GroupNormalization")
def _group_norm(b: NetBuilder) -> Made:
    x = b.pick(lambda each: _image(each) and each.sizes[1] % 2 == 0)
    size = x.sizes[1] if b.opset >= 21 else 2  # once for each group, first
    return b.add("GroupNormalization", x, b.weight(size), b.weight(size), num_groups=2)


@_maker("LRN", "LpNormalization", "MeanVarianceNormalization")
def _fixed_norm(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank == 4)
    name = b.any_of("LRN", "LpNormalization", "MeanVarianceNormalization")
    if name == "LRN":
        return b.add("LRN", x, size=3)
    if name == "LpNormalization":
        return b.add("LpNormalization", x, axis=1, p=b.any_of(1, 2))
    return b.add("MeanVarianceNormalization", x, axes=b.any_of([0, 2, 3], [2, 3], [1, 2, 3]))


@_maker("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceProd")
def _reduce(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    sums = ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceProd")
    name = b.any_of("ReduceMean", "ReduceMean", "ReduceMax", "ReduceMin", *sums)
    axes = sorted({b.axis(x) % x.rank for _ in range(b.integer(1, 2))})
    return b.add(name, x, axes=axes, keepdims=b.integer(0, 1))


@_maker("ArgMax", "ArgMin")
def _position(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    at = b.add(b.any_of("ArgMax", "ArgMin"), x, axis=b.axis(x), keepdims=b.integer(0, 1))
    return b.add("Cast", at, to=TensorProto.FLOAT) if b.random.random() < 0.7 else at


@_maker("CumSum")
def _running_sum(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    at = b.constant(np.int64(b.axis(x)))
    return b.add("CumSum", x, at, exclusive=b.integer(0, 1), reverse=b.integer(0, 1))


@_maker("TopK")
def _largest(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    axis = b.axis(x)
    count: object = b.integer(1, min(3, x.sizes[axis]))
    k = count if b.opset < 10 else np.array([count])
    return b.add_all("TopK", 2, x, axis=axis, k=k)[0]


# ---- values moved --------------------------------------------------------------------------------


@_maker("Transpose")
def _transpose(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    first = 1 if b.dynamic else 0
    order = [*range(first), *(first + b.random.permutation(x.rank - first)).tolist()]
    return b.add("Transpose", x, perm=order)


@_maker("Reshape")
def _reshape(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    first = 1 if b.dynamic else 0
    left = int(np.prod(x.sizes[first:]))
    sizes = []
    for _ in range(b.integer(0, 3)):
        size = b.any_of(*(each for each in (1, 2, 3, 4, 8) if left % each == 0))
        sizes.append(size)
        left //= size
    sizes.insert(b.integer(0, len(sizes)), left)
    if b.random.random() < 0.3:
        sizes[b.integer(0, len(sizes) - 1)] = -1
    return b.add("Reshape", x, b.constant(np.array([0] * first + sizes)))


@_maker("Flatten")
def _flatten(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    return b.add("Flatten", x, axis=1 if b.dynamic else b.integer(0, x.rank))


@_maker("Squeeze")
def _squeeze(b: NetBuilder) -> Made:
    first = 1 if b.dynamic else 0
    x = b.pick(lambda each: 1 in each.shape[first:])
    ones = [k for k, size in enumerate(x.shape) if size == 1 and k >= first]
    return b.add("Squeeze", x, axes=ones[: b.integer(1, len(ones))])


@_maker("Unsqueeze")
def _unsqueeze(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank < 5)
    return b.add("Unsqueeze", x, axes=[b.integer(1 if b.dynamic else 0, x.rank)])


@_maker("Slice")
def _slice(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    axis = b.axis(x)
    size = x.sizes[axis]
    start = b.integer(0, size - 1)
    if b.opset >= 10 and b.random.random() < 0.3:
        return b.add("Slice", x, starts=[-1], ends=[-(1 << 40)], axes=[axis], steps=[-1])
    stop = b.any_of(size, (1 << 31) - 1, start + 1)
    return b.add("Slice", x, starts=[start], ends=[stop], axes=[axis % x.rank])


@_maker("Split")
def _split(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    axis = b.axis(x)
    size = x.sizes[axis]
    if size < 2:
        raise UnfitError
    first = b.integer(1, size - 1)
    return b.add_all("Split", 2, x, axis=axis, split=[first, size - first])


@_maker("Tile")
def _tile(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    repeats = [1] * x.rank
    repeats[b.axis(x)] = 2
    return b.add("Tile", x, b.constant(np.array(repeats)))


@_maker("Expand")
def _expand(b: NetBuilder) -> Made:
    x = b.pick(_has(1))
    sizes = [b.integer(2, 4) if size == 1 else size for size in x.sizes]
    if b.dynamic and x.varies:
        sizes[:1] = [1][: x.rank]
    return b.add("Expand", x, b.constant(np.array(sizes)))


@_maker("Gather")
def _gather(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    axis = b.axis(x)
    size = x.sizes[axis]
    several = b.random.integers(size, size=(b.any_of(1, 2, 3),))
    at = b.any_of(np.int64(b.integer(0, size - 1)), several, several.reshape(1, -1))
    return b.add("Gather", x, b.constant(at), axis=axis)


@_maker("Pad")
def _pad(b: NetBuilder) -> Made:
    x = b.pick(_has(2))
    pads = [0] * (2 * x.rank)
    for _ in range(2):
        axis = b.axis(x) % x.rank
        pads[axis + x.rank * b.integer(0, 1)] = b.any_of(1, 2, -1)
    mode = b.any_of("constant", "constant", "edge", "reflect")
    if mode == "constant":
        value = b.any_of(0.0, 0.0, -1.0, 3.0)
        number = value if b.opset < 11 else np.float32(value)
        return b.add("Pad", x, mode=mode, pads=pads, value=number)
    return b.add("Pad", x, mode=mode, pads=[max(0, each) for each in pads])


@_maker("DepthToSpace", "SpaceToDepth")
def _blocks(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank == 4)
    if b.random.random() < 0.5:
        return b.add("SpaceToDepth", x, blocksize=2)
    mode = {"mode": b.any_of("DCR", "CRD")} if b.opset >= 11 else {}
    return b.add("DepthToSpace", x, blocksize=2, **mode)


@_maker("Resize", "Upsample")
def _resize(b: NetBuilder) -> Made:
    x = b.pick(lambda each: each.rank == 4)
    mode, scales = b.any_of("nearest", "linear"), [1.0, 1.0, *b.any_of((2.0, 2.0), (1.0, 2.0))]
    if b.opset < 10:
        factors = scales if b.opset < 9 else np.array(scales, np.float32)
        return b.add("Upsample", x, mode=mode, scales=factors)
    if b.opset == 10:
        return b.add("Resize", x, b.constant(np.array(scales, np.float32)), mode=mode)
    ways = ("asymmetric", "half_pixel", "align_corners")
    more = {"mode": mode, "coordinate_transformation_mode": b.any_of(*ways)}
    region = b.constant(np.zeros(0, np.float32)) if b.opset < 13 else None
    return b.add("Resize", x, region, b.constant(np.array(scales, np.float32)), **more)


@_maker("GatherElements")
def _gather_elements(b: NetBuilder) -> Made:
    if b.dynamic:
        raise UnfitError  # its indices have the batch
    x = b.pick(_has(2))
    axis = b.axis(x)
    at = b.random.integers(x.sizes[axis], size=x.sizes)
    return b.add("GatherElements", x, b.constant(at), axis=axis)


@_maker("Trilu")
def _triangle(b: NetBuilder) -> Made:
    x = b.pick(_has(3 if b.dynamic else 2))
    return b.add("Trilu", x, upper=b.integer(0, 1))


@_maker("Constant")
def _constant(b: NetBuilder) -> Made:
    """A tensor that does not vary: what is computed from it alone is folded."""
    x = b.pick()
    sizes = [1 if b.random.random() < 0.4 else size for size in x.sizes]
    sizes[:1] = [1][: x.rank]
    made = b.weight(*sizes)
    if b.random.random() < 0.5:
        return made
    wider = [b.any_of(size, 2, 4) if size == 1 and k else size for k, size in enumerate(sizes)]
    return b.add("Expand", made, b.constant(np.array(wider)))
