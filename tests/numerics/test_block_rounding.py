"""Rounding of weights in blocks: never worse than the nearest, and as it says of itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.numerics.block_rounding import BlockFit, round_blocks, zoomed_scales
from intact.numerics.second_order import Doubles, Levels

ZOOMS = tuple(1 - step / 10 for step in range(6))


def half(scale: Doubles) -> Doubles:
    """Make scales half precision, as files have them."""
    return scale.astype(np.float16).astype(np.float64)


def case(
    seed: int, size: int, bits: int, *, rows: int = 60, zero_points: bool = False
) -> tuple[Doubles, Levels, Doubles, Doubles]:
    """Weights, their levels, and inputs in float and quantized that depend on each other."""
    random = np.random.default_rng(seed)
    outputs, inputs = 7, 40  # the last block is ragged
    mix = random.normal(size=(9, inputs))
    x = random.normal(size=(rows, 9)) @ mix + 0.2 * random.normal(size=(rows, inputs))
    z = x + 0.1 * random.normal(size=x.shape)
    x[:, 3] = z[:, 3] = 0  # an input that is always 0
    weight = random.normal(size=(outputs, inputs)) * random.uniform(0.1, 2, (1, inputs))
    blocks = -(-inputs // size)
    padded = np.pad(weight, ((0, 0), (0, blocks * size - inputs))).reshape(outputs, blocks, size)
    low, high = (0, (1 << bits) - 1) if zero_points else (-(1 << bits - 1), (1 << bits - 1) - 1)
    reach = np.maximum(padded.max(-1), 0) - np.minimum(padded.min(-1), 0)
    scale = half(reach / (high - low) if zero_points else 2 * np.abs(padded).max(-1) / (2 * high))
    sign = 1.0 if zero_points else random.choice((-1.0, 1.0), scale.shape)
    zero = np.rint(-np.minimum(padded.min(-1), 0) / scale) if zero_points else np.zeros(1)
    return weight, Levels(scale * sign, zero, low, high, size), x, z


def off(weight: Doubles, rounded: Doubles, x: Doubles, z: Doubles) -> Doubles:
    """Return the mean squared difference of results, for each output."""
    return np.asarray(np.square(x @ weight.T - z @ rounded.T).mean(axis=0))


@pytest.mark.parametrize("zero_points", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([16, 32]), st.integers(2, 5), st.sampled_from([3, 60])
)
def test_no_output_is_further_off_than_rounding_to_nearest(
    zero_points: bool, seed: int, size: int, bits: int, rows: int
) -> None:
    weight, levels, x, z = case(seed, size, bits, rows=rows, zero_points=zero_points)
    cross, moments, damping = x.T @ z / len(x), z.T @ z / len(z), 1e-9
    fit = BlockFit.of(cross - moments, moments, damping)
    if fit is None:  # fewer samples than inputs
        fit = BlockFit.of(cross - moments, moments, 1e-2)
        damping = 1e-2
    assert fit is not None
    found = round_blocks(weight, levels, fit, ZOOMS, half)
    before = off(weight, levels.nearest(weight), x, z)
    after = off(weight, found.rounded, x, z)
    ridge = damping * np.trace(moments) / len(moments)
    before += ridge * np.square(weight - levels.nearest(weight)).sum(axis=1)
    after += ridge * np.square(weight - found.rounded).sum(axis=1)
    assert (after <= before * (1 + 1e-9)).all()
    np.testing.assert_allclose(before - after, found.gain, atol=1e-9 * before.max())
    if rows > 40:
        assert after.sum() < 0.9 * before.sum()
    # What it gives is what codes and scales of a file stand for.
    assert np.array_equal(found.scale, half(found.scale))
    scale = np.repeat(found.scale, size, axis=1)[:, : weight.shape[1]]
    zero = np.repeat(np.broadcast_to(levels.zero_point, found.scale.shape), size, axis=1)
    codes = np.rint(found.rounded / scale) + zero[:, : weight.shape[1]]
    assert levels.low <= codes.min() <= codes.max() <= levels.high
    np.testing.assert_allclose((codes - zero[:, : weight.shape[1]]) * scale, found.rounded)


def test_aims_are_the_best_real_numbers() -> None:
    weight, _, x, z = case(1, 16, 4)
    fit = BlockFit.of((x - z).T @ z / len(x), z.T @ z / len(z), 1e-12)
    assert fit is not None
    found = fit.aims(weight, weight @ fit.drift)
    kept = np.delete(np.arange(weight.shape[1]), 3)
    best = np.linalg.lstsq(z[:, kept], x @ weight.T, rcond=None)[0].T
    np.testing.assert_allclose(found[:, kept], best, rtol=1e-4, atol=1e-4)


def test_scales_of_blocks_are_the_best_of_those_tried() -> None:
    weight, levels, _, z = case(2, 16, 3)
    moments = z.T @ z / len(z)
    found = zoomed_scales(weight, levels, moments, ZOOMS, half)
    for block, start in enumerate(range(0, weight.shape[1], 16)):
        part = slice(start, start + 16)
        errors = []
        for zoom in ZOOMS:
            own = Levels(half(levels.scale[:, [block]] * zoom), np.zeros(1), -4, 3, 16)
            lost = weight[:, part] - own.nearest(weight[:, part])
            errors.append(np.einsum("oi,ij,oj->o", lost, moments[part, part], lost))
        best = np.asarray(ZOOMS)[np.argmin(errors, axis=0)]
        assert np.array_equal(found[:, block], half(levels.scale[:, block] * best))
