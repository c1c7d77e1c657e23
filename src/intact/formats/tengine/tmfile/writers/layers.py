"""Convolutions, dense layers, pools and means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileTensor
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.operators import (
    ABSENT_AXIS,
    COUNT_PADDING,
    Activation,
    Flavor,
    PoolMethod,
)
from intact.formats.tengine.tmfile.readers.layers import windows
from intact.formats.tengine.tmfile.writers.builder import WRITERS, Operand, Shape, TmFileBuilder
from intact.program import Step
from intact.program.float_operations import BatchNormalization
from intact.program.operations import (
    RESIDUAL_SLOT,
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    Pads,
    Pool,
    PoolKind,
    Reduce,
    Reduction,
    TransposedConvolution,
)

_PADS = ("pad_top", "pad_left", "pad_bottom", "pad_right")
_ACTIVATIONS = {
    ("Relu", Bounds(0)): Activation.RELU,
    ("Clip", Bounds(0, 6)): Activation.RELU6,
}
"""What a Conv of Tengine applies to its sums, by the node that the plan fuses behind it."""
_GLOBAL_POOLS = {
    "GlobalAveragePool": PoolMethod.AVERAGE,
    "GlobalMaxPool": PoolMethod.MAX,
}
_MEAN = 1
"""``type`` of Reduction."""


@WRITERS.register(Convolution)
def _convolution(operation: Convolution, step: Step, builder: TmFileBuilder) -> None:
    """Images; bounds go into the Convolution if its activation can be that."""
    builder.image_shape(step)
    if step.inputs[RESIDUAL_SLOT:]:
        raise Unsupported("a tensor is added to its sums")
    weight = builder.constant(step, 1)
    array = weight.in_model
    channels, *_ = array.shape
    activation = _ACTIVATIONS.get((builder.last_operator(step), operation.bounds))
    options = {
        **_window(array.shape[2:], operation),
        "input_channel": array.shape[1] * operation.groups,
        "output_channel": channels,
        "activation": Activation.NONE if activation is None else activation,
    }
    inputs: list[Operand] = [
        builder.value(step),
        builder.stored(weight, array, by_channel=True),
        *_bias(step, builder),
    ]
    builder.add(step, "Convolution", inputs, options, clamps=activation is None)


@WRITERS.register(TransposedConvolution)
def _transposed_convolution(
    operation: TransposedConvolution, step: Step, builder: TmFileBuilder
) -> None:
    """Images, in float."""
    builder.refuse_elements(Element.INT8, Element.UINT8)
    builder.image_shape(step)
    if 1 in operation.strides:
        raise Unsupported("it has a stride of 1, where versions of Tengine differ in the size")
    if len({*operation.dilations}) > 1:
        raise Unsupported("its dilations differ, which Tengine's kernel exchanges")
    weight = builder.constant(step, 1)
    channels, *kernel, _ = weight.data.shape
    options = {
        **_window(kernel, operation),
        "output_channel": channels,
        "activation": Activation.NONE,
        "output_pad_h": operation.output_padding[0],
        "output_pad_w": operation.output_padding[1],
    }
    array = _inputs_first(weight.data, operation.groups)
    inputs: list[Operand] = [
        builder.value(step),
        builder.stored(weight, array),
        *_bias(step, builder),
    ]
    builder.add(step, "Deconvolution", inputs, options)


def _inputs_first(weight: np.ndarray, groups: int) -> np.ndarray:
    """``[O, *K, C / groups]`` as ``[C, O / groups, *K]``."""
    outputs, *kernel, inputs = weight.shape
    apart = weight.reshape(groups, outputs // groups, *kernel, inputs)
    last = apart.ndim - 1
    return apart.transpose(0, last, 1, *range(2, last)).reshape(
        groups * inputs, outputs // groups, *kernel
    )


def _window(
    kernel: Sequence[int], operation: Convolution | TransposedConvolution
) -> dict[str, Any]:
    return {
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "stride_h": operation.strides[0],
        "stride_w": operation.strides[1],
        "dilation_h": operation.dilations[0],
        "dilation_w": operation.dilations[1],
        "group": operation.groups,
        **dict(zip(_PADS, _flat(operation.pads), strict=True)),
    }


def _flat(pads: Pads) -> Shape:
    """Pads above, left, below and right."""
    return (*(before for before, _ in pads), *(after for _, after in pads))


def _bias(step: Step, builder: TmFileBuilder) -> Iterator[FileTensor]:
    if step.inputs[2] is not None:
        bias = builder.constant(step, 2)
        yield builder.stored(bias, bias.data, by_channel=True)


@WRITERS.register(FullyConnected)
def _fully_connected(_: FullyConnected, step: Step, builder: TmFileBuilder) -> None:
    """Rows."""
    rank = len(builder.shape(builder.value(step)))
    weight = builder.constant(step, 1)
    if rank != 2:
        raise Unsupported(f"it multiplies {rank} dimensions by {weight.data.ndim}")
    channels = len(weight.data)
    if channels == 1 and builder.scales.element is Element.INT8:
        # A single scale is loaded as that of the tensor; the kernel reads a list, which is NULL.
        raise Unsupported("it has one output, with which Tengine's int8 kernel crashes")
    inputs: list[Operand] = [
        builder.value(step),
        builder.stored(weight, weight.data, by_channel=True),
        *_bias(step, builder),
    ]
    builder.add(step, "FullyConnected", inputs, {"output_channel": channels})


@WRITERS.register(BatchMatMul)
def _matmul(_: BatchMatMul, _step: Step, _builder: TmFileBuilder) -> None:
    raise Unsupported("input 1 is no constant matrix")


@WRITERS.register(BatchNormalization)
def _batch_normalization(operation: BatchNormalization, step: Step, builder: TmFileBuilder) -> None:
    """One that no convolution holds, in float."""
    builder.refuse_elements(Element.INT8, Element.UINT8)
    rank = len(builder.shape(builder.value(step)))
    if rank not in (3, 4):
        raise Unsupported(f"its input has {rank} dimensions; Tengine's has 3 or 4")
    constants = [builder.constant(step, slot) for slot in (1, 2, 3, 4)]
    inputs: list[Operand] = [builder.value(step)]
    inputs += [builder.stored(constant, constant.data) for constant in constants]
    options = {"rescale_factor": 1.0, "epsilon": operation.epsilon, "caffe_flavor": 0}
    builder.add(step, "BatchNormalization", inputs, options)


@WRITERS.register(Reduce)
def _reduce(operation: Reduce, step: Step, builder: TmFileBuilder) -> None:
    """Pools of whole images, and means over one to four axes."""
    operator = builder.operator(step)
    if operator in _GLOBAL_POOLS:
        shape = builder.image_shape(step)
        pads, method = (0, 0, 0, 0), _GLOBAL_POOLS[operator]
        _add_pool(step, builder, method, shape[2:], (1, 1), pads, Flavor.FLOOR, is_global=True)
        return
    if operation.kind is not Reduction.MEAN:
        raise Unsupported(f"Tengine has no {operator}")
    builder.refuse_elements(Element.INT8)
    rank, axes = len(builder.shape(builder.value(step))), operation.axes
    if rank > 4 or 0 in axes:
        raise Unsupported(f"it is taken over axes {list(axes)} of {rank}")
    named = [*axes, *(ABSENT_AXIS,) * (4 - len(axes))]
    options = {f"dim_{k}": axis for k, axis in enumerate(named)}
    options |= {"type": _MEAN, "keepdim": int(operation.keep_dims)}
    builder.add(step, "Reduction", [builder.value(step)], options)


@WRITERS.register(Pool)
def _pool(operation: Pool, step: Step, builder: TmFileBuilder) -> None:
    """Windows, if one of the ways in which Tengine lays them gives those of the step."""
    shape, result = builder.image_shape(step)[2:], builder.result_shape(step)[2:]
    pads = _flat(operation.pads)
    if operation.kernel == shape and (any(pads) or result != (1, 1)):
        raise Unsupported("its window is as large as the image, which Tengine takes for global")
    is_mean = operation.kind is PoolKind.AVERAGE
    for flavor in _flavors(operation, pads):
        is_total = flavor == Flavor.TOTAL
        starts = _totals(pads) if is_total else pads[:2]
        if _lies(flavor, shape, operation, starts, pads, result):
            method = PoolMethod.AVERAGE if is_mean else PoolMethod.MAX
            ends = pads[2:] if is_total else starts  # Tengine works these out for itself
            padding = (*starts, *ends)
            _add_pool(step, builder, method, operation.kernel, operation.strides, padding, flavor)
            return
    raise Unsupported(f"Tengine lays no windows with the paddings {list(pads)} like that")


def _flavors(operation: Pool, pads: Shape) -> Iterator[int]:
    """Yield the ways that give the numbers of a pool, if its windows lie so."""
    is_mean = operation.kind is PoolKind.AVERAGE
    if operation.count_pads and any(pads):
        yield Flavor.FLOOR | COUNT_PADDING
        return
    yield Flavor.FLOOR
    if not is_mean or not any(pads[:2]):  # a mean of these two counts the padding in front
        yield Flavor.CAFFE
    if not is_mean:
        yield Flavor.TOTAL


def _lies(
    flavor: int, shape: Shape, operation: Pool, starts: Shape, pads: Shape, result: Shape
) -> bool:
    """Whether Tengine's windows are those of the step."""
    for axis in (0, 1):
        row = (shape[axis], operation.kernel[axis], operation.strides[axis], starts[axis])
        try:
            found = windows(flavor & ~COUNT_PADDING, *row)
        except Unsupported:
            return False
        if (found.count, found.first) != (result[axis], pads[axis]):
            return False
        if operation.count_pads and found.last > min(pads[axis], pads[axis + 2]):
            return False  # behind its padding ONNX counts nothing, Tengine behind the first one
    return True


def _totals(pads: Shape) -> Shape:
    return pads[0] + pads[2], pads[1] + pads[3]


def _add_pool(
    step: Step,
    builder: TmFileBuilder,
    method: PoolMethod,
    kernel: Shape,
    strides: Shape,
    pads: Shape,
    flavor: int,
    *,
    is_global: bool = False,
) -> None:
    options = {
        "method": method,
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "stride_h": strides[0],
        "stride_w": strides[1],
        "is_global": int(is_global),
        "flavor": flavor,
        **dict(zip(_PADS, pads, strict=True)),
    }
    builder.add(step, "Pooling", [builder.value(step)], options)
