"""Writes functions, and operations on two tensors, as ncnn layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from intact.errors import Unsupported
from intact.formats.ncnn.builder import WRITERS, NcnnBuilder, floats, input_of, name_of
from intact.formats.ncnn.model import Parameter, Sample, lengths, rank_of, sample
from intact.ops import functions
from intact.ops.functions import Unary
from intact.program import Step, Tensor
from intact.program.float_operations import (
    BatchNormalization,
    CumulativeSum,
    GroupNormalization,
    Identity,
    LayerNormalization,
    LocalResponse,
)
from intact.program.operations import (
    Binary,
    Bounds,
    Elementwise,
    Function,
    PRelu,
    Softmax,
)

LARGEST = float(np.finfo(np.float32).max)

_LINEAR_FROM = 64.0
"""From here on Softplus is its input in float32."""

_BINARY = {
    Binary.ADD: 0,
    Binary.SUB: 1,
    Binary.MUL: 2,
    Binary.DIV: 3,
    Binary.MAXIMUM: 4,
    Binary.MINIMUM: 5,
}
_REVERSED = {**_BINARY, Binary.SUB: 7, Binary.DIV: 8}
"""With the operands changed round."""
_UNARY: Mapping[Unary, int] = {
    functions.negative: 1,
    functions.floor: 2,
    functions.ceil: 3,
    functions.square: 4,
    functions.sqrt: 5,
    functions.exp: 7,
    functions.log: 8,
    functions.sin: 9,
    functions.cos: 10,
    functions.reciprocal: 15,
    functions.round_half_even: 18,
    functions.sign: 20,
    **{
        functions.FUNCTIONS[name]: number
        for name, number in (("Tan", 11), ("Asin", 12), ("Acos", 13), ("Atan", 14))
    },
}
"""Numbers of functions in ``UnaryOp``."""
_LAYERS: Mapping[Unary, tuple[str, dict[int, Parameter]]] = {
    functions.absolute: ("AbsVal", {}),
    functions.erf: ("Erf", {}),
    functions.hard_swish: ("HardSwish", {0: 1 / 6, 1: 0.5}),
    functions.mish: ("Mish", {}),
    functions.sigmoid: ("Sigmoid", {}),
    functions.tanh: ("TanH", {}),
}
"""Functions with a layer of their own, and its parameters."""
_WITH_OPTIONS = {
    functions.elu: "ELU",
    functions.hard_sigmoid: "HardSigmoid",
    functions.leaky_relu: "ReLU",
    functions.selu: "SELU",
}
"""Those whose parameters are the options, in their order."""


@WRITERS.register(Function)
def _function(operation: Function, step: Step, builder: NcnnBuilder) -> None:
    kind = operation.kind
    if kind is functions.clamp:
        _clamp(operation.bounds, step, builder)
    elif kind in _UNARY:
        builder.unary("UnaryOp", step, {0: _UNARY[kind]})
    elif kind is functions.gelu:
        # The layer's parameter chooses the approximation by tanh.
        builder.unary("GELU", step, {0: int("tanh" in operation.options)})
    elif kind in _WITH_OPTIONS:
        numbers: dict[int, Parameter] = {
            k: operation.number(name) for k, name in enumerate(kind.defaults)
        }
        builder.unary(_WITH_OPTIONS[kind], step, numbers)
    elif kind is functions.softplus:
        _softplus(step, builder)
    elif kind in _LAYERS:
        name, parameters = _LAYERS[kind]
        builder.unary(name, step, parameters)
    else:
        raise Unsupported(f"intact writes no ncnn layer for {kind}")


def _softplus(step: Step, builder: NcnnBuilder) -> None:
    """Write Softplus of what is at most `_LINEAR_FROM`; above, it is its input.

    ncnn's own layer is infinite from 89 on (measured with 1.0.20261020).
    """
    bottom, result = builder.read(step), step.outputs[0]
    limited, smooth = builder.inner(result), builder.inner(result)
    name = name_of(step)
    builder.emit("Clip", f"{name}_limit", [bottom], [limited], {0: -LARGEST, 1: _LINEAR_FROM})
    builder.emit("Softplus", name, [limited], [smooth])
    maximum: dict[int, Parameter] = {0: _BINARY[Binary.MAXIMUM]}
    builder.emit("BinaryOp", f"{name}_max", [smooth, bottom], [builder.blob(result)], maximum)


def _clamp(bounds: Bounds, step: Step, builder: NcnnBuilder) -> None:
    if bounds == Bounds(0.0):
        builder.unary("ReLU", step)
        return
    if not bounds.low <= bounds.high:
        raise Unsupported("its bounds are not in order")
    # The text of a `.param` holds no infinity.
    low, high = finite(bounds)
    builder.unary("Clip", step, {0: low, 1: high})


def finite(bounds: Bounds) -> tuple[float, float]:
    """Limit bounds to what float32 holds."""
    low, high = (max(min(end, LARGEST), -LARGEST) for end in (bounds.low, bounds.high))
    return low, high


@WRITERS.register(Identity)
def _identity(_operation: Identity, step: Step, builder: NcnnBuilder) -> None:
    builder.unary("Noop", step)


@WRITERS.register(PRelu)
def _prelu(_operation: PRelu, step: Step, builder: NcnnBuilder) -> None:
    """Write one slope, or one a channel."""
    slope = input_of(step, 1).data
    rank, channels = rank_of(input_of(step)), sample(input_of(step))[0]
    if slope is None or slope.size not in (1, channels):
        raise Unsupported("its slopes are not one constant, or one for each channel")
    along_channels = (channels, *(1,) * (rank - 2))
    if slope.size > 1 and slope.shape[-rank + 1 :] != along_channels:
        raise Unsupported("its slopes do not run along the channels")
    builder.unary("PReLU", step, {0: slope.size}, floats(slope))


@WRITERS.register(Elementwise)
def _binary(operation: Elementwise, step: Step, builder: NcnnBuilder) -> None:
    """Write an operation on two operands that broadcast; a constant may be one."""
    if operation.kind not in _BINARY:
        raise Unsupported(f"intact writes no ncnn layer for the operation {operation.kind}")
    top = builder.blob(step.outputs[0])
    # A scalar is a parameter of the layer, always on the right: on the left the operation is
    # turned.
    for slot, number in ((1, _BINARY), (0, _REVERSED)):
        array, other = input_of(step, slot).data, input_of(step, 1 - slot)
        if array is not None and array.size == 1:
            # Broadcast, the result would get the constant's axes, which a parameter does not have.
            if rank_of(other) < array.ndim:
                raise Unsupported("its constant has more axes than its data")
            bottom = builder.read(step, 1 - slot)
            scalar: dict[int, Parameter] = {0: number[operation.kind], 1: 1, 2: float(array.item())}
            builder.emit("BinaryOp", name_of(step), [bottom], [top], scalar)
            return
    bottoms = [operand(builder, step, slot) for slot in (0, 1)]
    builder.emit("BinaryOp", name_of(step), bottoms, [top], {0: _BINARY[operation.kind]})


def operand(builder: NcnnBuilder, step: Step, slot: int) -> str:
    """Name the blob of an operand, with as many axes as the result has."""
    tensor: Tensor = input_of(step, slot)
    axes = rank_of(step.outputs[0]) - 1
    if tensor.data is not None:
        return builder.constant(tensor, _without_batch(tensor.data.shape, axes))
    if rank_of(tensor) == axes + 1:
        return builder.read(step, slot)
    raise Unsupported("its operands have different numbers of axes, so a batch meets no batch")


def _without_batch(shape: tuple[int, ...], axes: int) -> Sample:
    """Find the shape of a constant that broadcasts against a sample of so many axes."""
    if len(shape) > axes:
        # A blob has no batch: a constant must be the same for every sample.
        if len(shape) > axes + 1 or shape[0] != 1:
            raise Unsupported("its constant operand differs between samples")
        shape = shape[1:]
    found = (1,) * (axes - len(shape)) + tuple(shape)
    # Asked for its refusal only: a blob has four axes at most.
    lengths(found)
    return found


@WRITERS.register(Softmax)
def _softmax(operation: Softmax, step: Step, builder: NcnnBuilder) -> None:
    if operation.log:
        raise Unsupported("intact writes no ncnn layer for LogSoftmax")
    if operation.axis == 0:
        raise Unsupported("it does not run along one axis of a sample")
    # Parameter 1 says that the axis is meant as written: ncnn refuses files without it, as old ones
    # meant another.
    builder.unary("Softmax", step, {0: operation.axis - 1, 1: 1})


@WRITERS.register(BatchNormalization)
def _batch_normalization(operation: BatchNormalization, step: Step, builder: NcnnBuilder) -> None:
    arrays = [input_of(step, slot).data for slot in (1, 3, 4, 2)]  # slope, mean, variance, bias
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays):
        raise Unsupported("its statistics are computed")
    data = b"".join(floats(array) for array in known)
    builder.unary("BatchNorm", step, {0: known[0].size, 1: operation.epsilon}, data)


@WRITERS.register(LayerNormalization)
def _layer_normalization(operation: LayerNormalization, step: Step, builder: NcnnBuilder) -> None:
    """Write a normalization over the last axis."""
    size = sample(input_of(step))[operation.axis - 1 :]
    gamma, bias = input_of(step, 1).data, step.inputs[2]
    # The layer's affine form has both factors or none.
    beta = np.zeros(1, np.float32) if bias is None else bias.data
    if operation.axis != rank_of(input_of(step)) - 1 or gamma is None or beta is None:
        raise Unsupported("it runs over several axes, or its factors are computed")
    data = b"".join(floats(np.broadcast_to(each.reshape(-1), size)) for each in (gamma, beta))
    builder.unary("LayerNorm", step, {0: size[0], 1: operation.epsilon, 2: 1}, data)


@WRITERS.register(GroupNormalization)
def _group_normalization(operation: GroupNormalization, step: Step, builder: NcnnBuilder) -> None:
    """Write ``GroupNorm``, also where each channel is a group."""
    gamma, beta = (input_of(step, slot).data for slot in (1, 2))
    if gamma is None or beta is None:
        raise Unsupported("its factors are computed")
    data = floats(gamma) + floats(beta)
    parameters: dict[int, Parameter] = {0: operation.groups, 1: gamma.size}
    builder.unary("GroupNorm", step, {**parameters, 2: operation.epsilon, 3: 1}, data)


@WRITERS.register(LocalResponse)
def _local_response(operation: LocalResponse, step: Step, builder: NcnnBuilder) -> None:
    """Write ``LRN`` across channels."""
    if rank_of(input_of(step)) != 4 or operation.size % 2 == 0:
        raise Unsupported("its data is no image, or its window is even")
    numbers = operation.alpha, operation.beta, operation.bias
    parameters: dict[int, Parameter] = {0: 0, 1: operation.size}
    builder.unary("LRN", step, parameters | dict(enumerate(numbers, start=2)))


@WRITERS.register(CumulativeSum)
def _cumulative_sum(operation: CumulativeSum, step: Step, builder: NcnnBuilder) -> None:
    if operation.axis == 0:
        raise Unsupported("it sums along the batch")
    if rank_of(input_of(step)) > 4:
        raise Unsupported("its data has four axes beside the batch")
    builder.unary("CumulativeSum", step, {0: operation.axis - 1})
