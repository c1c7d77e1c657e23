"""Lowers layers with weights, and products of two activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import constant_array, input_value, is_constant
from intact.ops import operators
from intact.ops.operators import Add, Conv, ConvTranspose, Gemm, MatMul, is_a
from intact.plan.dynamic import dynamic_quantizer, is_dynamic
from intact.program.forms import has_blocks, permute, reshape_constant, shape_of
from intact.program.lower.attributes import constant_input, window_pads
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.lowerings import LOWERINGS, finish, fused_bounds
from intact.program.operations import (
    BatchMatMul,
    Convolution,
    DynamicFullyConnected,
    FullyConnected,
    Pads,
    TransposedConvolution,
)
from intact.program.program import Shape, Tensor

_SAME_SCALE = 1e-5
"""Largest relative difference at which a bias counts as one in units of the accumulator."""


@LOWERINGS.register(Conv)
def convolution(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Conv."""
    node = chain[0]
    added = _added_slot(chain)
    bounds = fused_bounds(chain, 1 if added is None else 2)
    data, weight = _operands(builder, node)
    strides, dilations, kernel = _window(node, weight)
    pads = window_pads(node, data.shape, kernel, strides, dilations)
    rank = len(weight.shape)
    last = (0, *range(2, rank), 1)
    operation = Convolution(strides, pads, dilations, operators.Conv.of(node).group, bounds)
    bias = _bias(builder, node, data, weight, weight.shape[0])
    inputs = [builder.channels_last(data), permute(weight, last), bias]
    if added is not None:
        inputs.append(_residual(builder, chain, added))
    finish(builder, chain, operation, inputs, channels_last=True)


def _added_slot(chain: tuple[ir.Node, ...]) -> int | None:
    """Return which input of an Add right behind a node is not the node's; None without an Add."""
    if len(chain) < 2 or not is_a(chain[1], Add):
        return None
    return 1 if chain[1].inputs[0] is chain[0].outputs[0] else 0


def _residual(builder: ProgramBuilder, chain: tuple[ir.Node, ...], slot: int) -> Tensor:
    """Return the residual that an Add behind a convolution adds to its sums, channels last.

    Raises:
        Unsupported: It is no activation in codes, or of another shape.
    """
    convolved, value = chain[0].outputs[0], input_value(chain[1], slot)
    if value is convolved:
        raise Unsupported("its result is added to itself")
    residual = builder.read(chain[1], slot)
    if residual.is_constant or residual.encoding is None:
        raise Unsupported("what is added to its result is not in codes")
    shape = shape_of(convolved)
    same = len(shape) == len(residual.shape) and shape[1:] == residual.shape[1:]
    # A batch of unknown length is as long as another one, unless that is known to be repeated.
    if not same or (shape[0] == 1) != (residual.shape[0] == 1):
        raise Unsupported("what is added to its result has another shape")
    return builder.channels_last(residual)


@LOWERINGS.register(ConvTranspose)
def transposed_convolution(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """ConvTranspose."""
    node = chain[0]
    bounds = fused_bounds(chain)
    data, weight = _operands(builder, node)
    strides, dilations, kernel = _window(node, weight)
    options = operators.ConvTranspose.of(node)
    groups = options.group
    output_padding = options.output_padding or (0,) * len(kernel)
    pads = _cut(node, data.shape, kernel, strides, dilations, output_padding)
    weight = _grouped_weight(weight, groups)
    operation = TransposedConvolution(strides, pads, dilations, output_padding, groups, bounds)
    bias = _bias(builder, node, data, weight, weight.shape[0])
    inputs = (builder.channels_last(data), weight, bias)
    finish(builder, chain, operation, inputs, channels_last=True)


@LOWERINGS.register(Gemm)
def gemm(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Gemm with a constant weight on its right."""
    node = chain[0]
    bounds = fused_bounds(chain)
    options = operators.Gemm.of(node)
    # A pass of normalization folds the factors where operands are constant; what is left has a
    # computed one.
    if options.alpha != 1.0 or (options.beta != 1.0 and input_value(node, 2) is not None):
        raise Unsupported("it has factors alpha and beta")
    if options.transA:
        raise Unsupported("its left operand is transposed")
    if _is_dynamic(builder, node):
        _dynamic(builder, chain, is_transposed=bool(options.transB))
        return
    data, weight = _operands(builder, node)
    if not options.transB:
        weight = permute(weight, (1, 0))
    bias = _bias(builder, node, data, weight, weight.shape[0])
    finish(builder, chain, FullyConnected(bounds), (data, weight, bias))


@LOWERINGS.register(MatMul)
def matmul(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """MatMul: with a constant matrix on the right a dense layer, else a product of activations."""
    node = chain[0]
    bounds = fused_bounds(chain)
    if _is_dynamic(builder, node):
        _dynamic(builder, chain, is_transposed=False)
        return
    right = constant_array(input_value(node, 1))
    left, weight = builder.read(node, 0), builder.read_weight(node, 1)
    if min(len(left.shape), len(weight.shape)) < 2:
        raise Unsupported("an operand is a vector")
    if right is not None and right.ndim == 2:
        _check_mixed(left, weight)
        inputs = (left, permute(weight, (1, 0)), None)
        finish(builder, chain, FullyConnected(bounds), inputs)
        return
    _check_mixed(left, weight)
    if any(t.encoding is not None and t.encoding.axis is not None for t in (left, weight)):
        raise Unsupported("a factor of a product of matrices has one scale a channel")
    finish(builder, chain, BatchMatMul(bounds), (left, weight))


def _is_dynamic(builder: ProgramBuilder, node: ir.Node) -> bool:
    return not builder.floating and is_dynamic(builder.plan, node, 0)


def _dynamic(builder: ProgramBuilder, chain: tuple[ir.Node, ...], *, is_transposed: bool) -> None:
    """Add a dense layer whose data is quantized while it runs.

    Raises:
        Unsupported: Its weight is no matrix of codes, or something is fused behind it.
    """
    node = chain[0]
    if len(chain) > 1:
        raise Unsupported("something is fused behind a layer that gives floats")
    weight = builder.read(node, 1)
    if weight.data is None or weight.encoding is None or weight.data.ndim != 2:
        raise Unsupported("its weight is no constant matrix of codes")
    weight = weight if is_transposed else permute(weight, (1, 0))
    codes, scale, zero_point = builder.read_dynamic(node, 0)
    quantizer = dynamic_quantizer(
        builder.plan.input_config(node, 0).grid, builder.plan.arithmetic_of(node)
    )
    bias = _bias(builder, node, codes, weight, weight.shape[0])
    value = node.outputs[0]
    result = builder.result(value)
    inputs = codes, scale, zero_point, weight, bias
    builder.emit(chain, DynamicFullyConnected(quantizer), inputs, (result,))
    builder.set_result(value, result)


def _operands(builder: ProgramBuilder, node: ir.Node) -> tuple[Tensor, Tensor]:
    if not is_constant(input_value(node, 1)):
        raise Unsupported("its weight is computed")
    data, weight = builder.read(node, 0), builder.read_weight(node, 1)
    _check_mixed(data, weight)
    if data.is_constant:
        raise Unsupported("its data is constant")
    return data, weight


def _check_mixed(left: Tensor, right: Tensor) -> None:
    if (left.encoding is None) != (right.encoding is None) and not has_blocks(right):
        raise Unsupported("it multiplies integers and floats")


def _window(
    node: ir.Node, weight: Tensor
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    kernel = tuple(int(size) for size in weight.shape[2:] if size is not None)
    return *operators.Conv.of(node).steps(len(kernel)), kernel


def _grouped_weight(weight: Tensor, groups: int) -> Tensor:
    """Return ``[C, O / groups, *K]`` as ``[O, *K, C / groups]``."""
    if weight.data is None:
        raise Unsupported("its weight is computed")
    channels, outputs, *kernel = weight.data.shape
    rank = len(kernel)
    apart = weight.data.reshape(groups, channels // groups, outputs, *kernel)
    data = apart.transpose(0, 2, *range(3, 3 + rank), 1)
    shape = (groups * outputs, *kernel, channels // groups)
    # One scale a channel: along axis 1 with one group, along axis 0 where it is depthwise.
    flat = reshape_constant(weight, weight.data.shape, 0)
    return reshape_constant(replace(flat, data=data, shape=data.shape), shape, 0)


def _cut(
    node: ir.Node,
    shape: Shape,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    output_padding: tuple[int, ...],
) -> Pads:
    """Return the pads that a ConvTranspose cuts off its full result."""
    options = operators.ConvTranspose.of(node)
    wanted = options.output_shape
    if not wanted and not options.pads_to_same:
        return window_pads(node, shape, kernel, strides, dilations)
    sizes = shape[2:]
    pads = []
    for k, size in enumerate(sizes):
        if size is None:
            raise Unsupported("its output shape depends on an axis of unknown length")
        goal = size * strides[k] if not wanted else wanted[k]
        full = (size - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 + output_padding[k]
        total = full - goal
        if total < 0:
            raise Unsupported("its output is larger than its full result")
        less = total // 2
        pads.append(
            (less, total - less) if options.auto_pad == "SAME_UPPER" else (total - less, less)
        )
    return tuple(pads)


def _bias(
    builder: ProgramBuilder, node: ir.Node, data: Tensor, weight: Tensor, channels: int | None
) -> Tensor | None:
    """Return the bias as ``[O]``: integers in units of the accumulator, or floats among floats.

    Raises:
        Unsupported: It is neither.
    """
    if input_value(node, 2) is None:
        return None
    constant_input(node, 2)
    bias = builder.read(node, 2)
    if bias.data is None or channels is None or bias.data.size not in (1, channels):
        raise Unsupported("its bias is not one number an output channel")
    # [C, 1] has as many numbers as there are channels but broadcasts along another axis.
    if bias.data.ndim and bias.data.size == channels != bias.data.shape[-1]:
        raise Unsupported("its bias is not one number an output channel")
    if bias.data.size != channels:
        row = np.broadcast_to(bias.data.reshape(-1), (channels,))
        bias = replace(bias, data=row, shape=row.shape)
    bias = reshape_constant(bias, (channels,), 0)
    encoding = bias.encoding
    if encoding is None:
        return bias
    if data.encoding is None or weight.encoding is None:
        raise Unsupported("it adds an integer bias to floats")
    # Not compared to the bit: runtimes and other quantizers round this product to float32 in their
    # own way.
    product = np.float64(data.encoding.scale) * weight.encoding.scale.astype(np.float64)
    if not np.allclose(encoding.scale, product, rtol=_SAME_SCALE, atol=0.0):
        raise Unsupported("its bias has another scale than its accumulator")
    # It would be added as many units as it stands for zeros.
    if np.any(encoding.zero_point):
        raise Unsupported("its bias has a zero point")
    return bias
