"""Reads TFLite's operators on images without weights: pools, resizing, depth and space."""

from __future__ import annotations

from intact.errors import Unsupported
from intact.formats.base.foreign import refuse_mixed_batch, slot
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.common import (
    READERS,
    finish,
    positive_options,
    require_rank,
    require_same_scale,
    require_shape,
    window_pads,
)
from intact.formats.tflite.reader.file import FileTensor, Operator
from intact.formats.tflite.reader.tensors import ChannelLayout, Input, arranged
from intact.formats.tflite.spellings import POOLS, RESIZES, rows_by_code
from intact.graph.builder import Attribute
from intact.ops.operators import DepthToSpace, MaxPool, Pad, Resize, Slice, SpaceToDepth, Transpose

_POOLS, _RESIZES = rows_by_code(POOLS), rows_by_code(RESIZES)


@READERS.register(*_POOLS)
def pool(builder: ModelBuilder, op: Operator) -> None:
    """Read AVERAGE_POOL_2D and MAX_POOL_2D: pads count in neither."""
    op_type = _POOLS[op.name].onnx
    data, output = builder.tensor(slot(op.inputs, 0)), builder.tensor(op.outputs[0])
    require_rank(data, 4)
    require_rank(output, 4)
    kernel = positive_options(op, "filter_h", "filter_w")
    strides = positive_options(op, "stride_h", "stride_w")
    sizes = output.shape[1:3]
    pads = window_pads(op, data.shape[1:3], kernel, strides, (1, 1), sizes)
    require_shape(builder, op.outputs[0], (data.shape[0], *sizes, data.shape[3]))
    require_same_scale(builder, slot(op.inputs, 0), op.outputs[0])
    source = builder.operand(slot(op.inputs, 0), ChannelLayout.FIRST)
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
    }
    if op_type == MaxPool.name:  # it moves codes, which are clamped then
        shape = arranged(output.shape, ChannelLayout.FIRST)
        finish(
            builder, op, builder.moved(op_type, [source], attributes, shape), ChannelLayout.FIRST
        )
    else:
        finish(builder, op, builder.node(op_type, [source], attributes), ChannelLayout.FIRST)


@READERS.register(*_RESIZES)
def resize(builder: ModelBuilder, op: Operator) -> None:
    """Read RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""
    mode = _RESIZES[op.name].ours.value
    data, output = builder.tensor(slot(op.inputs, 0)), builder.tensor(op.outputs[0])
    require_rank(data, 4)
    sizes = builder.list_of(slot(op.inputs, 1))
    require_shape(builder, op.outputs[0], (data.shape[0], *sizes, data.shape[3]))
    require_same_scale(builder, slot(op.inputs, 0), op.outputs[0])
    align, half = op.options["align_corners"], op.options["half_pixel_centers"]
    # LiteRT refuses both at once, and ONNX has no name for it.
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
    source = builder.operand(slot(op.inputs, 0), ChannelLayout.FIRST)
    # By lengths and not by factors, since TFLite's coordinates follow from lengths.
    lengths = builder.integers(*output.shape[1:3])
    value = builder.node(Resize, [source, None, None, lengths], attributes)
    builder.write(op.outputs[0], value, ChannelLayout.FIRST)


@READERS.register("DEPTH_TO_SPACE")
def depth_to_space(builder: ModelBuilder, op: Operator) -> None:
    """Read DEPTH_TO_SPACE: depth is split as block row, block column, channel."""
    data, (block,) = builder.tensor(slot(op.inputs, 0)), positive_options(op, "block_size")
    require_rank(data, 4)
    batch, height, width, depth = data.shape
    if depth % (block * block):
        raise Unsupported(f"{depth} channels do not make blocks of {block}")
    shape = (batch, height * block, width * block, depth // block // block)
    require_shape(builder, op.outputs[0], shape)
    require_same_scale(builder, slot(op.inputs, 0), op.outputs[0])
    source = builder.operand(slot(op.inputs, 0), ChannelLayout.FIRST)
    value = builder.node(DepthToSpace, [source], {"blocksize": block, "mode": "DCR"})
    builder.write(op.outputs[0], value, ChannelLayout.FIRST)


@READERS.register("SPACE_TO_DEPTH")
def space_to_depth(builder: ModelBuilder, op: Operator) -> None:
    """Read SPACE_TO_DEPTH, the inverse."""
    data, (block,) = builder.tensor(slot(op.inputs, 0)), positive_options(op, "block_size")
    require_rank(data, 4)
    batch, height, width, depth = data.shape
    if height % block or width % block:
        raise Unsupported(f"{height}x{width} elements do not make blocks of {block}")
    shape = (batch, height // block, width // block, depth * block * block)
    require_shape(builder, op.outputs[0], shape)
    require_same_scale(builder, slot(op.inputs, 0), op.outputs[0])
    source = builder.operand(slot(op.inputs, 0), ChannelLayout.FIRST)
    value = builder.node(SpaceToDepth, [source], {"blocksize": block})
    builder.write(op.outputs[0], value, ChannelLayout.FIRST)


@READERS.register("SPACE_TO_BATCH_ND")
def space_to_batch(builder: ModelBuilder, op: Operator) -> None:
    """Read SPACE_TO_BATCH_ND of images: it pads, then puts the pixels of blocks in samples."""
    # Pixels become samples, so that the number of these cannot stay open.
    refuse_mixed_batch(builder, True)
    data, blocks, pads = _blocks(builder, op)
    padded = tuple(
        size + before + after for size, (before, after) in zip(data.shape[1:3], pads, strict=True)
    )
    if any(size % block for size, block in zip(padded, blocks, strict=True)):
        raise Unsupported(f"{list(padded)} elements do not make blocks of {list(blocks)}")
    operand = builder.operand(slot(op.inputs, 0))
    batch, depth = data.shape[0], data.shape[3]
    if any(map(any, pads)):
        around = builder.integers(0, *(p[0] for p in pads), 0, 0, *(p[1] for p in pads), 0)
        operand = builder.moved(Pad, [operand, around], None, (batch, *padded, depth))
    (rows, columns), (high, wide) = blocks, (padded[0] // blocks[0], padded[1] // blocks[1])
    operand = builder.reshaped(operand, (batch, high, rows, wide, columns, depth))
    shape = (rows, columns, batch, high, wide, depth)
    operand = builder.moved(Transpose, [operand], {"perm": (2, 4, 0, 1, 3, 5)}, shape)
    result = (rows * columns * batch, high, wide, depth)
    require_shape(builder, op.outputs[0], result)
    builder.write(op.outputs[0], builder.reshaped(operand, result).value)


@READERS.register("BATCH_TO_SPACE_ND")
def batch_to_space(builder: ModelBuilder, op: Operator) -> None:
    """Read BATCH_TO_SPACE_ND of images, the inverse: what was padded is cropped."""
    refuse_mixed_batch(builder, True)
    data, (rows, columns), crops = _blocks(builder, op)
    samples, high, wide, depth = data.shape
    batch = samples // (rows * columns)
    if samples % (rows * columns):
        raise Unsupported(f"{samples} samples do not make blocks of {rows}x{columns}")
    operand = builder.operand(slot(op.inputs, 0))
    operand = builder.reshaped(operand, (rows, columns, batch, high, wide, depth))
    shape = (batch, high, rows, wide, columns, depth)
    operand = builder.moved(Transpose, [operand], {"perm": (2, 3, 0, 4, 1, 5)}, shape)
    full = (high * rows, wide * columns)
    operand = builder.reshaped(operand, (batch, *full, depth))
    if any(map(any, crops)):
        starts = tuple(before for before, _ in crops)
        stops = tuple(size - after for size, (_, after) in zip(full, crops, strict=True))
        kept = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        inputs: list[Input] = [
            operand,
            builder.integers(*starts),
            builder.integers(*stops),
            builder.integers(1, 2),
        ]
        operand = builder.moved(Slice, inputs, None, (batch, *kept, depth))
    require_shape(builder, op.outputs[0], operand.shape)
    builder.write(op.outputs[0], operand.value)


def _blocks(
    builder: ModelBuilder, op: Operator
) -> tuple[FileTensor, tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the data, the block's lengths, and what is added or cut before and after."""
    data = builder.tensor(slot(op.inputs, 0))
    require_rank(data, 4)
    require_same_scale(builder, slot(op.inputs, 0), op.outputs[0])
    blocks, borders = builder.list_of(slot(op.inputs, 1)), builder.list_of(slot(op.inputs, 2))
    if len(blocks) != 2 or len(borders) != 4 or min(blocks) < 1 or min(borders) < 0:
        raise Unsupported(f"its blocks are {list(blocks)}, its borders {list(borders)}")
    return data, blocks, (borders[:2], borders[2:])
