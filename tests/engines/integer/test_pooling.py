"""Pools over windows and reductions over axes, against the runtimes and exact arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from intact.config import Rounding
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Encoding
from intact.program.operations import Bounds, Pads, Pool, PoolKind
from intact.targets import Arithmetic, ZeroPointOrder
from tests.engines.integer.hardware import (
    AFTER,
    DOUBLE,
    FUSED,
    SHIFT,
    as_int8,
    computed,
    onnxruntime,
    random_codes,
    run_step,
)
from tests.engines.integer.one_op import OPTIMIZED, REFERENCE, XNNPACK, litert, micro
from tests.program.one_step import int8, one_step, uint8

RAW = msgspec.structs.replace(DOUBLE, zero_point=ZeroPointOrder.BEFORE_ROUNDING)
"""TFLite's averages: the zero point is left in the sums."""
SCALE = int8(0.1, 17)


class Case(NamedTuple):
    """A pool over data of 11 x 9."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: Pads
    output: tuple[int, int]


CASES = [
    Case((2, 2), (2, 2), ((0, 0), (0, 0)), (5, 4)),
    Case((3, 3), (1, 1), ((1, 1), (1, 1)), (11, 9)),
    Case((3, 2), (2, 1), ((1, 1), (0, 1)), (6, 9)),
    Case((5, 5), (3, 3), ((1, 2), (1, 1)), (4, 3)),
    Case((11, 9), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    Case((1, 1), (2, 3), ((0, 0), (0, 0)), (6, 3)),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", list(PoolKind))
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(0, 6)])
def test_pools_are_those_of_the_runtimes(case: Case, kind: PoolKind, bounds: Bounds) -> None:
    codes = random_codes((2, 11, 9, 5), SCALE)
    operation = Pool(kind, case.kernel, case.strides, case.pads, bounds=bounds)
    ends = [(codes.shape, SCALE)], [((2, *case.output, 5), SCALE)]
    program = one_step(operation, RAW, *ends)
    ours, model = computed(program, codes), program_to_tflite(program)
    for kernels in (REFERENCE, OPTIMIZED, XNNPACK):
        np.testing.assert_array_equal(ours, litert(model, codes, kernels=kernels))
    np.testing.assert_array_equal(ours, micro(model, codes))


@pytest.mark.parametrize("case", CASES[:5])
@pytest.mark.parametrize("count_pads", [False, True])
@pytest.mark.parametrize("output", [uint8(0.1, 145), uint8(0.07, 20)])
def test_averages_are_those_of_onnxruntime(case: Case, count_pads: bool, output: Encoding) -> None:
    source = uint8(0.1, 145)
    codes = random_codes((2, 11, 9, 5), source)
    operation = Pool(PoolKind.AVERAGE, case.kernel, case.strides, case.pads, count_pads)
    ends = [(codes.shape, source)], ((2, *case.output, 5), output)
    ours = run_step(operation, FUSED, *ends, codes)
    attributes = {
        "kernel_shape": case.kernel,
        "strides": case.strides,
        "pads": [pads[side] for side in (0, 1) for pads in case.pads],
        "count_include_pad": int(count_pads),
    }
    channels_first = np.ascontiguousarray(codes.transpose(0, 3, 1, 2))
    theirs = onnxruntime("AveragePool", [(channels_first, source)], output, attributes)
    np.testing.assert_array_equal(ours.transpose(0, 3, 1, 2), theirs)


def test_a_window_that_is_the_whole_input_is_a_global_average_in_onnxruntime() -> None:
    source = uint8(0.0371, 107)
    codes = random_codes((2, 2, 2, 500), source)
    operation = Pool(PoolKind.AVERAGE, (2, 2), (2, 2), ((0, 0), (0, 0)))
    ours = run_step(operation, FUSED, [(codes.shape, source)], ((2, 1, 1, 500), source), codes)
    channels_first = np.ascontiguousarray(codes.transpose(0, 3, 1, 2))
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    theirs = onnxruntime("AveragePool", [(channels_first, source)], source, attributes)
    np.testing.assert_array_equal(ours.transpose(0, 3, 1, 2), theirs)


def _windows(codes: Array, operation: Pool) -> dict[tuple[int, ...], list[Fraction]]:
    """Return the real steps from the zero point that each window holds, pads where they count."""
    shape = codes.shape
    lengths = [
        (n + sum(pads) - size) // stride + 1
        for n, pads, size, stride in zip(
            shape[1:-1], operation.pads, operation.kernel, operation.strides, strict=True
        )
    ]
    found = {}
    for place in itertools.product(*map(range, (shape[0], *lengths, shape[-1]))):
        steps = []
        for tap in itertools.product(*map(range, operation.kernel)):
            at = [
                o * stride + t - before
                for o, t, stride, (before, _) in zip(
                    place[1:-1], tap, operation.strides, operation.pads, strict=True
                )
            ]
            inside = all(0 <= index < n for index, n in zip(at, shape[1:-1], strict=True))
            if inside:
                steps.append(Fraction(int(codes[(place[0], *at, place[-1])])))
            elif operation.count_pads:
                steps.append(Fraction(17))
        found[place] = steps
    return found


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("count_pads", [False, True])
@pytest.mark.parametrize("arithmetic", [DOUBLE, RAW])
def test_averages_are_exact_for_any_rank(
    rank: int, count_pads: bool, arithmetic: Arithmetic
) -> None:
    arithmetic = msgspec.structs.replace(arithmetic, rounding=Rounding.HALF_EVEN)
    pads: Pads = ((1, 0), (0, 2), (1, 1))[:rank]
    operation = Pool(PoolKind.AVERAGE, (2, 3, 2)[:rank], (2, 1, 1)[:rank], pads, count_pads)
    codes = random_codes((2, *(5, 3, 4)[:rank], 2), SCALE, rank)
    ours = run_step(operation, arithmetic, [(codes.shape, SCALE)], ((), SCALE), codes)
    zero = 0 if arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING else 17
    for place, steps in _windows(codes, operation).items():
        mean = sum(step - zero for step in steps) / len(steps)
        assert int(ours[place]) == round(mean) + zero


def test_averages_of_another_scale_are_multiplied_once() -> None:
    codes = random_codes((1, 5, 5, 3), SCALE)
    operation = Pool(PoolKind.AVERAGE, (3, 3), (2, 2), ((1, 1), (1, 1)))
    target = int8(0.033, -9)
    ours = run_step(operation, DOUBLE, [(codes.shape, SCALE)], ((), target), codes)
    scales = [Fraction(float(scale)) for scale in (SCALE.scale, target.scale)]
    for place, steps in _windows(codes, operation).items():
        real = sum(step - 17 for step in steps) / len(steps) * scales[0] / scales[1] - 9
        assert abs(int(ours[place]) - max(-128, min(127, real))) <= Fraction(51, 100)


@pytest.mark.parametrize("kind", list(PoolKind))
def test_an_empty_batch_is_pooled(kind: PoolKind) -> None:
    codes = np.empty((0, 4, 4, 2), np.int8)
    operation = Pool(kind, (2, 2), (2, 2), ((0, 0), (0, 0)))
    for arithmetic in (RAW, FUSED):
        ends = [((None, 4, 4, 2), SCALE)], ((None, 2, 2, 2), SCALE)
        assert run_step(operation, arithmetic, *ends, codes).shape == (0, 2, 2, 2)


def test_the_largest_of_another_scale_is_brought_to_it() -> None:
    operation = Pool(PoolKind.MAX, (2,), (2,), ((0, 0),))
    codes = as_int8([[[4], [8], [-100], [-90]]])
    ours = run_step(operation, AFTER, [(codes.shape, int8(0.5))], ((), int8(1.0, 2)), codes)
    assert ours.reshape(-1).tolist() == [6, -43]


def test_shifting_hardware_averages_half_up() -> None:
    operation = Pool(PoolKind.AVERAGE, (2,), (2,), ((0, 0),))
    codes = as_int8([[[1], [2], [-1], [-2]]])
    ours = run_step(operation, SHIFT, [(codes.shape, int8(0.5))], ((), int8(0.5)), codes)
    assert ours.reshape(-1).tolist() == [2, -1]
