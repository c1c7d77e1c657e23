"""Steps of kernels with weights or two operands, odd shapes and far scales; many as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.program import Array, Encoding, Program, Shape, Step, Tensor
from intact.program import operations as ops
from intact.program.operations import Binary, Bounds
from intact.targets import (
    Arithmetic,
    FixedPoint,
    Functions,
    Multiplier,
    Product,
    Shift,
)
from tests.program.one_step import int8, int32, one_step, with_options

DOUBLE = Arithmetic(
    requantize=FixedPoint(Product.DOUBLE, multiplier=Multiplier.FLOAT64),
    rounding=Rounding.HALF_AWAY_FROM_ZERO,
    functions=Functions.FIXED_POINT,
)
SHIFT = Arithmetic(requantize=Shift(), rounding=Rounding.HALF_UP)


@dataclass(frozen=True)
class Scales:
    """Which scales cases have.

    Attributes:
        powers: Powers of two only, and zero points of 0.
    """

    powers: bool = False

    def of(self, scale: float, zero_point: int = 0) -> Encoding:
        """Return an encoding of about that scale."""
        if self.powers:
            return int8(self.near(scale), 0)
        return int8(scale, zero_point)

    def near(self, scale: float) -> float:
        """Return the scale, or the power of two below it."""
        return float(2.0 ** np.floor(np.log2(scale))) if self.powers else scale


def weighted(
    scales: Scales,
    operation: ops.Operation,
    data: Shape,
    weight: tuple[int, ...],
    output: Shape,
    arithmetic: Arithmetic,
    *,
    per_channel: bool = True,
    bias: bool = True,
    seed: int = 0,
) -> Program:
    """Return a program of one layer with random weights."""
    rng = np.random.default_rng([seed, *weight])
    codes = rng.integers(-127, 128, weight).astype(np.int8)
    spread = rng.uniform(0.003, 0.02, weight[0] if per_channel else ())
    steps = np.vectorize(scales.near)(spread).astype(np.float32)
    x, y = scales.of(0.05, 3), scales.of(0.1 * max(1.0, codes[0].size / 20) ** 0.5, -5)
    axis = 0 if per_channel else None
    slots: list[tuple[Shape, Encoding | None] | tuple[Array, Encoding | None] | None]
    slots = [(data, x), (codes, int8(steps, axis=axis)), None]
    if bias:
        values = rng.integers(-3000, 3000, weight[0]).astype(np.int32)
        slots[2] = (values, int32(np.float32(x.scale) * steps, axis))
    return one_step(operation, arithmetic, slots, [(output, y)])


def convolutions(arithmetic: Arithmetic, scales: Scales) -> dict[str, Program]:
    """Convolutions of every kind, dense layers and matrix products."""
    same, one = ((1, 1), (1, 1)), ((1, 1))
    conv, turned = ops.Convolution, ops.TransposedConvolution

    def layer(operation: ops.Operation, *shapes: tuple[int | None, ...], **more: bool) -> Program:
        data, weight, output = shapes
        plain = tuple(int(length or 0) for length in weight)
        return weighted(scales, operation, data, plain, output, arithmetic, **more)

    return {
        "plain": layer(
            conv((1, 1), same, one, 1, Bounds(0)), (None, 5, 4, 3), (6, 3, 3, 3), (None, 5, 4, 6)
        ),
        "strided": layer(
            conv((2, 3), ((1, 0), (2, 1)), (1, 1)),
            (None, 7, 9, 2),
            (3, 3, 4, 2),
            (None, 3, 3, 3),
            bias=False,
        ),
        "dilated": layer(
            conv((1, 2), ((2, 2), (0, 3)), (2, 3), 1, Bounds(0, 6)),
            (None, 5, 8, 2),
            (4, 3, 2, 2),
            (None, 5, 4, 4),
        ),
        "grouped": layer(
            conv((2, 1), ((1, 1), (0, 2)), (1, 1), 2),
            (None, 7, 6, 4),
            (6, 3, 3, 2),
            (None, 4, 6, 6),
        ),
        "depthwise": layer(
            conv((1, 1), same, one, 5, Bounds(0)), (None, 6, 5, 5), (5, 3, 3, 1), (None, 6, 5, 5)
        ),
        "multiplied": layer(
            conv((2, 2), same, (1, 1), 3), (None, 5, 6, 3), (6, 3, 3, 1), (None, 3, 3, 6)
        ),
        "line": layer(conv((2,), ((1, 2),), (1,)), (None, 9, 2), (3, 4, 2), (None, 5, 3)),
        "single": layer(
            conv((1, 1), ((0, 0), (0, 0)), (1, 1)),
            (None, 1, 1, 1),
            (1, 1, 1, 1),
            (None, 1, 1, 1),
            per_channel=False,
        ),
        "turned": layer(
            turned((2, 3), ((1, 0), (1, 2)), (1, 1), (0, 0)),
            (None, 4, 3, 2),
            (5, 3, 4, 2),
            (None, 8, 7, 5),
        ),
        "turned_far": layer(
            turned((2, 1), ((0, 0), (1, 1)), (2, 2), (1, 0), 2),
            (None, 3, 4, 4),
            (4, 2, 3, 2),
            (None, 8, 6, 4),
            bias=False,
        ),
        "dense": layer(
            ops.FullyConnected(Bounds(0)), (None, 17), (9, 17), (None, 9), per_channel=False
        ),
        "dense_rows": layer(ops.FullyConnected(), (None, 3, 8), (4, 8), (None, 3, 4)),
        "matmul": one_step(
            ops.BatchMatMul(Bounds(-2.5)),
            arithmetic,
            [((None, 3, 2, 5), scales.of(0.03, 7)), ((None, 1, 5, 4), scales.of(0.05, -9))],
            [((None, 3, 2, 4), scales.of(0.06, 1))],
        ),
    }


def pairs(arithmetic: Arithmetic, scales: Scales) -> dict[str, Program]:
    """Binary operations; same, broadcast, scalar and constant operands."""
    constant = np.arange(-60, 60, 10, dtype=np.int8)[:6]
    shapes: list[tuple[str, Any, Any, Shape]] = [
        ("same", (None, 3, 4, 6), (None, 3, 4, 6), (None, 3, 4, 6)),
        ("channel", (None, 3, 4, 6), constant, (None, 3, 4, 6)),
        ("plane", (None, 1, 1, 6), (None, 3, 4, 6), (None, 3, 4, 6)),
        ("crossed", (None, 5, 1), (None, 1, 7), (None, 5, 7)),
        ("scalar", np.array(-37, np.int8), (None, 9), (None, 9)),
    ]
    kinds = [Binary.ADD, Binary.SUB, Binary.MUL, Binary.SQUARED_DIFFERENCE]
    found = {}
    for kind in kinds:
        local = arithmetic
        if kind is Binary.SQUARED_DIFFERENCE and arithmetic.product is not None:
            local = with_options(arithmetic, addition_shift=7)
        for name, first, second, output in shapes:
            encodings = scales.of(0.05, 3), scales.of(0.013, -100), scales.of(0.06, 11)
            found[f"{kind}_{name}"] = one_step(
                ops.Elementwise(kind, Bounds(-3, 4.3) if name == "same" else Bounds()),
                local,
                [(first, encodings[0]), (second, encodings[1])],
                [(output, encodings[2])],
            )
    tied = scales.of(0.05, 3)
    for kind in (Binary.MINIMUM, Binary.MAXIMUM):
        found[str(kind)] = one_step(
            ops.Elementwise(kind),
            arithmetic,
            [((None, 7), tied), ((None, 7), tied)],
            [((None, 7), tied)],
        )
    slopes = np.array([-128, -3, 0, 50, 127, 9], np.int8)
    found["prelu"] = one_step(
        ops.PRelu(),
        arithmetic,
        [((None, 3, 4, 6), scales.of(0.05, 3)), (slopes, scales.of(0.004, 2))],
        [((None, 3, 4, 6), scales.of(0.06, 11))],
    )
    for name, source, target in (
        ("finer", 0.05, 0.013),
        ("coarser", 0.013, 0.05),
        ("equal", 0.1, 0.1),
    ):
        found[f"requantize_{name}"] = one_step(
            ops.Requantize(),
            arithmetic,
            [((None, 300), scales.of(source, -7))],
            [((None, 300), scales.of(target, 30))],
        )
    return found


def joined(programs: Mapping[str, Program]) -> Program:
    """Return all steps as one program; the tensors of each are named after it."""
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    steps: list[Step] = []
    for prefix, program in programs.items():
        known = {t.name: replace(t, name=f"{prefix}.{t.name}") for t in program.tensors()}
        inputs |= {f"{prefix}.{name}": known[t.name] for name, t in program.inputs.items()}
        outputs |= {f"{prefix}.{name}": known[t.name] for name, t in program.outputs.items()}
        for step in program.steps:
            slots = tuple(None if t is None else known[t.name] for t in step.inputs)
            results = tuple(known[t.name] for t in step.outputs)
            steps.append(replace(step, name=f"{prefix}.{step.name}", inputs=slots, outputs=results))
    return Program(inputs, outputs, tuple(steps))


def feeds(program: Program, count: int, seed: int = 0) -> dict[str, npt.NDArray[np.int8]]:
    """Return random codes for a program's inputs, every code among them; the extremes last."""
    rng = np.random.default_rng(seed)
    fed = {}
    for name, tensor in program.inputs.items():
        shape = (count, *(int(length or 1) for length in tensor.shape[1:]))
        codes = rng.integers(-128, 128, shape)
        codes[-1], codes[-2] = rng.choice([-128, 127], shape[1:]), -128
        fed[name] = codes.astype(np.int8)
    return fed
