"""Rounding by second moments: against brute force, and where nothing can be gained."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.numerics.second_order import (
    Doubles,
    Levels,
    Turns,
    descend,
    round_in_turn,
    squared_error,
)

CODES = np.arange(-2, 3)


def case(
    seed: int, inputs: int = 5, groups: int = 2, outputs: int = 3
) -> tuple[Doubles, Doubles, Levels]:
    """Weights, second moments of inputs that depend on each other, and levels."""
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(groups, 40, inputs)) @ random.normal(size=(groups, inputs, inputs))
    moments = mixed.transpose(0, 2, 1) @ mixed / 40
    scale = random.uniform(0.3, 0.6, (groups, outputs, 1))
    levels = Levels(scale, np.zeros(1), int(CODES[0]), int(CODES[-1]))
    return random.normal(size=(groups, outputs, inputs)), moments, levels


def error(weight: Doubles, rounded: Doubles, moments: Doubles) -> float:
    return float(squared_error(weight, rounded, moments, moments, moments).sum())


def least_error(weight: Doubles, moments: Doubles, levels: Levels) -> float:
    """Of all codes there are."""
    codes = np.array(list(itertools.product(CODES, repeat=weight.shape[2])), float)
    total = 0.0
    for group, output in np.ndindex(weight.shape[:2]):
        off = codes * levels.scale[group, output] - weight[group, output]
        total += float(np.einsum("ci,ij,cj->c", off, moments[group], off).min())
    return total


def in_blocks(levels: Levels, inputs: int, block: int, seed: int = 0) -> Levels:
    """The same codes, with a scale of either sign for each block."""
    random = np.random.default_rng(seed)
    shape = (*levels.scale.shape[:2], -(-inputs // block))
    scale = random.uniform(0.2, 0.8, shape) * random.choice((-1, 1), shape)
    return Levels(scale, np.zeros(1), levels.low, levels.high, block)


@pytest.mark.parametrize("block", [2, 5, 64])
def test_blocks_have_the_levels_of_their_own_scales(block: int) -> None:
    """As with a group for each block; passing errors on still helps, in whatever order."""
    inputs = 90
    weight, moments, levels = case(0, inputs)
    levels = in_blocks(levels, inputs, block)
    nearest = levels.nearest(weight)
    for at in range(levels.scale.shape[2]):
        part = slice(at * block, (at + 1) * block)
        own = Levels(levels.scale[:, :, at : at + 1], np.zeros(1), levels.low, levels.high)
        np.testing.assert_array_equal(nearest[:, :, part], own.nearest(weight[:, :, part]))
    moments = moments + 1e-3 * np.trace(moments[0]) * np.eye(inputs)
    turned = round_in_turn(weight, moments, levels, 0.0)
    found = descend(turned, weight @ moments, moments, levels)
    for rounded in (turned, found):
        np.testing.assert_array_equal(levels.nearest(rounded), rounded)
    assert error(weight, found, moments) <= error(weight, turned, moments)
    assert error(weight, turned, moments) < 0.7 * error(weight, nearest, moments)


@pytest.mark.parametrize("seed", range(5))
def test_it_lies_between_the_best_and_the_nearest(seed: int) -> None:
    weight, moments, levels = case(seed)
    turned = round_in_turn(weight, moments, levels, 1e-6)
    found = descend(turned, weight @ moments, moments, levels)
    nearest = error(weight, levels.nearest(weight), moments)
    best = least_error(weight, moments, levels)
    assert best * (1 - 1e-9) <= error(weight, found, moments) <= error(weight, turned, moments)
    assert error(weight, found, moments) < best + 0.5 * (nearest - best)


@given(st.integers(0, 1 << 30), st.integers(1, 70))
def test_what_is_passed_on_is_the_error(seed: int, inputs: int) -> None:
    weight, moments, levels = case(seed, inputs)
    moments = moments + 1e-3 * np.trace(moments[0]) * np.eye(inputs)
    rounded, errors = Turns.from_moments(moments, 0.0).round(weight, levels)
    expected = squared_error(weight, rounded, moments, moments, moments)
    # A difference of sums as large as the result: its own rounding error is some 1e-16 of those.
    whole = squared_error(weight, np.zeros_like(weight), moments, moments, moments)
    np.testing.assert_allclose(errors, expected, rtol=1e-8, atol=1e-13 * float(whole.max()))


@given(st.integers(0, 1 << 30), st.integers(1, 70))
def test_no_single_step_is_left_that_helps(seed: int, inputs: int) -> None:
    weight, moments, levels = case(seed, inputs, groups=1, outputs=2)
    moments = moments + 1e-3 * np.trace(moments[0]) * np.eye(inputs)
    found = descend(levels.nearest(weight), weight @ moments, moments, levels)
    codes = np.rint(found / levels.scale)
    np.testing.assert_allclose(codes * levels.scale, found, rtol=1e-12)
    assert levels.low <= codes.min() <= codes.max() <= levels.high
    least = error(weight, found, moments)
    for output, place in np.ndindex(2, inputs):
        for step in (-1, 1):
            other = codes.copy()
            other[0, output, place] += step
            if levels.low <= other[0, output, place] <= levels.high:
                assert error(weight, other * levels.scale, moments) >= least * (1 - 1e-9)


def test_inputs_that_do_not_depend_on_each_other_leave_the_nearest() -> None:
    weight, _, levels = case(0, inputs=9)
    diagonal = np.eye(9) * np.arange(1.0, 10)[:, None] * np.ones((2, 1, 1))
    np.testing.assert_array_equal(
        round_in_turn(weight, diagonal, levels, 0.0), levels.nearest(weight)
    )


@pytest.mark.parametrize("moments", [np.zeros((2, 5, 5)), np.ones((2, 5, 5))])
def test_moments_without_an_inverse_give_levels(moments: Doubles) -> None:
    weight, _, levels = case(1)
    found = round_in_turn(weight, moments, levels, 1e-3)
    np.testing.assert_array_equal(levels.nearest(found), found)
    if not moments.any():
        np.testing.assert_array_equal(found, levels.nearest(weight))


def test_an_input_that_is_always_zero_takes_no_error() -> None:
    weight, moments, levels = case(2)
    moments[:, 3, :] = moments[:, :, 3] = 0
    found = round_in_turn(weight, moments, levels, 1e-6)
    np.testing.assert_array_equal(found[:, :, 3], levels.nearest(weight)[:, :, 3])


def test_zero_points_shift_the_codes() -> None:
    levels = Levels(np.full((1, 1, 1), 0.5), np.full((1, 1, 1), 3.0), 0, 15)
    np.testing.assert_array_equal(
        levels.nearest(np.array([[[-9.0, -1.5, 0.24, 0.26, 9.0]]])), [[[-1.5, -1.5, 0, 0.5, 6.0]]]
    )


def test_the_error_is_that_of_the_results() -> None:
    random = np.random.default_rng(3)
    x, z = random.normal(size=(2, 1, 30, 4))
    weight, rounded = random.normal(size=(2, 1, 3, 4))
    xx, xz, zz = (a.transpose(0, 2, 1) @ b / 30 for a, b in ((x, x), (x, z), (z, z)))
    found = squared_error(weight, rounded, xx, xz, zz)
    off = x @ weight.transpose(0, 2, 1) - z @ rounded.transpose(0, 2, 1)
    np.testing.assert_allclose(found, (off**2).mean(axis=1), rtol=1e-9)
