"""Computes operators that reorder, repeat, cut or join elements in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.graph import input_value
from intact.improve.learn.operators.rules import (
    Apply,
    Integers,
    computes,
    integers,
    nonnegative,
    number,
    operator,
)
from intact.ops import operators
from intact.program.operations import Pads


@computes("Identity")
def identity(x: Tensor) -> Tensor:
    """Return the operand."""
    return x


@operator("Reshape")
def reshape(node: ir.Node) -> Apply:
    """Give another shape; 0 copies a length unless ``allowzero``, -1 is what remains."""
    wanted = integers(node, 1)
    copies = not operators.Reshape.of(node).allowzero

    def apply(x: Tensor, shape: Tensor | None = None) -> Tensor:
        lengths = wanted(shape) or ()
        # torch finds no length for -1 where there are no elements.
        if x.numel() == 0:
            return x.reshape(_resolve_lengths(x.shape, lengths, copies=copies))
        # With elements a 0 always copies: a length of 0 would leave none.
        return x.reshape([x.shape[k] if n == 0 else n for k, n in enumerate(lengths)])

    return apply


def _resolve_lengths(sizes: Sequence[int], wanted: Integers, *, copies: bool) -> list[int]:
    """Return lengths for those of a Reshape of no elements, for which torch finds no open one."""
    copied = {k for k, length in enumerate(wanted) if copies and length == 0}
    lengths = [sizes[k] if k in copied else length for k, length in enumerate(wanted)]
    if -1 in lengths:
        rest = math.prod(size for k, size in enumerate(sizes) if k not in copied)
        known = math.prod(n for k, n in enumerate(lengths) if k not in copied and n != -1)
        lengths[lengths.index(-1)] = rest // known if known else 0
    return lengths


@operator("Transpose")
def transpose(node: ir.Node) -> Apply:
    """Reorder axes; by default the other way round."""
    order = operators.Transpose.of(node).perm
    return lambda x: x.permute(order or tuple(range(x.ndim))[::-1])


@operator("Flatten")
def flatten(node: ir.Node) -> Apply:
    """Join the axes before one and those from it on: a matrix."""
    first = operators.Flatten.of(node).axis

    def apply(x: Tensor) -> Tensor:
        axis = nonnegative(first, x.ndim)
        return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))

    return apply


@operator("Squeeze")
def squeeze(node: ir.Node) -> Apply:
    """Remove axes of length 1: those that are listed, or all."""
    listed = integers(node, 1, "axes")

    def apply(x: Tensor, axes: Tensor | None = None) -> Tensor:
        found = listed(axes)
        return x.squeeze() if found is None else x.squeeze(found)

    return apply


@operator("Unsqueeze")
def unsqueeze(node: ir.Node) -> Apply:
    """Insert axes of length 1 where the result has them."""
    listed = integers(node, 1, "axes")

    def apply(x: Tensor, axes: Tensor | None = None) -> Tensor:
        found = listed(axes) or ()
        rank = x.ndim + len(found)
        # In order: each place is one of the result, counted with those before it.
        for axis in sorted(nonnegative(axis, rank) for axis in found):
            x = x.unsqueeze(axis)
        return x

    return apply


@operator("Concat")
def concat(node: ir.Node) -> Apply:
    """Join tensors along an axis."""
    axis = operators.Concat.of(node).axis
    return lambda *operands: torch.cat(operands, axis)


@operator("Split")
def split(node: ir.Node) -> Apply:
    """Cut along an axis, by lengths or into equal parts (the last one may be shorter)."""
    axis, count = operators.Split.of(node).axis, len(node.outputs)
    listed = integers(node, 1, "split")

    def apply(x: Tensor, sizes: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        lengths = listed(sizes)
        if lengths is None:
            size = x.shape[axis]
            part = -(-size // count)
            lengths = tuple(min(part, size - part * k) for k in range(count))
        parts = tuple(x.split(lengths, axis))
        return parts if count > 1 else parts[0]

    return apply


@operator("Slice")
def slices(node: ir.Node) -> Apply:
    """Cut a range out of each listed axis; steps may go backwards."""
    read = [integers(node, slot) for slot in (1, 2, 3, 4)]

    def apply(x: Tensor, *arguments: Tensor | None) -> Tensor:
        given = (*arguments, None, None, None, None)[:4]
        starts, ends, axes, steps = (one(each) for one, each in zip(read, given, strict=True))
        starts, ends = starts or (), ends or ()
        axes = tuple(range(len(starts))) if axes is None else axes
        steps = (1,) * len(starts) if steps is None else steps
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            x = _cut(x, axis, range(*slice(start, end, step).indices(x.shape[axis])))
        return x

    return apply


def _cut(x: Tensor, axis: int, places: range) -> Tensor:
    """Take the places of a range along an axis; torch itself only steps forwards."""
    forwards = places if places.step > 0 else places[::-1]
    index: list[slice] = [slice(None)] * x.ndim
    start, stop = (forwards[0], forwards[-1] + 1) if forwards else (0, 0)
    index[axis] = slice(start, stop, forwards.step)
    part = x[tuple(index)]
    return part if places.step > 0 else part.flip(axis)


def add_padding(x: Tensor, pads: Pads, value: float = 0.0) -> Tensor:
    """Pad the last axes with a value; negative pads take elements away."""
    # torch lists pads from the last axis on.
    flat = [each for pair in reversed(pads) for each in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


@operator("Pad")
def pad(node: ir.Node) -> Apply:
    """Pad listed axes with a value or with what lies within; negative pads take elements away."""
    mode = operators.Pad.of(node).mode
    if mode not in {"constant", "edge", "reflect", "wrap"}:
        raise Unsupported(f"training has no pads of mode {mode!r}")
    listed, along, fixed = integers(node, 1, "pads"), integers(node, 3), number(node, 2, "value")
    has_value = input_value(node, 2) is not None

    def apply(
        x: Tensor,
        amounts: Tensor | None = None,
        value: Tensor | None = None,
        axes: Tensor | None = None,
    ) -> Tensor:
        flat, chosen = listed(amounts) or (), along(axes)
        chosen = tuple(range(x.ndim)) if chosen is None else chosen
        pads = [(0, 0)] * x.ndim
        for k, axis in enumerate(chosen):
            pads[axis] = (flat[k], flat[k + len(chosen)])
        if mode == "constant":
            filling = fixed
            if filling is None and has_value and value is not None and value.numel():
                filling = value.item()
            return add_padding(x, tuple(pads), filling or 0)
        for axis, (before, behind) in enumerate(pads):
            if before or behind:
                x = _mirror(x, axis, before, behind, mode)
        return x

    return apply


def _mirror(x: Tensor, axis: int, before: int, behind: int, mode: str) -> Tensor:
    """Take elements away at the ends of an axis, then pad it with what is left."""
    first = max(-before, 0)
    x = x.narrow(axis, first, x.shape[axis] - first - max(-behind, 0))
    size = x.shape[axis]
    places = torch.arange(-max(before, 0), size + max(behind, 0), device=x.device)
    if mode == "edge":
        places = places.clamp(0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = places % period
        places = torch.minimum(places, period - places).clamp(max=size - 1)
    return x.index_select(axis, places)


@operator("Tile")
def tile(node: ir.Node) -> Apply:
    """Repeat along each axis."""
    listed = integers(node, 1)

    def apply(x: Tensor, repeats: Tensor | None = None) -> Tensor:
        return x.repeat(listed(repeats) or ())

    return apply


@operator("Expand")
def expand(node: ir.Node) -> Apply:
    """Broadcast to a shape; its lengths of 1 leave those of the data."""
    listed = integers(node, 1)

    def apply(x: Tensor, shape: Tensor | None = None) -> Tensor:
        return x.expand(torch.broadcast_shapes(x.shape, listed(shape) or ()))

    return apply


@operator("DepthToSpace")
def depth_to_space(node: ir.Node) -> Apply:
    """Turn channels into blocks of pixels: data ``[N, C, H, W]``."""
    options = operators.DepthToSpace.of(node)
    b, is_depth_first = options.blocksize, options.mode == "DCR"

    def apply(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        depth = c // (b * b)
        if is_depth_first:
            blocks = x.reshape(n, b, b, depth, h, w).permute(0, 3, 4, 1, 5, 2)
        else:
            blocks = x.reshape(n, depth, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
        return blocks.reshape(n, depth, h * b, w * b)

    return apply


@operator("SpaceToDepth")
def space_to_depth(node: ir.Node) -> Apply:
    """Turn blocks of pixels into channels: data ``[N, C, H, W]``."""
    b = operators.SpaceToDepth.of(node).blocksize

    def apply(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
        return blocks.reshape(n, c * b * b, h // b, w // b)

    return apply


@operator("Trilu")
def triangle(node: ir.Node) -> Apply:
    """Keep the upper or lower triangle of matrices."""
    function = torch.triu if operators.Trilu.of(node).upper else torch.tril
    listed = integers(node, 1)

    def apply(x: Tensor, diagonal: Tensor | None = None) -> Tensor:
        return function(x, (listed(diagonal) or (0,))[0])

    return apply


@operator("CenterCropPad")
def center_crop_pad(node: ir.Node) -> Apply:
    """Cut or pad axes around their middle, with zeros."""
    listed, chosen = integers(node, 1), operators.CenterCropPad.of(node).axes

    def apply(x: Tensor, shape: Tensor | None = None) -> Tensor:
        pads = [(0, 0)] * x.ndim
        axes = chosen or range(x.ndim)
        for axis, length in zip(axes, listed(shape) or (), strict=True):
            more = length - x.shape[axis]
            before = more // 2 if more > 0 else -(-more // 2)
            pads[axis] = (before, more - before)
        return add_padding(x, tuple(pads))

    return apply
