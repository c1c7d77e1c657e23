"""Operators on images without weights: pools, resizing, depth and space."""

from __future__ import annotations

from intact.errors import Unsupported
from intact.formats.tflite.reading.canvas import Attribute, Input
from intact.formats.tflite.reading.common import (
    Read,
    finish,
    keeps_scale,
    mixes_batch,
    needs_rank,
    needs_shape,
    positive,
    slot,
    window_pads,
)
from intact.formats.tflite.reading.draft import Draft
from intact.formats.tflite.reading.file import FileTensor, Operator
from intact.formats.tflite.reading.layouts import Layout, arranged


def _pool(op_type: str) -> Read:
    """AVERAGE_POOL_2D and MAX_POOL_2D: pads count in neither."""

    def read(draft: Draft, op: Operator) -> None:
        data, output = draft.tensor(slot(op, 0)), draft.tensor(op.outputs[0])
        needs_rank(data, 4)
        needs_rank(output, 4)
        kernel = positive(op, "filter_h", "filter_w")
        strides = positive(op, "stride_h", "stride_w")
        sizes = output.shape[1:3]
        pads = window_pads(op, data.shape[1:3], kernel, strides, (1, 1), sizes)
        needs_shape(draft, op.outputs[0], (data.shape[0], *sizes, data.shape[3]))
        keeps_scale(draft, slot(op, 0), op.outputs[0])
        source = draft.operand(slot(op, 0), Layout.FIRST)
        attributes: dict[str, Attribute] = {
            "kernel_shape": kernel,
            "strides": strides,
            "pads": pads,
        }
        if op_type == "MaxPool":  # it moves codes, which are clamped then
            shape = arranged(output.shape, Layout.FIRST)
            finish(draft, op, draft.moved(op_type, [source], attributes, shape), Layout.FIRST)
        else:
            finish(draft, op, draft.node(op_type, [source], attributes), Layout.FIRST)

    return read


def _resize(mode: str) -> Read:
    """RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""

    def read(draft: Draft, op: Operator) -> None:
        data, output = draft.tensor(slot(op, 0)), draft.tensor(op.outputs[0])
        needs_rank(data, 4)
        sizes = draft.list_of(slot(op, 1))
        needs_shape(draft, op.outputs[0], (data.shape[0], *sizes, data.shape[3]))
        keeps_scale(draft, slot(op, 0), op.outputs[0])
        align, half = op.options["align_corners"], op.options["half_pixel_centers"]
        if align and half:
            raise Unsupported("its corners are aligned and its pixels have centres")
        how = "align_corners" if align else "half_pixel" if half else "asymmetric"
        attributes: dict[str, int | str | tuple[int, ...]] = {
            "mode": mode,
            "coordinate_transformation_mode": how,
            "axes": (2, 3),
        }
        if mode == "nearest":  # halves go up where coordinates are rounded
            attributes["nearest_mode"] = "floor" if how == "asymmetric" else "round_prefer_ceil"
        source = draft.operand(slot(op, 0), Layout.FIRST)
        lengths = draft.integers(*output.shape[1:3])
        value = draft.node("Resize", [source, None, None, lengths], attributes)
        draft.write(op.outputs[0], value, Layout.FIRST)

    return read


def depth_to_space(draft: Draft, op: Operator) -> None:
    """DEPTH_TO_SPACE: depth is split as block row, block column, channel."""
    data, (block,) = draft.tensor(slot(op, 0)), positive(op, "block_size")
    needs_rank(data, 4)
    batch, height, width, depth = data.shape
    if depth % (block * block):
        raise Unsupported(f"{depth} channels do not make blocks of {block}")
    shape = (batch, height * block, width * block, depth // block // block)
    needs_shape(draft, op.outputs[0], shape)
    keeps_scale(draft, slot(op, 0), op.outputs[0])
    source = draft.operand(slot(op, 0), Layout.FIRST)
    value = draft.node("DepthToSpace", [source], {"blocksize": block, "mode": "DCR"})
    draft.write(op.outputs[0], value, Layout.FIRST)


def space_to_depth(draft: Draft, op: Operator) -> None:
    """SPACE_TO_DEPTH, the inverse."""
    data, (block,) = draft.tensor(slot(op, 0)), positive(op, "block_size")
    needs_rank(data, 4)
    batch, height, width, depth = data.shape
    if height % block or width % block:
        raise Unsupported(f"{height}x{width} elements do not make blocks of {block}")
    shape = (batch, height // block, width // block, depth * block * block)
    needs_shape(draft, op.outputs[0], shape)
    keeps_scale(draft, slot(op, 0), op.outputs[0])
    source = draft.operand(slot(op, 0), Layout.FIRST)
    value = draft.node("SpaceToDepth", [source], {"blocksize": block})
    draft.write(op.outputs[0], value, Layout.FIRST)


def space_to_batch(draft: Draft, op: Operator) -> None:
    """SPACE_TO_BATCH_ND of images: pads with zeros, then puts the pixels of blocks in samples."""
    mixes_batch(draft, True)
    data, blocks, pads = _blocks(draft, op)
    padded = tuple(
        size + before + after for size, (before, after) in zip(data.shape[1:3], pads, strict=True)
    )
    if any(size % block for size, block in zip(padded, blocks, strict=True)):
        raise Unsupported(f"{list(padded)} elements do not make blocks of {list(blocks)}")
    operand = draft.operand(slot(op, 0))
    batch, depth = data.shape[0], data.shape[3]
    if any(map(any, pads)):
        around = draft.integers(0, *(p[0] for p in pads), 0, 0, *(p[1] for p in pads), 0)
        operand = draft.moved("Pad", [operand, around], None, (batch, *padded, depth))
    (rows, columns), (high, wide) = blocks, (padded[0] // blocks[0], padded[1] // blocks[1])
    operand = draft.reshaped(operand, (batch, high, rows, wide, columns, depth))
    shape = (rows, columns, batch, high, wide, depth)
    operand = draft.moved("Transpose", [operand], {"perm": (2, 4, 0, 1, 3, 5)}, shape)
    result = (rows * columns * batch, high, wide, depth)
    needs_shape(draft, op.outputs[0], result)
    draft.write(op.outputs[0], draft.reshaped(operand, result).value)


def batch_to_space(draft: Draft, op: Operator) -> None:
    """BATCH_TO_SPACE_ND of images, the inverse: what was padded is cropped."""
    mixes_batch(draft, True)
    data, (rows, columns), crops = _blocks(draft, op)
    samples, high, wide, depth = data.shape
    batch = samples // (rows * columns)
    if samples % (rows * columns):
        raise Unsupported(f"{samples} samples do not make blocks of {rows}x{columns}")
    operand = draft.operand(slot(op, 0))
    operand = draft.reshaped(operand, (rows, columns, batch, high, wide, depth))
    shape = (batch, high, rows, wide, columns, depth)
    operand = draft.moved("Transpose", [operand], {"perm": (2, 3, 0, 4, 1, 5)}, shape)
    full = (high * rows, wide * columns)
    operand = draft.reshaped(operand, (batch, *full, depth))
    if any(map(any, crops)):
        starts = tuple(before for before, _ in crops)
        stops = tuple(size - after for size, (_, after) in zip(full, crops, strict=True))
        kept = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        inputs: list[Input] = [
            operand,
            draft.integers(*starts),
            draft.integers(*stops),
            draft.integers(1, 2),
        ]
        operand = draft.moved("Slice", inputs, None, (batch, *kept, depth))
    needs_shape(draft, op.outputs[0], operand.shape)
    value = operand.value if operand.value.name is None else draft.node("Identity", [operand])
    draft.write(op.outputs[0], value)


def _blocks(
    draft: Draft, op: Operator
) -> tuple[FileTensor, tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the data, the block's lengths, and what is added or cut before and after."""
    data = draft.tensor(slot(op, 0))
    needs_rank(data, 4)
    keeps_scale(draft, slot(op, 0), op.outputs[0])
    blocks, borders = draft.list_of(slot(op, 1)), draft.list_of(slot(op, 2))
    if len(blocks) != 2 or len(borders) != 4 or min(blocks) < 1 or min(borders) < 0:
        raise Unsupported(f"its blocks are {list(blocks)}, its borders {list(borders)}")
    return data, blocks, (borders[:2], borders[2:])


TABLE: dict[str, Read] = {
    "AVERAGE_POOL_2D": _pool("AveragePool"),
    "MAX_POOL_2D": _pool("MaxPool"),
    "RESIZE_BILINEAR": _resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
    "DEPTH_TO_SPACE": depth_to_space,
    "SPACE_TO_DEPTH": space_to_depth,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "BATCH_TO_SPACE_ND": batch_to_space,
}
