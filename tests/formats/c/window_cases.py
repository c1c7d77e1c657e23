"""Steps of kernels that move, reduce, interpolate or look up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from intact.ops import functions as f
from intact.program import Program, Shape
from intact.program import operations as ops
from intact.program.operations import Bounds, PoolKind, Reduction, ResizeMode
from intact.targets import Arithmetic
from tests.formats.c.cases import DOUBLE, Scales
from tests.program.one_step import int8, one_step


def moves() -> dict[str, Program]:
    """Everything that only moves codes, between tensors of one scale."""
    x = int8(0.05, -77)

    def move(operation: ops.Operation, data: Iterable[Shape], outputs: Iterable[Shape]) -> Program:
        return one_step(
            operation, DOUBLE, [(each, x) for each in data], [(each, x) for each in outputs]
        )

    data: Shape = (None, 4, 6, 3)
    return {
        "reshape": move(ops.Reshape((-1, 72)), [data], [(None, 72)]),
        "turn": move(ops.Transpose((0, 3, 1, 2)), [data], [(None, 3, 4, 6)]),
        "turn_none": move(ops.Transpose((0, 2, 1)), [(None, 1, 5)], [(None, 5, 1)]),
        "turn_all": move(ops.Transpose((0, 3, 2, 1)), [data], [(None, 3, 6, 4)]),
        "slice": move(
            ops.Slice((None, 1, None, None), (None, None, None, 2), (1, 2, 1, 1)),
            [data],
            [(None, 2, 6, 2)],
        ),
        "slice_back": move(
            ops.Slice((None, -1, None, 2), (None, None, 4, None), (1, -1, 3, -2)),
            [data],
            [(None, 4, 2, 2)],
        ),
        "split_rows": move(ops.Split(1, (1, 3)), [data], [(None, 1, 6, 3), (None, 3, 6, 3)]),
        "split_last": move(ops.Split(3, (1, 2)), [data], [(None, 4, 6, 1), (None, 4, 6, 2)]),
        "concat": move(ops.Concat(3), [data, (None, 4, 6, 1), data], [(None, 4, 6, 7)]),
        "concat_rows": move(ops.Concat(1), [data, (None, 2, 6, 3)], [(None, 6, 6, 3)]),
        "pad": move(ops.Pad(((0, 0), (1, 2), (0, 3), (2, 0))), [data], [(None, 7, 9, 5)]),
        "pad_with": move(
            ops.Pad(((0, 0), (0, 1), (2, 0), (0, 0)), value=-0.4), [data], [(None, 5, 8, 3)]
        ),
        "tile": move(ops.Tile((1, 2, 1, 3)), [data], [(None, 8, 6, 9)]),
        "expand": move(ops.Expand((-1, 4, 5)), [(None, 1, 5)], [(None, 4, 5)]),
        "expand_ends": move(
            ops.Expand((-1, 3, 4, 5, 2)), [(None, 3, 1, 5, 1)], [(None, 3, 4, 5, 2)]
        ),
        "deep": move(ops.SpaceToDepth(2), [data], [(None, 2, 3, 12)]),
        "wide": move(ops.DepthToSpace(2), [(None, 2, 3, 12)], [(None, 4, 6, 3)]),
        "gather": move(ops.Gather(2, np.array([[5, 0], [2, 2]])), [data], [(None, 4, 2, 2, 3)]),
        "gather_one": move(ops.Gather(3, np.array(1)), [data], [(None, 4, 6)]),
        "nearest": move(ops.Resize(ResizeMode.NEAREST, (7, 3)), [data], [(None, 7, 3, 3)]),
        "nearest_half": move(
            ops.Resize(ResizeMode.NEAREST, (9, 5), half_pixel=True), [data], [(None, 9, 5, 3)]
        ),
        "nearest_ends": move(
            ops.Resize(ResizeMode.NEAREST, (7, 11), align_corners=True), [data], [(None, 7, 11, 3)]
        ),
        "nearest_line": move(ops.Resize(ResizeMode.NEAREST, (7,)), [(None, 3, 2)], [(None, 7, 2)]),
    }


def windows(arithmetic: Arithmetic, scales: Scales) -> dict[str, Program]:
    """Pools, reductions and interpolation."""
    x = scales.of(0.05, -7)
    data: Shape = (None, 6, 5, 3)
    average, largest = PoolKind.AVERAGE, PoolKind.MAX
    padded, edge = ((1, 1), (0, 1)), ((1, 1), (1, 1))

    def same(operation: ops.Operation, output: Shape, source: Shape = data) -> Program:
        return one_step(operation, arithmetic, [(source, x)], [(output, x)])

    found = {
        "mean_pool": same(ops.Pool(average, (3, 2), (2, 1), padded), (None, 3, 5, 3)),
        "mean_pool_pads": same(
            ops.Pool(average, (3, 3), (1, 2), edge, count_pads=True), (None, 6, 3, 3)
        ),
        "mean_pool_line": same(
            ops.Pool(average, (4,), (1,), ((1, 0),), bounds=Bounds(0)), (None, 5, 2), (None, 7, 2)
        ),
        "max_pool": same(
            ops.Pool(largest, (2, 3), (2, 2), padded, bounds=Bounds(0, 1.1)), (None, 4, 2, 3)
        ),
        "max_pool_line": same(ops.Pool(largest, (2,), (2,), ((0, 0),)), (None, 4, 5), (None, 8, 5)),
        "largest": same(ops.Reduce(Reduction.MAX, (1, 3), keep_dims=False), (None, 5)),
        "smallest": same(ops.Reduce(Reduction.MIN, (2,), keep_dims=True), (None, 6, 1, 3)),
        "smallest_rows": same(ops.Reduce(Reduction.MIN, (1, 3), keep_dims=False), (None, 5)),
        "linear": same(ops.Resize(ResizeMode.LINEAR, (9, 3)), (None, 9, 3, 3)),
        "linear_half": same(
            ops.Resize(ResizeMode.LINEAR, (13, 10), half_pixel=True), (None, 13, 10, 3)
        ),
        "linear_ends": same(
            ops.Resize(ResizeMode.LINEAR, (11, 9), align_corners=True), (None, 11, 9, 3)
        ),
        "linear_line": same(ops.Resize(ResizeMode.LINEAR, (7,)), (None, 7, 2), (None, 3, 2)),
    }
    axes: list[tuple[str, tuple[int, ...], Shape]] = [
        ("plane", (1, 2), (None, 3)),
        ("ends", (1, 3), (None, 5)),
        ("rows", (1,), (None, 5, 3)),
        ("last", (3,), (None, 6, 5)),
    ]
    for kind, target in ((Reduction.MEAN, 0.021), (Reduction.SUM, 0.7)):
        for name, chosen, output in axes:
            found[f"{kind}_{name}"] = one_step(
                ops.Reduce(kind, chosen, keep_dims=False),
                arithmetic,
                [(data, x)],
                [(output, scales.of(target, 9))],
            )
    return found


def functions() -> dict[str, Program]:
    """Tables and softmax."""
    found = {}
    for kind, output in (
        (f.clamp, int8(0.04, -128)),
        (f.leaky_relu, int8(0.03, -90)),
        (f.sigmoid, int8(1 / 256, -128)),
        (f.tanh, int8(1 / 128)),
        (f.hard_swish, int8(0.04, -100)),
        (f.gelu, int8(0.04, -100)),
    ):
        found[str(kind)] = one_step(
            ops.Function(
                kind,
                (0.1,) if kind is f.leaky_relu else (),
                Bounds(0, 6) if kind is f.clamp else Bounds(),
            ),
            DOUBLE,
            [((None, 500), int8(0.05, 3))],
            [((None, 500), output)],
        )
    encodings = {"softmax": int8(1 / 256, -128), "log_softmax": int8(1 / 16, 127)}
    for name, output in encodings.items():
        for part, scale, axis in (
            ("fine", 0.005, 2),
            ("middle", 0.04, 1),
            ("coarse", 0.11, 2),
            ("steep", 3.0, 2),
        ):
            operation = ops.Softmax(axis, log=name == "log_softmax")
            slots = [((None, 5, 37), int8(scale, 4))]
            found[f"{name}_{part}"] = one_step(operation, DOUBLE, slots, [((None, 5, 37), output)])
    return found
