"""Constants that are added: as OpenVINO moves them into the quantizer behind."""

from __future__ import annotations

import numpy as np
import pytest

from intact.program.operations import Binary, Bounds, Elementwise
from intact.targets import Arithmetic, FloatEnds
from tests.engines.integer.hardware import End, run_step
from tests.program.one_step import int8, uint8

FOLDED = Arithmetic(requantize=FloatEnds(folded_constants=True))
THREE = int8(3 / 127)
SIX = uint8(6 / 255)
CODES = np.arange(-128, 128).astype(np.int8).reshape(1, 256)


@pytest.mark.parametrize(("scale", "code"), [(0.06739856, 127), (0.10918669, 128)])
def test_a_sum_on_a_tie_follows_the_moved_ends(scale: float, code: int) -> None:
    """``0 + 3`` on a grid from 0 to 6, measured with openvino 2026.4.1."""
    given = np.array([127], np.int8)
    for kind, constant in ((Binary.ADD, given), (Binary.SUB, -given)):
        ends: list[End] = [(CODES.shape, int8(scale)), (constant, THREE)]
        found = run_step(Elementwise(kind), FOLDED, ends, (CODES.shape, SIX), CODES)
        assert found[0, 128] == code
    swapped: list[End] = [(given, THREE), (CODES.shape, int8(scale))]
    found = run_step(Elementwise(Binary.ADD), FOLDED, swapped, (CODES.shape, SIX), CODES)
    assert found[0, 128] == code


@pytest.mark.parametrize("shape", [(1,), (3, 1), (3, 256), (5, 1, 1), (5, 3, 256), (1, 3, 1)])
@pytest.mark.parametrize("kind", [Binary.ADD, Binary.SUB])
@pytest.mark.parametrize("first", [True, False])
def test_sums_are_the_nearest(shape: tuple[int, ...], kind: Binary, first: bool) -> None:
    constant = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    source, added, output = uint8(0.017, 100), int8(0.031), int8(0.043, -7)
    codes = np.broadcast_to(np.arange(256).astype(np.uint8), (5, 3, 256))
    inputs: list[End] = [(codes.shape, source), (constant, added)]
    numbers = [(codes - 100.0) * 0.017, constant * 0.031]
    if first:
        inputs.reverse()
        numbers.reverse()
    sums = numbers[0] + (1 if kind is Binary.ADD else -1) * numbers[1]
    operation = Elementwise(kind, Bounds(-3.0, 3.0))
    found = run_step(operation, FOLDED, inputs, (codes.shape, output), codes)
    exact = np.clip(sums, -3, 3) / 0.043 - 7
    assert found.dtype == np.int8
    assert np.abs(found - np.clip(exact, -128, 127)).max() < 0.5 + 1e-4


def test_a_constant_beyond_all_ends_gives_the_last_code() -> None:
    """Its size leaves nothing of the range between the ends."""
    inputs: list[End] = [(CODES.shape, int8(0.1)), (np.array([127], np.int8), int8(1e9))]
    found = run_step(Elementwise(Binary.ADD), FOLDED, inputs, (CODES.shape, SIX), CODES)
    assert (found == 255).all()
