"""Pools, reductions and resizing."""

from __future__ import annotations

from intact.errors import Unsupported
from intact.formats.ncnn.builder import WRITERS, NcnnBuilder, input_of, name_of
from intact.formats.ncnn.model import Parameter, known_lengths, lengths, rank_of, sample
from intact.program import Step
from intact.program.operations import (
    Pads,
    Pool,
    PoolKind,
    Reduce,
    Reduction,
    Resize,
    ResizeMode,
)

_POOLS = {PoolKind.MAX: 0, PoolKind.AVERAGE: 1}
_IMAGE_POOLS = {Reduction.MAX: _POOLS[PoolKind.MAX], Reduction.MEAN: _POOLS[PoolKind.AVERAGE]}
"""Reductions of images that are pools over all of them."""
_ROUND_UP, _ROUND_DOWN = 0, 1
_REDUCTIONS: dict[Reduction, int] = {
    Reduction.SUM: 0,
    Reduction.MEAN: 3,
    Reduction.MAX: 4,
    Reduction.MIN: 5,
    Reduction.PRODUCT: 6,
    Reduction.L1: 7,
    Reduction.L2: 8,
}
_NEAREST, _LINEAR = 1, 2


@WRITERS.register(Pool)
def _pool(operation: Pool, step: Step, builder: NcnnBuilder) -> None:
    """Write a pool of images."""
    if rank_of(input_of(step)) != 4:
        raise Unsupported("only pools of images are written")
    pads, up = operation.pads, operation.added_by_ceil is not None
    if operation.added_by_ceil is not None:
        added = zip(pads, operation.added_by_ceil, strict=True)
        pads = tuple((before, after - more) for (before, after), more in added)
        _refuse_other_rounding(operation, step, pads)
        if operation.kind is PoolKind.AVERAGE and operation.count_pads:
            raise Unsupported("it rounds its size up and counts pads")
    (top, bottom), (left, right) = pads
    (height, width), (down, along) = operation.kernel, operation.strides
    parameters: dict[int, Parameter] = {0: _POOLS[operation.kind]}
    parameters |= {1: width, 11: height, 2: along, 12: down}
    parameters |= {3: left, 13: top, 14: right, 15: bottom}
    parameters |= {5: _ROUND_UP if up else _ROUND_DOWN, 6: int(operation.count_pads)}
    builder.unary("Pooling", step, parameters)


def _refuse_other_rounding(operation: Pool, step: Step, pads: Pads) -> None:
    """Refuse windows that ONNX leaves out because they begin in the pads behind the data.

    What shape inference says is not asked: not all of its releases leave them out.
    """
    image = sample(input_of(step))[1:]
    sizes = zip(image, operation.kernel, operation.strides, pads, strict=True)
    for size, width, stride, (first, last) in sizes:
        windows = -(-(size + first + last - width) // stride) + 1
        if (windows - 1) * stride >= size + first:
            raise Unsupported("its last window begins in the pads")


@WRITERS.register(Reduce)
def _reduce(operation: Reduce, step: Step, builder: NcnnBuilder) -> None:
    rank = rank_of(input_of(step))
    if rank == 4 and operation.axes == (2, 3) and operation.kind in _IMAGE_POOLS:
        _pool_over_image(operation, step, builder)
    else:
        _reduction(operation, step, builder)


def _reduction(operation: Reduce, step: Step, builder: NcnnBuilder) -> None:
    """Write a reduction along axes of a sample."""
    axes, keeps = operation.axes, operation.keep_dims
    if 0 in axes:
        raise Unsupported("it reduces the batch")
    if len(axes) == rank_of(input_of(step)) - 1 and not keeps:
        raise Unsupported("nothing but the batch is left of its axes")
    parameters: dict[int, Parameter] = {0: _REDUCTIONS[operation.kind], 1: 0}
    parameters |= {3: tuple(axis - 1 for axis in axes), 4: int(keeps), 5: 1}
    builder.unary("Reduction", step, parameters)


def _pool_over_image(operation: Reduce, step: Step, builder: NcnnBuilder) -> None:
    """Write a pool over a whole image, which ncnn makes a vector; it may get its axes back."""
    data, result = input_of(step), step.outputs[0]
    channels = known_lengths(data)[0]
    if channels is None:
        raise Unsupported(f"a length of {data.value!r} is not known")
    bottom, top = builder.read(step), builder.blob(result)
    vector = builder.inner(result) if operation.keep_dims else top
    parameters: dict[int, Parameter] = {0: _IMAGE_POOLS[operation.kind], 4: 1}
    builder.emit("Pooling", name_of(step), [bottom], [vector], parameters)
    if operation.keep_dims:
        shape = lengths((channels, 1, 1))
        builder.emit("Reshape", f"{name_of(step)}_axes", [vector], [top], shape)


@WRITERS.register(Resize)
def _resize(operation: Resize, step: Step, builder: NcnnBuilder) -> None:
    """Write a Resize of images: nearest by whole factors, or linear."""
    before, after = (sample(tensor)[1:] for tensor in (input_of(step), step.outputs[0]))
    if len(after) != 2:
        raise Unsupported("it resizes other axes than those of an image")
    sizes: dict[int, Parameter] = {3: after[0], 4: after[1]}
    if operation.mode is ResizeMode.NEAREST:
        if operation.align_corners:
            raise Unsupported("it takes nearest samples by align_corners")
        if any(new % old for old, new in zip(before, after, strict=True)):
            raise Unsupported("it takes nearest samples by no whole factor")
        builder.unary("Interp", step, {0: _NEAREST, **sizes})
    elif operation.half_pixel or operation.align_corners:
        if 1 in after and operation.align_corners:
            raise Unsupported("it shrinks an axis to one sample")
        linear: dict[int, Parameter] = {0: _LINEAR, **sizes, 6: int(operation.align_corners)}
        builder.unary("Interp", step, linear)
    else:
        raise Unsupported("it resizes linearly and asymmetrically")
