"""Softmax and LogSoftmax against LiteRT's and TFLM's kernels, and against the real functions."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from intact.config import Rounding
from intact.engines.integer.kernel import Overflows
from intact.engines.integer.pointwise import softmax
from intact.errors import IntactError
from intact.program import Encoding
from intact.program.operations import Softmax
from intact.targets import Arithmetic, FixedPoint, Functions, Product
from tests.engines.integer.one_op import (
    OPTIMIZED,
    REFERENCE,
    XNNPACK,
    Array,
    End,
    litert,
    micro,
    one_op,
)
from tests.program.one_step import int8, int32, one_step, uint8

FLOATS = Arithmetic(requantize=FixedPoint(Product.DOUBLE), rounding=Rounding.HALF_AWAY_FROM_ZERO)
FIXED = msgspec.structs.replace(FLOATS, functions=Functions.FIXED_POINT)
PRESCRIBED = {False: int8(1 / 256, -128), True: int8(16 / 256, 127)}
KIND = pytest.mark.parametrize("log", [False, True])


def run(
    arithmetic: Arithmetic,
    log: bool,
    codes: Array,
    data: Encoding,
    output: Encoding,
    axis: int = -1,
) -> Array:
    program = one_step(
        Softmax(axis, log), arithmetic, [(codes.shape, data)], [(codes.shape, output)]
    )
    (found,) = softmax.prepare_softmax(program.steps[0], Overflows())(codes)
    assert isinstance(found, np.ndarray)
    assert found.dtype == output.dtype
    return found


def model(log: bool, shape: tuple[int, ...], data: Encoding, output: Encoding) -> bytes:
    ends = [End(shape, data)], End(shape, output)
    if log:
        return one_op("LOG_SOFTMAX", *ends, {}, "LogSoftmaxOptions")
    return one_op("SOFTMAX", *ends, {"beta": 1.0}, "SoftmaxOptions")


def tensors() -> list[tuple[Array, Encoding]]:
    """Flat and peaked rows of several lengths, and scales from fine to so coarse that they cap.

    The last two tell fixed point from floats.
    """
    generator = np.random.default_rng(1)
    found = []
    for length in (1, 2, 3, 10, 100, 400):
        for scale, zero_point in ((0.003, -128), (0.04, 17), (0.21, 127), (1.7, 0), (9.0, -3)):
            uniform = generator.integers(-128, 128, (16, length))
            peaked = np.clip(generator.normal(0, 15, (16, length)), -128, 127)
            codes = np.concatenate([uniform, peaked, np.full((1, length), 127)]).astype(np.int8)
            found.append((codes, int8(scale, zero_point)))
    telling = np.array([[-14, -8, -8, -6, -8], [11, -1, 16, 15, 2]], np.int8)
    return [*found, (telling, int8(64 / 1024)), (telling, int8(256 / 1024))]


@KIND
@pytest.mark.parametrize("runtime", [REFERENCE, "micro"])
def test_the_fixed_point_kernels(runtime: str, log: bool) -> None:
    differs_from_floats = False
    for codes, data in tensors():
        file = model(log, codes.shape, data, PRESCRIBED[log])
        if runtime == "micro":
            expected = micro(file, codes)
        else:
            expected = litert(file, codes, kernels=runtime)
        assert np.array_equal(run(FIXED, log, codes, data, PRESCRIBED[log]), expected)
        floats = run(FLOATS, log, codes, data, PRESCRIBED[log])
        differs_from_floats |= not np.array_equal(floats, expected)
    assert differs_from_floats  # or the tensors could not tell


@pytest.mark.parametrize("runtime", [REFERENCE, "micro"])
def test_long_rows(runtime: str) -> None:
    """Of peaked rows: those whose sum reaches 512 end the process of the kernels."""
    codes, data = peaked(6625), int8(0.3, 4)
    file = model(False, codes.shape, data, PRESCRIBED[False])
    expected = micro(file, codes) if runtime == "micro" else litert(file, codes, kernels=runtime)
    assert np.array_equal(run(FIXED, False, codes, data, PRESCRIBED[False]), expected)
    assert len(np.unique(expected)) > 3


def peaked(length: int) -> Array:
    """Return codes of which few are near the largest."""
    codes = np.random.default_rng(7).integers(-128, 60, (4, length)).astype(np.int8)
    codes[:, [3, 50, 700, -1]] = [118, 120, 112, 121]
    return codes


@pytest.mark.parametrize("length", [4095, 4096, 8191])
def test_sums_take_all_bits(length: int) -> None:
    codes, data = np.full((1, length), 5, np.int8), int8(0.003, 4)
    assert (run(FIXED, False, codes, data, PRESCRIBED[False]) == -128).all()


@KIND
@pytest.mark.parametrize("runtime", [OPTIMIZED, XNNPACK])
def test_the_float_kernels(runtime: str, log: bool) -> None:
    for codes, data in tensors():
        expected = litert(model(log, codes.shape, data, PRESCRIBED[log]), codes, kernels=runtime)
        assert np.array_equal(run(FLOATS, log, codes, data, PRESCRIBED[log]), expected)


@pytest.mark.parametrize(("runtime", "arithmetic"), [(REFERENCE, FIXED), (OPTIMIZED, FLOATS)])
def test_unsigned_codes(runtime: str, arithmetic: Arithmetic) -> None:
    codes = np.random.default_rng(2).integers(0, 256, (40, 33)).astype(np.uint8)
    data, output = uint8(0.07, 100), uint8(1 / 256, 0)
    expected = litert(model(False, codes.shape, data, output), codes, kernels=runtime)
    assert np.array_equal(run(arithmetic, False, codes, data, output), expected)


@KIND
@pytest.mark.parametrize("arithmetic", [FIXED, FLOATS])
@pytest.mark.parametrize("output", [None, int8(1 / 200, -110), uint8(1 / 250, 3)])
def test_near_the_real_function(log: bool, arithmetic: Arithmetic, output: Encoding | None) -> None:
    codes = np.random.default_rng(3).integers(-128, 128, (64, 21)).astype(np.int8)
    data, output = int8(0.05, 9), output or PRESCRIBED[log]
    real = (codes.astype(np.float64) - 9) * 0.05
    exact = real - np.log(np.exp(real).sum(axis=1, keepdims=True))
    steps = (exact if log else np.exp(exact)) / float(output.scale) + int(output.zero_point)
    found = run(arithmetic, log, codes, data, output)
    assert np.abs(found - np.clip(steps, output.quant_min, output.quant_max)).max() <= 0.51


@KIND
@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_any_axis(log: bool, axis: int) -> None:
    codes = np.random.default_rng(4).integers(-128, 128, (3, 5, 7)).astype(np.int8)
    found = run(FIXED, log, codes, int8(0.1), PRESCRIBED[log], axis)
    last = np.moveaxis(codes, axis, -1)
    expected = run(FIXED, log, np.ascontiguousarray(last), int8(0.1), PRESCRIBED[log])
    assert np.array_equal(found, np.moveaxis(expected, -1, axis))


@KIND
@pytest.mark.parametrize("arithmetic", [FIXED, FLOATS])
@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (1, 1), (2, 3, 1), (4,)])
def test_odd_shapes(log: bool, arithmetic: Arithmetic, shape: tuple[int, ...]) -> None:
    codes = np.full(shape, -128, np.int8)
    assert run(arithmetic, log, codes, int8(0.1), PRESCRIBED[log]).shape == shape


@KIND
@pytest.mark.parametrize("arithmetic", [FIXED, FLOATS])
def test_blocks_do_not_show(
    log: bool, arithmetic: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = np.random.default_rng(5).integers(-128, 128, (50, 9)).astype(np.int8)
    whole = run(arithmetic, log, codes, int8(0.1), PRESCRIBED[log])
    monkeypatch.setattr(softmax, "_BLOCK", 20)
    assert np.array_equal(run(arithmetic, log, codes, int8(0.1), PRESCRIBED[log]), whole)


@KIND
@pytest.mark.parametrize("arithmetic", [FIXED, FLOATS])
def test_only_differences_matter(log: bool, arithmetic: Arithmetic) -> None:
    """Codes of 16 bits, and codes beyond the range that the encoding has."""
    codes = np.random.default_rng(6).integers(-128, 100, (20, 9)).astype(np.int16)
    expected = run(arithmetic, log, codes.astype(np.int8), int8(0.1), PRESCRIBED[log])
    wide = Encoding(np.array(0.1, np.float32), np.array(5), -(2**15), 2**15 - 1)
    narrow = Encoding(np.array(0.1, np.float32), np.array(0), -127, 127)
    low = run(arithmetic, log, codes.astype(np.int8), narrow, PRESCRIBED[log])
    assert np.array_equal(low, expected)
    if not log:  # a float logarithm depends on where the codes are
        shifted = run(arithmetic, log, (codes + 5).astype(np.int16), wide, PRESCRIBED[log])
        assert np.array_equal(shifted, expected)


def test_codes_of_32_bits_are_refused() -> None:
    program = one_step(Softmax(-1), FIXED, [((1, 2), int32(0.1))], [((1, 2), PRESCRIBED[False])])
    with pytest.raises(IntactError, match="no Softmax of int32"):
        softmax.prepare_softmax(program.steps[0], Overflows())
