"""Means, sums and extremes over axes, against the runtimes and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest

from intact.config import Rounding
from intact.formats.tflite.write import program_to_tflite
from intact.program import Encoding
from intact.program.operations import Reduce, Reduction
from intact.targets import Arithmetic
from tests.engines.integer.hardware import (
    AFTER,
    BEFORE,
    DOUBLE,
    SHIFT,
    as_int8,
    computed,
    onnxruntime,
    random_codes,
    run_step,
)
from tests.engines.integer.one_op import OPTIMIZED, REFERENCE, XNNPACK, litert, micro
from tests.program.one_step import int8, one_step, uint8

HALF_AWAY = msgspec.structs.replace(AFTER, rounding=Rounding.HALF_AWAY_FROM_ZERO)
ENDS = [
    (int8(0.5, 3), int8(0.5, 3)),
    (int8(0.0371, -128), int8(0.0113, 41)),
    (int8(0.013, -77), int8(0.013, 5)),
]
SHAPES = [(2, 8, 8, 16), (1, 7, 7, 32), (1, 1, 5, 64), (1, 30, 1, 64), (1, 1, 1, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keep_dims", [True, False])
@pytest.mark.parametrize("pair", ENDS)
def test_means_are_those_of_the_runtimes(
    shape: tuple[int, ...], keep_dims: bool, pair: tuple[Encoding, Encoding]
) -> None:
    codes = random_codes(shape, pair[0])
    reduced = (shape[0], 1, 1, shape[3]) if keep_dims else (shape[0], shape[3])
    ends = [(shape, pair[0])], [(reduced, pair[1])]
    operation = Reduce(Reduction.MEAN, (1, 2), keep_dims)
    program = one_step(operation, DOUBLE, *ends)
    ours, model = computed(program, codes), program_to_tflite(program)
    np.testing.assert_array_equal(ours, litert(model, codes, kernels=REFERENCE))
    np.testing.assert_array_equal(ours, micro(model, codes))
    ours = computed(one_step(operation, BEFORE, *ends), codes)
    np.testing.assert_array_equal(ours, litert(model, codes, kernels=XNNPACK))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("output", [uint8(0.5, 128), uint8(0.37, 3), uint8(0.013, 99)])
def test_global_averages_are_those_of_onnxruntime(shape: tuple[int, ...], output: Encoding) -> None:
    source = uint8(0.5, 128)
    codes = random_codes(shape, source)
    channels_first = np.ascontiguousarray(codes.transpose(0, 3, 1, 2))
    theirs = onnxruntime("GlobalAveragePool", [(channels_first, source)], output)
    operation = Reduce(Reduction.MEAN, (1, 2), True)
    ends = [(shape, source)], ((shape[0], 1, 1, shape[3]), output)
    ours = run_step(operation, AFTER, *ends, codes)
    np.testing.assert_array_equal(ours.transpose(0, 3, 1, 2), theirs)


@pytest.mark.parametrize("axes", [(1, 2), (3,), (1,), (1, 2, 3)])
def test_sums_are_those_of_the_runtimes(axes: tuple[int, ...]) -> None:
    source, target = int8(0.05, -7), int8(0.4, 11)
    codes = random_codes((2, 3, 4, 5), source)
    shape = codes.sum(axis=axes, keepdims=True).shape
    ends = [(codes.shape, source)], [(shape, target)]
    program = one_step(Reduce(Reduction.SUM, axes, True), DOUBLE, *ends)
    model = program_to_tflite(program)
    np.testing.assert_array_equal(computed(program, codes), micro(model, codes))
    ours = computed(one_step(Reduce(Reduction.SUM, axes, True), HALF_AWAY, *ends), codes)
    np.testing.assert_array_equal(ours, litert(model, codes, kernels=OPTIMIZED))
    ours = computed(one_step(Reduce(Reduction.SUM, axes, True), BEFORE, *ends), codes)
    np.testing.assert_array_equal(ours, litert(model, codes, kernels=XNNPACK))


@pytest.mark.parametrize("kind", [Reduction.MAX, Reduction.MIN])
def test_extremes_are_those_of_the_runtimes(kind: Reduction) -> None:
    encoding = int8(0.05, -7)
    codes = random_codes((2, 3, 4, 5), encoding)
    ends = [(codes.shape, encoding)], [((2, 5), encoding)]
    program = one_step(Reduce(kind, (1, 2), False), DOUBLE, *ends)
    ours, model = computed(program, codes), program_to_tflite(program)
    np.testing.assert_array_equal(ours, litert(model, codes, kernels=REFERENCE))
    np.testing.assert_array_equal(ours, codes.max((1, 2)) if kind is Reduction.MAX else ours)


@pytest.mark.parametrize("exponents", [(-3, -3), (-1, -4), (2, 5)])
@pytest.mark.parametrize("kind", [Reduction.MEAN, Reduction.SUM])
def test_powers_of_two_are_rounded_once(exponents: tuple[int, int], kind: Reduction) -> None:
    source, target = (int8(2.0**exponent) for exponent in exponents)
    codes = random_codes((7, 3), source)
    ours = run_step(Reduce(kind, (1,), False), SHIFT, [((7, 3), source)], ((7,), target), codes)
    ratio = Fraction(2) ** (exponents[0] - exponents[1])
    for row, code in zip(codes.tolist(), ours.tolist(), strict=True):
        real = sum(row) * ratio / (3 if kind is Reduction.MEAN else 1)
        assert code == max(-128, min(127, int((real + Fraction(1, 2)) // 1)))


@pytest.mark.parametrize("kind", list(Reduction))
@pytest.mark.parametrize("arithmetic", [DOUBLE, AFTER, BEFORE, SHIFT])
def test_reductions_of_one_element_and_of_empty_batches(
    kind: Reduction, arithmetic: Arithmetic
) -> None:
    encoding = int8(0.5)
    ends = [((None, 1, 3), encoding)], ((None, 3), encoding)
    for batch in (0, 1):
        codes = np.ascontiguousarray(as_int8([[[-128, 0, 127]]])[:batch])
        ours = run_step(Reduce(kind, (1,), False), arithmetic, *ends, codes)
        np.testing.assert_array_equal(ours, codes[:, 0])
