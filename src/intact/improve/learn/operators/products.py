"""Computes convolutions, products of matrices and attention in torch."""

from __future__ import annotations

from functools import reduce

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.graph import input_value
from intact.improve.learn.operators.moves import add_padding
from intact.improve.learn.operators.pools import is_even
from intact.improve.learn.operators.rules import Apply, Integers, computes, operator
from intact.ops.operators import Attention, Conv, ConvTranspose, Einsum, Gemm, MatMul
from intact.program.operations import Pads

_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
"""By the number of spatial axes, from one on."""


def _alike(*operands: Tensor | None) -> list[Tensor | None]:
    """Convert operands to the widest of their dtypes: what a Cast made may be narrower."""
    dtypes = [each.dtype for each in operands if each is not None]
    widest = reduce(torch.promote_types, dtypes)
    return [None if each is None else each.to(widest) for each in operands]


def _refuse_rank(node: ir.Node) -> None:
    shape = None if node.inputs[1] is None else node.inputs[1].shape
    if shape is not None and not 3 <= len(shape) <= len(_CONVOLUTIONS) + 2:
        raise Unsupported(f"torch has no convolution of {len(shape) - 2} spatial axes")


@operator(Conv)
def conv(node: ir.Node) -> Apply:
    """Convolve data ``[N, C, *S]`` with weights ``[M, C / group, *kernel]``."""
    _refuse_rank(node)
    windows = Conv.of(node)

    def apply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x, weight, bias = _alike(x, weight, bias)
        kernel = tuple(weight.shape[2:])
        strides, dilations = windows.steps(len(kernel))
        pads = windows.padding(x.shape[2:], kernel)
        padding = tuple(before for before, _ in pads)
        # torch pads both sides alike.
        if not is_even(pads):
            x, padding = add_padding(x, pads), (0,) * len(kernel)
        convolve = _CONVOLUTIONS[len(kernel) - 1]
        return convolve(x, weight, bias, strides, padding, dilations, windows.group)

    return apply


@operator(ConvTranspose)
def transposed_conv(node: ir.Node) -> Apply:
    """Compute a convolution's gradient: data ``[N, C, *S]``, weights ``[C, M / group, *K]``."""
    _refuse_rank(node)
    windows = ConvTranspose.of(node)
    extra, wanted, group = windows.output_padding, windows.output_shape, windows.group

    def apply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x, weight, bias = _alike(x, weight, bias)
        rank = weight.ndim - 2
        strides, dilations = windows.steps(rank)
        added = extra or (0,) * rank
        whole = [  # lengths of the result without pads
            (size - 1) * stride + (width - 1) * dilation + 1
            for size, width, stride, dilation in zip(
                x.shape[2:], weight.shape[2:], strides, dilations, strict=True
            )
        ]
        pads = _transposed_pads(windows, x, whole, added, wanted)
        lengths = wanted[-rank:] or [
            full + more - sum(pair) for full, more, pair in zip(whole, added, pads, strict=True)
        ]
        padding = tuple(max(before, 0) for before, _ in pads)
        behind = tuple(
            length - full + 2 * pad
            for length, full, pad in zip(lengths, whole, padding, strict=True)
        )
        convolve = _TRANSPOSED[rank - 1]
        if all(before >= 0 for before, _ in pads) and all(
            # torch's bounds for what it adds behind.
            0 <= more < max(stride, dilation)
            for more, stride, dilation in zip(behind, strides, dilations, strict=True)
        ):
            return convolve(x, weight, bias, strides, padding, behind, group, dilations)
        # Pads that torch does not take are cut off the whole result; the bias follows, as it fills
        # too.
        product = convolve(x, weight, None, strides, 0, 0, group, dilations)
        cuts = tuple(
            (-before, length - full + before)
            for (before, _), length, full in zip(pads, lengths, whole, strict=True)
        )
        product = add_padding(product, cuts)
        return product if bias is None else product + bias.reshape(-1, *(1,) * rank)

    return apply


def _transposed_pads(
    windows: ConvTranspose, x: Tensor, whole: list[int], extra: Integers, wanted: Integers
) -> Pads:
    """Return what is taken away on both sides, as ONNX Runtime distributes it."""
    rank = len(whole)
    if not wanted and not windows.pads_to_same:
        return windows.padding(x.shape[2:], (1,) * rank)
    strides, _ = windows.steps(rank)
    same = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    pads = []
    for full, more, length in zip(whole, extra, wanted[-rank:] or same, strict=True):
        total = max(full + more - length, 0)
        less = total // 2
        is_upper = windows.auto_pad == "SAME_UPPER"
        pads.append((less, total - less) if is_upper else (total - less, less))
    return tuple(pads)


@operator(Gemm)
def gemm(node: ir.Node) -> Apply:
    """Compute ``alpha * A * B + beta * C``: A ``[M, K]``, B ``[K, N]``, either transposed."""
    options = Gemm.of(node)
    alpha, beta, left, right = options.alpha, options.beta, options.transA, options.transB

    def apply(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a, b = _alike(a, b)
        product = torch.matmul(a.t() if left else a, b.t() if right else b)
        product = product if alpha == 1 else alpha * product
        if c is None or beta == 0:
            return product
        return product + (c if beta == 1 else beta * c)

    return apply


@computes(MatMul)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices, vectors, and stacks of matrices."""
    return torch.matmul(*_alike(a, b))


@operator(Einsum)
def einsum(node: ir.Node) -> Apply:
    """Sum products as an equation says."""
    equation = node.attributes["equation"].as_string().replace(" ", "")
    return lambda *operands: torch.einsum(equation, *_alike(*operands))


def _refuse_options(node: ir.Node) -> None:
    if any(input_value(node, slot) is not None for slot in (4, 5, 6)):
        raise Unsupported("training has no attention to keys and values of earlier runs")
    if len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("training has attention with one output only")
    if Attention.of(node).softcap:
        raise Unsupported("training has no attention with a softcap")


@operator(Attention)
def attention(node: ir.Node) -> Apply:
    """Attend to keys: all ``[N, heads, T, width]``, or ``[N, T, heads * width]``."""
    _refuse_options(node)
    options = Attention.of(node)
    is_causal, scale = bool(options.is_causal), options.scale
    heads = options.q_num_heads, options.kv_num_heads

    def split(x: Tensor, count: int) -> Tensor:
        return x if x.ndim == 4 else x.unflatten(-1, (count, -1)).transpose(1, 2)

    def apply(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = split(query, heads[0]), split(key, heads[1]), split(value, heads[1])
        repeats = q.shape[1] // k.shape[1]
        # Several heads of queries share one of keys; torch wants as many of both.
        k, v = (x if repeats == 1 else x.repeat_interleave(repeats, 1) for x in (k, v))
        causal = is_causal
        # torch takes a mask or the causal one, not both.
        if mask is not None and is_causal:
            seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
            both = mask & seen if mask.dtype is torch.bool else mask.masked_fill(~seen, -torch.inf)
            mask, causal = both, False
        result = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale)
        return result if query.ndim == 4 else result.transpose(1, 2).flatten(2)

    return apply
