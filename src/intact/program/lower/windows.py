"""Lowers pools, reductions, ArgMax and TopK: from ONNX nodes to operations of the integer program.

A function is registered for its ONNX operators and takes a ``chain``: a node of that operator and
those fused behind it, such as ``(AveragePool, Relu)``. It reads the node's inputs and attributes,
makes the operation, and adds it to the program by one of two ways:

* `finish`: results are computed and requantized to the output's scale, as of averages and sums;
* `finish_move`: results are some of the inputs, and keep their scale, as of maxima and TopK.

What there is no integer arithmetic for raises `Unsupported`, and the node stays float.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import Unsupported
from intact.ops import operators
from intact.program.lower.attributes import axis_of, constant_input, integers, window_pads
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.lowerings import LOWERINGS, finish, finish_move, fused_bounds
from intact.program.operations import ArgReduce, Pads, Pool, PoolKind, Reduce, Reduction, TopK
from intact.program.program import Shape

_REDUCTIONS = {
    "ReduceMean": Reduction.MEAN,
    "ReduceSum": Reduction.SUM,
    "ReduceMax": Reduction.MAX,
    "ReduceMin": Reduction.MIN,
}


@LOWERINGS.register("AveragePool")
def average_pool(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """AveragePool, with padding counted or not; a Relu or Clip behind it is fused."""
    node = chain[0]
    data = builder.read(node, 0)
    kernel, strides, pads, added = _window(node, data.shape)
    counts = operators.AveragePool.of(node).count_include_pad == 1
    # ONNX counts the pads but not the elements that ceil_mode adds, which a window's size cannot
    # say.
    if counts and any(added or ()):
        raise Unsupported("ceil_mode together with count_include_pad")
    bounds = fused_bounds(chain)
    operation = Pool(PoolKind.AVERAGE, kernel, strides, pads, counts, bounds, added)
    finish(builder, chain, operation, (builder.channels_last(data),), channels_last=True)


@LOWERINGS.register("MaxPool")
def max_pool(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """MaxPool without indices."""
    node = chain[0]
    if len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("it has indices as an output")
    data = builder.read(node, 0)
    kernel, strides, pads, added = _window(node, data.shape)
    operation = Pool(PoolKind.MAX, kernel, strides, pads, added_by_ceil=added)
    finish_move(builder, chain, operation, (builder.channels_last(data),), channels_last=True)


@LOWERINGS.register(*_REDUCTIONS)
def reduction(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin."""
    node = chain[0]
    data = builder.read(node, 0)
    rank = len(data.shape)
    keeps = operators.Reduce.of(node).keepdims == 1
    _reduce(builder, chain, Reduce(_REDUCTIONS[node.op_type], axes_of(node, rank), keeps))


def axes_of(node: ir.Node, rank: int) -> tuple[int, ...]:
    """Read the axes of a reduction, ascending and not negative.

    Raises:
        Unsupported: They are computed, or there are none.
    """
    axes = integers(node, "axes", 1)
    if not axes:
        if operators.Reduce.of(node).noop_with_empty_axes:
            raise Unsupported("it reduces no axis")
        axes = tuple(range(rank))
    return tuple(sorted(axis % rank for axis in axes))


_ARG_REDUCTIONS = {"ArgMax": Reduction.MAX, "ArgMin": Reduction.MIN}


@LOWERINGS.register(*_ARG_REDUCTIONS)
def arg_reduction(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """ArgMax and ArgMin: codes have the order of the numbers that they stand for."""
    node = chain[0]
    options, data = operators.ArgMax.of(node), builder.read(node, 0)
    if options.select_last_index:
        raise Unsupported("it takes the last of equal elements")
    axis = axis_of(node, len(data.shape))
    operation = ArgReduce(_ARG_REDUCTIONS[node.op_type], axis, options.keepdims == 1)
    finish_move(builder, chain, operation, (data,))


@LOWERINGS.register("TopK")
def top_k(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """TopK of a constant number of elements."""
    node = chain[0]
    options, count = operators.TopK.of(node), constant_input(node, 1)
    if count is None or count.size != 1:
        raise Unsupported("its number of elements is computed")
    data = builder.read(node, 0)
    if not options.largest and data.encoding is not None:
        raise Unsupported("there is no integer operation for the smallest elements")
    operation = TopK(axis_of(node, len(data.shape)), int(count.item()), options.largest == 1)
    finish_move(builder, chain, operation, (data,))


_GLOBAL_POOLS = {"GlobalAveragePool": Reduction.MEAN, "GlobalMaxPool": Reduction.MAX}


@LOWERINGS.register(*_GLOBAL_POOLS)
def global_pool(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """GlobalAveragePool and GlobalMaxPool: a reduction over all spatial axes."""
    rank = len(builder.read(chain[0], 0).shape)
    if rank < 3:
        raise Unsupported("it has no spatial axes")
    kind = _GLOBAL_POOLS[chain[0].op_type]
    _reduce(builder, chain, Reduce(kind, tuple(range(2, rank)), keep_dims=True))


def _reduce(builder: ProgramBuilder, chain: tuple[ir.Node, ...], operation: Reduce) -> None:
    data = builder.read(chain[0], 0)
    if operation.kind in (Reduction.MAX, Reduction.MIN):
        finish_move(builder, chain, operation, (data,))
        return
    if len(chain) > 1:
        raise Unsupported("there is no one operation for a reduction and what follows it")
    finish(builder, chain, operation, (data,))


def _window(
    node: ir.Node, shape: Shape
) -> tuple[tuple[int, ...], tuple[int, ...], Pads, tuple[int, ...] | None]:
    """Return kernel, strides, pads, and how much of each axis's last pad ``ceil_mode`` added.

    The pads include what was added, which is None without ``ceil_mode``. For a length of 6, a
    kernel of 3 and a stride of 2: ``((3,), (2,), ((0, 1),), (1,))``.
    """
    window = operators.MaxPool.of(node)
    kernel = window.kernel_shape
    if not kernel or len(shape) != len(kernel) + 2:
        raise Unsupported("its window does not fit its input")
    ones = (1,) * len(kernel)
    strides, dilations = window.steps(len(kernel))
    if dilations != ones:
        raise Unsupported("its window is dilated")
    pads = window_pads(node, shape, kernel, strides, dilations)
    for size, width, ends in zip(shape[2:], kernel, pads, strict=True):
        # ONNX's formula gives no window there; ONNX Runtime, which divides towards zero, gives one.
        if size is not None and size + sum(ends) < width:
            raise Unsupported("its window is longer than its input with the pads")
    if not window.ceil_mode:
        return kernel, strides, pads, None
    sizes = tuple(size for size in shape[2:] if size is not None)
    if len(sizes) != len(kernel):
        raise Unsupported("ceil_mode along an axis of unknown length")
    added = window.added(sizes, kernel, pads)
    whole = tuple((old, new + more) for (old, new), more in zip(pads, added, strict=True))
    return kernel, strides, whole, added
