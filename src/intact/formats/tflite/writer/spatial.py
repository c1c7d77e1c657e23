"""Writes TFLite's operators over windows: convolutions, pools and resizes.

TFLite has them for two spatial axes. Data of one spatial axis gets a row axis of length 1 first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intact.errors import Unsupported
from intact.formats.tflite.spellings import POOLS, RESIZES, rows_by_ours
from intact.formats.tflite.writer.builder import (
    WRITERS,
    FileBuilder,
    Options,
    Writer,
    bias_or_zeros,
    constant_data,
    data_of,
    dense_kernel,
    last_axis,
    weighted_inputs,
)
from intact.formats.tflite.writer.clamps import add_bounded
from intact.formats.tflite.writer.moves import add_reshape, version_of
from intact.program import Encoding, Shape, Step, Tensor
from intact.program.operations import (
    Convolution,
    Pads,
    Pool,
    PoolKind,
    Resize,
    TransposedConvolution,
)

SAME, VALID = 0, 1

"""``Padding`` of the schema."""


def spatial_lengths(tensor: Tensor) -> tuple[int, ...]:
    """Return the lengths of the spatial axes."""
    found = tensor.shape[1:-1]
    if None in found:
        raise Unsupported(f"{tensor.name!r} has open spatial axes")
    return tuple(length for length in found if length is not None)


def extents(kernel: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many elements the windows of a kernel span."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))


def used_pads(
    data: Tensor, output: Tensor, pads: Pads, extent: tuple[int, ...], strides: tuple[int, ...]
) -> Pads:
    """Return the pads less what no window reaches behind the data."""
    used = []
    axes = zip(spatial_lengths(data), spatial_lengths(output), pads, extent, strides, strict=True)
    for length, count, (before, after), reach, stride in axes:
        # What no window reaches is left out, because SAME and VALID are compared with what is used.
        needed = (count - 1) * stride + reach - length - before
        if min(before, after) < 0 or needed > after:
            raise Unsupported(f"pads of {pads} do not give its output shape")
        used.append((before, max(needed, 0)))
    return tuple(used)


def is_same(count: int, length: int, extent: int, stride: int, pads: tuple[int, int]) -> bool:
    """Whether pads are those of SAME: half of what ceil(length / stride) windows lack, first."""
    lack = max((count - 1) * stride + extent - length, 0)
    return count == -(-length // stride) and pads == (lack // 2, lack - lack // 2)


def named_padding(
    data: Tensor, output: Tensor, pads: Pads, extent: tuple[int, ...], strides: tuple[int, ...]
) -> int | None:
    """Return VALID or SAME where the pads are those, else None."""
    if not any(map(any, pads)):
        return VALID
    axes = zip(spatial_lengths(output), spatial_lengths(data), extent, strides, pads, strict=True)
    return SAME if all(is_same(*each) for each in axes) else None


def add_padding(
    builder: FileBuilder,
    data: Tensor,
    output: Tensor,
    pads: Pads,
    extent: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    fill: float | None = None,
    may_be_same: bool = True,
) -> tuple[int, Tensor]:
    """Return the schema's padding and the data, padded explicitly where need be.

    Args:
        builder: Where the PAD goes.
        data: What is padded.
        output: The operator's result.
        pads: By spatial axis.
        extent: Elements that a window spans.
        strides: By spatial axis.
        fill: Code or float to pad with; None is real 0.
        may_be_same: Whether SAME means these pads if they are of its lengths.
    """
    used = used_pads(data, output, pads, extent, strides)
    named = named_padding(data, output, used, extent, strides)
    if named is not None and (may_be_same or named == VALID):
        return named, data
    lengths = tuple(n + sum(each) for n, each in zip(spatial_lengths(data), used, strict=True))
    shape = (data.shape[0], *lengths, data.shape[-1])
    result = builder.intermediate(f"{data.name}_padded", shape, data.encoding, data)
    table = builder.constant(f"{output.name}_pads", np.asarray([(0, 0), *used, (0, 0)], np.int32))
    version = 1 if data.encoding is None else 2
    if fill is None:
        builder.operator("PAD", (data, table), (result,), Options("PadOptions"), version=version)
        return VALID, result
    kind = np.float32 if data.encoding is None else data.encoding.dtype
    value = builder.constant(f"{output.name}_fill", np.asarray([fill], kind), data.encoding)
    builder.operator(
        "PADV2", (data, table, value), (result,), Options("PadV2Options"), version=version
    )
    return VALID, result


def _in_plane(write: Writer) -> Writer:
    """Extend a writer for two spatial axes to one or two."""

    def writer(operation: Any, step: Step, builder: FileBuilder) -> None:
        data, output = data_of(step), step.outputs[0]
        if len(data.shape) == 4:
            write(operation, step, builder)
            return
        if len(data.shape) != 3:
            count = len(data.shape) - 2
            raise Unsupported(f"intact writes it for one or two spatial axes, not {count}")
        plane = builder.intermediate(
            f"{data.name}_plane", _with_row(data.shape), data.encoding, data
        )
        add_reshape(builder, data, plane)
        result = builder.intermediate(
            f"{output.name}_plane", _with_row(output.shape), output.encoding, output
        )
        weight = None
        if isinstance(operation, Convolution | TransposedConvolution):
            weight = step.inputs[1]
        inputs = tuple(
            plane if each is data else _kernel_with_row(each, builder) if each is weight else each
            for each in step.inputs
        )
        flat = _operation_with_row(operation)
        write(flat, replace(step, operation=flat, inputs=inputs, outputs=(result,)), builder)
        add_reshape(builder, result, output)

    return writer


def _with_row(shape: Shape) -> Shape:
    return (shape[0], 1, *shape[1:])


def _kernel_with_row(weight: Tensor | None, builder: FileBuilder) -> Tensor | None:
    if weight is None or weight.data is None:
        return weight
    data = weight.data[:, np.newaxis]
    return builder.constant(f"{weight.name}_plane", data, weight.encoding)


def _operation_with_row(operation: Any) -> Any:
    unchanged = {"strides": 1, "dilations": 1, "kernel": 1, "pads": (0, 0), "output_padding": 0}
    given = {
        name: (value, *getattr(operation, name))
        for name, value in unchanged.items()
        if hasattr(operation, name)
    }
    if isinstance(operation, Resize):
        given["sizes"] = (1, *operation.sizes)
    return replace(operation, **given)


_POOLS, _RESIZES = rows_by_ours(POOLS), rows_by_ours(RESIZES)


@WRITERS.register(Convolution)
def _write_any_convolution(operation: Convolution, step: Step, builder: FileBuilder) -> None:
    """Write a convolution over one, two or, in float, three spatial axes."""
    is_volume = len(data_of(step).shape) == 5 and step.outputs[0].encoding is None
    (_write_volume if is_volume else _write_convolution)(operation, step, builder)


_VOLUME = ("D", "H", "W")
"""How options call three spatial axes."""


def _write_volume(operation: Convolution, step: Step, builder: FileBuilder) -> None:
    """Write CONV_3D, whose weight is ``[*K, in, out]``; LiteRT has it in float only."""
    data, weight, bias = weighted_inputs(step)
    if operation.groups != 1:
        raise Unsupported("intact writes no groups of a convolution over three axes")
    weights = constant_data(weight)
    extent = extents(weights.shape[1:4], operation.dilations)
    padding, data = add_padding(
        builder, data, step.outputs[0], operation.pads, extent, operation.strides
    )
    fields = {f"stride{axis}": n for axis, n in zip(_VOLUME, operation.strides, strict=True)}
    fields |= {
        f"dilation{axis}Factor": n for axis, n in zip(_VOLUME, operation.dilations, strict=True)
    }
    kernel = builder.constant(f"{weight.name}_volume", weights.transpose(1, 2, 3, 4, 0))
    add_bounded(
        builder,
        "CONV_3D",
        (data, kernel, bias_or_zeros(builder, step, data, weight, bias)),
        step.outputs[0],
        operation.bounds,
        options=Options("Conv3DOptions", {"padding": padding, **fields}),
    )


@_in_plane
def _write_convolution(operation: Convolution, step: Step, builder: FileBuilder) -> None:
    """Write CONV_2D or DEPTHWISE_CONV_2D, behind a PAD where SAME and VALID are other pads."""
    data, weight, bias = weighted_inputs(step)
    weights = constant_data(weight)
    channels = data.shape[-1]
    extent = extents(weights.shape[1:3], operation.dilations)
    padding, data = add_padding(
        builder, data, step.outputs[0], operation.pads, extent, operation.strides
    )
    fields = {
        "padding": padding,
        "strideH": operation.strides[0],
        "strideW": operation.strides[1],
        "dilationHFactor": operation.dilations[0],
        "dilationWFactor": operation.dilations[1],
    }
    integer = data.encoding is not None
    if operation.groups > 1 and operation.groups == channels:
        multiplier = weights.shape[0] // operation.groups
        options = Options("DepthwiseConv2DOptions", {**fields, "depthMultiplier": multiplier})
        dilated = any(each != 1 for each in operation.dilations)
        code, version = "DEPTHWISE_CONV_2D", 3 if integer else 2 if dilated else 1
        # The depthwise kernel has its output channels last, hence also its scales.
        kernel = builder.constant(
            f"{weight.name}_depthwise", weights.transpose(3, 1, 2, 0), last_axis(weight.encoding)
        )
    else:
        grouped = operation.groups > 1
        options = Options("Conv2DOptions", fields)
        # CONV_2D has groups from its version 6 on.
        code, version, kernel = "CONV_2D", 6 if grouped else 3 if integer else 1, weight
    bias = bias_or_zeros(builder, step, data, weight, bias)
    add_bounded(
        builder,
        code,
        (data, kernel, bias),
        step.outputs[0],
        operation.bounds,
        options=options,
        version=version,
    )


_LARGEST_WINDOW = 1 << 16
"""Elements of a window with what its dilations leave out: one such plane for each weight."""


@WRITERS.register(TransposedConvolution)
@_in_plane
def _write_transposed(operation: TransposedConvolution, step: Step, builder: FileBuilder) -> None:
    """Write TRANSPOSE_CONV; pads that SAME does not mean are cut off its full result.

    It has neither groups nor dilations: what they leave out of the kernel becomes zeros, which
    change no sum.
    """
    data, weight, bias = weighted_inputs(step)
    output = step.outputs[0]
    if operation.groups != 1 or any(each != 1 for each in operation.dilations):
        window = extents(constant_data(weight).shape[1:3], operation.dilations)
        # A few bytes of a hostile model would make gigabytes of zeros.
        if math.prod(window) > _LARGEST_WINDOW:
            raise Unsupported(f"its dilations {operation.dilations} make a window of zeros")
        dense = dense_kernel(constant_data(weight), operation.groups, operation.dilations)
        weight = builder.constant(f"{weight.name}_dense", dense, weight.encoding)
    bias = bias_or_zeros(builder, step, data, weight, bias)
    kernel, lengths = constant_data(weight).shape[1:3], spatial_lengths(data)
    # XNNPACK takes no SAME where windows leave gaps: other kernels would run, with other bits.
    same = all(
        is_same(wanted, length, extent, stride, pads) and stride <= extent
        for wanted, length, extent, stride, pads in zip(
            lengths, spatial_lengths(output), kernel, operation.strides, operation.pads, strict=True
        )
    )
    full = output
    if not same and any(map(any, operation.pads)):
        grown = [
            n + sum(pads) for n, pads in zip(spatial_lengths(output), operation.pads, strict=True)
        ]
        shape = (output.shape[0], *grown, output.shape[-1])
        full = builder.intermediate(f"{output.name}_full", shape, output.encoding, output)
    fields = {
        "padding": SAME if same else VALID,
        "strideH": operation.strides[0],
        "strideW": operation.strides[1],
    }
    shape_of_output = builder.integers(f"{step.name}/output_shape", builder.lengths(full))
    add_bounded(
        builder,
        "TRANSPOSE_CONV",
        (shape_of_output, weight, data, bias),
        full,
        operation.bounds,
        options=Options("TransposeConvOptions", fields),
        version=3,
        fusable=False,  # kernels before version 4 ignore the field
    )
    if full is not output:
        _add_cut(builder, step, full, operation.pads)


def _add_cut(builder: FileBuilder, step: Step, full: Tensor, pads: Pads) -> None:
    """Add a SLICE of a full result to the output of a step, which lacks the pads."""
    output = step.outputs[0]
    begin = builder.integers(f"{step.name}/begin", [0, *(before for before, _ in pads), 0])
    size = builder.integers(f"{step.name}/size", [-1, *spatial_lengths(output), -1])
    version = version_of(output)
    options = Options("SliceOptions")
    builder.operator("SLICE", (full, begin, size), (output,), options, version=version)


@WRITERS.register(Pool)
@_in_plane
def _write_pool(operation: Pool, step: Step, builder: FileBuilder) -> None:
    """Write AVERAGE_POOL_2D or MAX_POOL_2D."""
    data, output = data_of(step), step.outputs[0]
    maximum = operation.kind is PoolKind.MAX
    if maximum or operation.count_pads:
        # In front of a maximum zeros could win over the data; counted pads of an average are zeros.
        fill = None if not maximum else _lowest(data.encoding)
        padding, data = add_padding(
            builder,
            data,
            output,
            operation.pads,
            operation.kernel,
            operation.strides,
            fill=fill,
            # SAME leaves pads out of an average, and these count.
            may_be_same=maximum,
        )
    else:
        used = used_pads(data, output, operation.pads, operation.kernel, operation.strides)
        named = named_padding(data, output, used, operation.kernel, operation.strides)
        if named is None:
            _add_averages_in_parts(builder, operation, data, output)
            return
        padding = named
    _add_pool(builder, operation, data, output, padding)


def _add_pool(
    builder: FileBuilder, operation: Pool, data: Tensor, output: Tensor, padding: int
) -> None:
    kind = _POOLS[operation.kind]
    fields = {
        "padding": padding,
        "strideH": operation.strides[0],
        "strideW": operation.strides[1],
        "filterHeight": operation.kernel[0],
        "filterWidth": operation.kernel[1],
    }
    add_bounded(
        builder,
        kind.code,
        (data,),
        output,
        operation.bounds,
        options=Options(kind.table, fields),
        version=1 if data.encoding is None else kind.integer,
    )


@dataclass(frozen=True)
class _Part:
    """Neighbouring windows along one axis that hold equally many elements of the data.

    Attributes:
        begin: Their first element.
        windows: How many.
        width: Elements of each.
    """

    begin: int
    windows: int
    width: int


def _parts(length: int, count: int, kernel: int, stride: int, before: int) -> list[_Part]:
    """Split the windows of an axis: those inside of the data together, each at an end alone."""
    parts: list[_Part] = []
    for start in range(-before, count * stride - before, stride):
        begin, end = max(start, 0), min(start + kernel, length)
        if parts and end - begin == kernel == parts[-1].width:
            parts[-1] = replace(parts[-1], windows=parts[-1].windows + 1)
        else:
            parts.append(_Part(begin, 1, end - begin))
    return parts


def _add_averages_in_parts(
    builder: FileBuilder, operation: Pool, data: Tensor, output: Tensor
) -> None:
    """Add an AVERAGE_POOL_2D for the windows inside, and one for each kind at the ends.

    TFLite leaves out only the pads of SAME. A window without its pads is a smaller one.
    """
    lengths = spatial_lengths(data)
    axes = zip(
        lengths,
        spatial_lengths(output),
        operation.kernel,
        operation.strides,
        (before for before, _ in operation.pads),
        strict=True,
    )
    tall, wide = (_parts(*axis) for axis in axes)

    def averaged(row: _Part, column: _Part, whole: Tensor | None) -> Tensor:
        spans = [
            (part.windows - 1) * stride + part.width
            for part, stride in zip((row, column), operation.strides, strict=True)
        ]
        source = data
        if tuple(spans) != lengths:
            source = between("part", (data.shape[0], *spans, data.shape[-1]))
            begin = builder.integers(f"{output.name}/begin", [0, row.begin, column.begin, 0])
            size = builder.integers(f"{output.name}/size", [-1, *spans, -1])
            slicing = Options("SliceOptions")
            version = version_of(data)
            builder.operator("SLICE", (data, begin, size), (source,), slicing, version=version)
        shape = (output.shape[0], row.windows, column.windows, output.shape[-1])
        result = whole or between("averages", shape)
        own = replace(operation, kernel=(row.width, column.width))
        _add_pool(builder, own, source, result, VALID)
        return result

    def between(name: str, shape: Shape) -> Tensor:
        return builder.intermediate(f"{output.name}_{name}", shape, output.encoding, output)

    def joined(parts: list[Tensor], axis: int, whole: Tensor) -> Tensor:
        options = Options("ConcatenationOptions", {"axis": axis})
        builder.operator("CONCATENATION", parts, (whole,), options, version=version_of(whole))
        return whole

    rows = []
    for row in tall:
        shape = (output.shape[0], row.windows, *output.shape[2:])
        whole = output if len(tall) == 1 else between("row", shape)
        alone = whole if len(wide) == 1 else None
        parts = [averaged(row, column, alone) for column in wide]
        rows.append(whole if alone else joined(parts, 2, whole))
    if len(tall) > 1:
        joined(rows, 1, output)


@WRITERS.register(Resize)
@_in_plane
def _write_resize(operation: Resize, step: Step, builder: FileBuilder) -> None:
    """Write RESIZE_NEAREST_NEIGHBOR or RESIZE_BILINEAR."""
    data, kind = data_of(step), _RESIZES[operation.mode]
    fields = {"alignCorners": operation.align_corners, "halfPixelCenters": operation.half_pixel}
    version = 3 if operation.half_pixel or operation.align_corners else 2
    builder.operator(
        kind.code,
        (data, builder.integers(f"{step.name}/size", operation.sizes)),
        step.outputs,
        Options(kind.table, fields),
        version=version,
    )


def _lowest(encoding: Encoding | None) -> float:
    return float(np.finfo(np.float32).min) if encoding is None else encoding.quant_min
