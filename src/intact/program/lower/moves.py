"""Lowers nodes that move, join, select and repeat values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import input_value, is_constant
from intact.ops import operators
from intact.program.forms import has_blocks, shape_of
from intact.program.lower.attributes import axis_of, constant_input, integers
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.lowerings import LOWERINGS, finish_move
from intact.program.operations import (
    Concat,
    DepthToSpace,
    Expand,
    Gather,
    Lookup,
    Operation,
    Pad,
    Pads,
    Reshape,
    Resize,
    ResizeMode,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
)
from intact.program.program import Shape, Tensor


@LOWERINGS.register("Identity", "Dropout", any_rank=True)
def identity(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Identity and Dropout: nothing, or a requantization."""
    node = chain[0]
    if len(chain) > 1 or len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("something is fused behind it, or it has a mask as an output")
    builder.set_result(node.outputs[0], builder.read(node, 0))


@LOWERINGS.register("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Reshape, Flatten, Squeeze and Unsqueeze."""
    value = chain[0].outputs[0]
    shape = shape_of(value)
    if sum(size is None for size in shape) > 1:
        raise Unsupported("more than one length of its output is not known")
    operation = Reshape(tuple(-1 if size is None else size for size in shape))
    finish_move(builder, chain, operation, (builder.read(chain[0], 0),))


@LOWERINGS.register("Transpose")
def transpose(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Transpose."""
    data = builder.read(chain[0], 0)
    order = operators.Transpose.of(chain[0]).perm or tuple(reversed(range(len(data.shape))))
    finish_move(builder, chain, Transpose(order), (data,))


@LOWERINGS.register("Concat")
def concat(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Concat; operands of another encoding than the result are requantized first."""
    node = chain[0]
    operands = [builder.read(node, slot) for slot, _ in enumerate(node.inputs)]
    rank = len(operands[0].shape)
    wanted = builder.wanted_encoding(node.outputs[0])
    # One operand in float makes the whole in float: it is quantized behind the Concat, once.
    if wanted is None or any(tensor.encoding is None for tensor in operands):
        operands = [builder.dequantize(tensor) for tensor in operands]
    else:
        operands = [builder.encode(tensor, wanted) for tensor in operands]
    finish_move(builder, chain, Concat(axis_of(node, rank)), operands)


@LOWERINGS.register("Pad")
def pad(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Pad with a number, or with elements of the data."""
    node = chain[0]
    mode = operators.Pad.of(node).mode
    data = builder.read(node, 0)
    pads = pads_of(node, len(data.shape))
    if min(min(pair) for pair in pads) < 0:
        raise Unsupported("its pads are negative")
    if mode == "constant":
        finish_move(builder, chain, Pad(pads, value=pad_value(node)), (data,))
    else:
        _repeat_elements(builder, chain, data, pads, mode)


_PADS_OF_DATA = ("edge", "reflect", "wrap")
"""Modes of Pad, which NumPy calls alike."""


def _repeat_elements(
    builder: ProgramBuilder, chain: tuple[ir.Node, ...], data: Tensor, pads: Pads, mode: str
) -> None:
    """Take the elements along one axis after the other, those of the pads among them."""
    if mode not in _PADS_OF_DATA:
        raise Unsupported(f"its mode is {mode}")
    gathers = []
    for axis, pair in enumerate(pads):
        length = data.shape[axis]
        if not any(pair):
            continue
        if length is None:
            raise Unsupported(f"it pads an axis of unknown length in mode {mode}")
        indices = np.pad(np.arange(length), pair, mode=mode)  # type: ignore[call-overload]
        gathers.append(Gather(axis, indices.astype(np.int64)))
    if not gathers:
        builder.set_result(chain[0].outputs[0], data)
        return
    # All but the last are inner results; the last one's is the node's.
    for gather in gathers[:-1]:
        shape = list(data.shape)
        shape[gather.axis] = gather.indices.size
        part = replace(builder.inner(chain[0].outputs[0], tuple(shape)), encoding=data.encoding)
        builder.emit(chain, gather, (data,), (part,))
        data = part
    finish_move(builder, chain, gathers[-1], (data,))


def pad_value(node: ir.Node) -> float:
    """Read the number that a Pad surrounds its data with.

    Raises:
        Unsupported: It is computed, or no number.
    """
    given = constant_input(node, 2)
    value = operators.Pad.of(node).value if given is None else float(given.item())
    if np.isnan(value):
        raise Unsupported("it pads with what is no number")
    return value


def pads_of(node: ir.Node, rank: int) -> Pads:
    """Read the constant pads of a Pad, by axis.

    Raises:
        Unsupported: They are computed.
    """
    flat, axes = integers(node, "pads", 1), integers(node, "axes", 3)
    if flat is None:
        raise Unsupported("its pads are computed")
    chosen = tuple(range(rank)) if axes is None else tuple(axis % rank for axis in axes)
    pads = [(0, 0)] * rank
    for axis, before, after in zip(chosen, flat, flat[len(chosen) :], strict=False):
        pads[axis] = (before, after)
    return tuple(pads)


@LOWERINGS.register("Slice")
def slicing(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Slice with constant limits."""
    node = chain[0]
    data = builder.read(node, 0)
    rank = len(data.shape)
    starts, ends = integers(node, "starts", 1), integers(node, "ends", 2)
    if starts is None or ends is None:
        raise Unsupported("its limits are computed")
    axes = integers(node, "axes", 3) or tuple(range(len(starts)))
    steps = integers(node, "steps", 4) or (1,) * len(starts)
    first: list[int | None] = [None] * rank
    last: list[int | None] = [None] * rank
    by = [1] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first[axis], last[axis], by[axis] = _limits(start, end, step, data.shape[axis])
    finish_move(builder, chain, Slice(tuple(first), tuple(last), tuple(by)), (data,))


def _limits(
    start: int, end: int, step: int, size: int | None
) -> tuple[int | None, int | None, int]:
    """Return ONNX's limits, which clamp, as Python's, in which None is an open end."""
    far = 1 << 31
    if size is not None:
        first, last, _ = slice(start, end, step).indices(size)
        if step < 0:  # ONNX begins at an element, and -2**63 ends in front of the first
            return max(first, 0), None if last < 0 else last, step
        return first, last, step
    if step < 0:
        raise Unsupported("it runs backwards over an axis of unknown length")
    return start, None if end >= far else end, step


@LOWERINGS.register("Split")
def split(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Split into parts of constant sizes."""
    node = chain[0]
    data = builder.read(node, 0)
    axis = axis_of(node, len(data.shape))
    sizes = [shape_of(value)[axis : axis + 1] for value in node.outputs]
    if any(not size or size[0] is None for size in sizes):
        raise Unsupported("the sizes of its parts are not known")
    parts = tuple(size[0] for size in sizes if size and size[0] is not None)
    finish_move(builder, chain, Split(axis, parts), (data,))


@LOWERINGS.register("Gather")
def gather(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Gather: a selection where the indices are constant, else a look-up."""
    node = chain[0]
    data = builder.read_weight(node, 0)
    axis = axis_of(node, len(data.shape))
    chosen = input_value(node, 1)
    if chosen is None or not is_constant(chosen):
        if has_blocks(data):
            result = builder.result(node.outputs[0])
            builder.emit(chain, Lookup(axis), (data, builder.read(node, 1)), (result,))
            builder.set_result(node.outputs[0], result)
            return
        finish_move(builder, chain, Lookup(axis), (data, builder.read(node, 1)))
        return
    indices, size = constant_input(node, 1), data.shape[axis]
    if data.is_constant or indices is None:
        raise Unsupported("its data and its indices are constant")
    indices = indices.astype(np.int64)
    # Operations have no negative indices: fewer cases for every kernel and writer.
    if (indices < 0).any():
        if size is None:
            raise Unsupported("it counts from the end of an axis of unknown length")
        indices = np.where(indices < 0, indices + size, indices)
    finish_move(builder, chain, Gather(axis, indices), (data,))


@LOWERINGS.register("Tile")
def tile(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Tile with constant repeats."""
    repeats = integers(chain[0], "repeats", 1)
    if repeats is None:
        raise Unsupported("its repeats are computed")
    finish_move(builder, chain, Tile(repeats), (builder.read(chain[0], 0),))


@LOWERINGS.register("Expand")
def expand(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Expand to a constant shape."""
    wanted = constant_input(chain[0], 1)
    if wanted is None:
        raise Unsupported("its shape is computed")
    data = builder.read(chain[0], 0)
    rank = max(len(data.shape), wanted.size)
    shape = (1,) * (rank - wanted.size) + tuple(int(size) for size in wanted)
    # 1 keeps the input's length, as broadcasting does; -1 says so without knowing it.
    operation = Expand(tuple(-1 if size == 1 else size for size in shape))
    finish_move(builder, chain, operation, (data,))


@LOWERINGS.register("DepthToSpace", "SpaceToDepth")
def depth_to_space(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """DepthToSpace of either mode, and SpaceToDepth."""
    node = chain[0]
    options = operators.DepthToSpace.of(node)
    block = options.blocksize
    operation: Operation = SpaceToDepth(block)
    data = builder.read(node, 0)
    if node.op_type == "DepthToSpace":
        operation = DepthToSpace(block)
        if options.mode != "DCR":
            data = _channel_last(builder, chain, data, block)
    finish_move(builder, chain, operation, (builder.channels_last(data),), channels_last=True)


def _channel_last(
    builder: ProgramBuilder, chain: tuple[ir.Node, ...], data: Tensor, block: int
) -> Tensor:
    """Return data whose depth (channel, block row, block column) is (row, column, channel)."""
    depth = data.shape[1]
    if depth is None:
        raise Unsupported("the number of its channels is not known")
    # CRD is DCR of channels in another order: one Gather in front of the kernel that runtimes have.
    order = np.arange(depth).reshape(-1, block * block).T.reshape(-1)
    part = replace(builder.inner(chain[0].outputs[0], data.shape), encoding=data.encoding)
    builder.emit(chain, Gather(1, order), (data,), (part,))
    return part


_TRANSFORMS = {
    "asymmetric": (False, False),
    "align_corners": (True, False),
    "half_pixel": (False, True),
    "pytorch_half_pixel": (False, True),
}
"""(align_corners, half_pixel) by coordinate_transformation_mode."""

_ROUNDINGS = {
    (False, False): {"floor"},
    (True, False): {"round_prefer_ceil"},
    (False, True): {"round_prefer_ceil"},
}
"""What the nearest_mode must be for the operation to mean the same."""


_TOLERANCE = 1e-3
"""Elements by which a length may differ from its factor times the length before."""


@LOWERINGS.register("Resize")
def resize(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Resize of the spatial axes to a known size, nearest or linear."""
    add_resize(builder, chain)


def add_resize(
    builder: ProgramBuilder, chain: tuple[ir.Node, ...], *, approximate: bool = False
) -> None:
    """Add the step of a Resize.

    Args:
        builder: Where the steps go.
        chain: The node.
        approximate: Also take factors that are those of the lengths up to rounding, and an output
            whose first length is another than the input's, as files of single samples do.
    """
    node = chain[0]
    data, value = builder.read(node, 0), node.outputs[0]
    shape, rank = shape_of(value), len(data.shape)
    options = operators.Resize.of(node)
    mode, transform = options.mode, options.coordinate_transformation_mode
    if approximate and transform == "half_pixel_symmetric":
        transform = "half_pixel"  # they differ where lengths are no whole products of factors
    if mode not in {"nearest", "linear"} or transform not in _TRANSFORMS:
        raise Unsupported(f"its mode is {mode} with {transform}")
    if options.antialias:
        raise Unsupported("it has antialias")
    kept = slice(1, 2) if approximate else slice(2)
    if len(shape) != rank or shape[kept] != data.shape[kept] or None in shape[2:]:
        raise Unsupported("it resizes other axes than the spatial ones, or to unknown lengths")
    if not _scales_exactly(node, data.shape, shape, _TOLERANCE if approximate else 0.0):
        raise Unsupported("its factors are not those of its lengths")
    corners = _TRANSFORMS[transform]
    if mode == "nearest":
        nearest = options.nearest_mode
        if nearest not in _ROUNDINGS[corners] | _free_of_ties(corners, data.shape, shape):
            raise Unsupported(f"its nearest_mode is {nearest} with {transform}")
    # To one element PyTorch samples at 0, half_pixel in the middle.
    if transform == "pytorch_half_pixel" and 1 in shape[2:]:
        raise Unsupported("it resizes to one element with pytorch_half_pixel")
    sizes = tuple(size for size in shape[2:] if size is not None)
    operation = Resize(ResizeMode(mode), sizes, *corners)
    finish_move(builder, chain, operation, (builder.channels_last(data),), channels_last=True)


def _scales_exactly(node: ir.Node, old: Shape, new: Shape, tolerance: float) -> bool:
    """Tell whether the factors that sample the input are the ratios of the lengths.

    Where factors are given, ONNX samples with them and not with the lengths that they round to.
    """
    scales = constant_input(node, 2)
    if scales is None or scales.size == 0:
        return True
    axes = integers(node, "axes") or tuple(range(len(old)))
    for axis, factor in zip(axes, scales.reshape(-1), strict=True):
        before, after = old[axis], new[axis]
        if before is None or after is None:
            if factor != 1.0:
                return False
        elif not abs(before * float(factor) - after) <= tolerance:
            return False
    return True


def _free_of_ties(corners: tuple[bool, bool], old: Shape, new: Shape) -> set[str]:
    """Return further modes that take the same elements, because no sample lies between two.

    Enlarged by a whole number, the samples of half_pixel lie at odd multiples of 1/2f; those of
    asymmetric at multiples of 1/f, where for f = 2 the middle falls to the floor.
    """
    pairs = list(zip(old[2:], new[2:], strict=True))
    if not all(a and b and b % a == 0 for a, b in pairs):
        return set()
    if corners == (False, True):
        return {"round_prefer_floor", "round_prefer_ceil"}
    if corners == (False, False) and all(a and b and b // a <= 2 for a, b in pairs):
        return {"round_prefer_floor"}
    return set()
