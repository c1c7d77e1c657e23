"""Rounds weights so that the result of the layer changes little, not each weight (GPTQ).

A layer computes ``y = w x``. Rounding ``w`` to ``w + d`` changes it by ``d x``, on average over the
inputs by ``d H d`` squared, with their second moments ``H = mean(x x)``. So what rounding one
weight does is partly made good by those that are not rounded yet: rounded in turn, each passes its
error on. With the upper triangle ``U`` of the Cholesky factorization of the inverse, ``inv(H) =
transpose(U) U``, weight ``j`` passes ``(w_j - rounded) / U_jj * U_jk`` on to weight ``k``.

Source: [gptq], algorithm 1. The order of the weights, those with the largest moments first, is that
of the authors' program (``act_order``).

The compiled loops take some columns of weights at a time. All arrays are float64 in C order:
weights ``[groups, outputs, inputs]``, scales and zero points ``[groups, outputs, blocks]``, second
moments and triangles ``[groups, inputs, inputs]``; but for ``blocks``, int64 ``[groups, inputs]``,
which says to which block a column belongs. A row at a time, with the columns in the inner loop, so
that what a row needs stays in the fastest cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from intact.numerics.loop_cache import CACHED

Doubles = npt.NDArray[np.float64]

_BLOCK = 64
"""Weights that are rounded before their errors reach those behind, in one product."""
_SWEEPS = 20
"""Most passes over the weights; few move after the first ones."""


@dataclass(frozen=True)
class Levels:
    """What weights are rounded to: ``scale * (code - zero_point)`` with codes ``low`` to ``high``.

    Attributes:
        scale: ``[..., outputs, blocks]``, not 0; one block where all inputs have one scale.
        zero_point: Whole numbers, of that shape or one number.
        low: The lowest code.
        high: The highest.
        block: How many neighbouring inputs have a scale together; None for all.
    """

    scale: Doubles
    zero_point: Doubles
    low: int
    high: int
    block: int | None = None

    def nearest(self, weight: Doubles) -> Doubles:
        """Return the levels nearest to weights ``[..., outputs, inputs]``, ties to even."""
        scale, zero = self.scale, self.zero_point
        if self.block is not None:
            blocks = self.blocks_of(weight.shape[-1])
            scale, zero = (
                np.broadcast_to(each, scale.shape)[..., blocks] for each in (scale, zero)
            )
        codes = np.rint(weight / scale) + zero
        codes = np.minimum(np.maximum(codes, self.low), self.high)  # np.clip takes thrice as long
        return np.asarray((codes - zero) * scale)

    def blocks_of(self, inputs: int) -> npt.NDArray[np.int64]:
        """Return the block of each input, ``[inputs]``."""
        return np.arange(inputs, dtype=np.int64) // (self.block or max(inputs, 1))

    def row_parameters(self, groups: int, outputs: int) -> tuple[Doubles, Doubles]:
        """Return scales and zero points, ``[groups, outputs, blocks]``."""
        shape = (groups, outputs, self.scale.shape[-1])
        scale, zero = (
            np.ascontiguousarray(np.broadcast_to(each, shape), np.float64)
            for each in (self.scale, self.zero_point)
        )
        return scale, zero


@dataclass(frozen=True)
class Turns:
    """The order in which weights are rounded, and the share of its error that each passes on.

    Attributes:
        order: Positions of the weights in the order of rounding, ``[groups, inputs]``.
        upper: The factor ``U``, upper triangles ``[groups, inputs, inputs]``, in that order.
    """

    order: npt.NDArray[np.intp]
    upper: Doubles

    @staticmethod
    def from_moments(moments: Doubles, damping: float) -> Turns:
        """Derive order and factor from second moments; the arguments are as in `round_in_turn`."""
        # Stable, so that equal moments keep the order of the inputs on every machine.
        order = np.argsort(-np.diagonal(moments, axis1=1, axis2=2), axis=1, kind="stable")
        return Turns(order, _factor(_reorder(moments, order), damping))

    def round(self, weight: Doubles, levels: Levels) -> tuple[Doubles, Doubles]:
        """Round weights ``[groups, outputs, inputs]``.

        Returns:
            Levels, of that shape, and ``d H d`` of each output for what they differ by,
            ``[groups, outputs]``: the sum of the squares of what is passed on.
        """
        ordered = np.take_along_axis(weight, self.order[:, None, :], axis=2)
        rounded = np.empty_like(ordered)
        count, row_parameters = weight.shape[2], levels.row_parameters(*weight.shape[:2])
        blocks = levels.blocks_of(count)[self.order]
        bounds = float(levels.low), float(levels.high)
        squares = np.zeros(weight.shape[:2])
        for start in range(0, count, _BLOCK):
            end = min(start + _BLOCK, count)
            errors = np.empty((*weight.shape[:2], end - start))
            round_columns(
                ordered, rounded, errors, self.upper, *row_parameters, blocks, *bounds, start, end
            )
            # One product for a block: a rank-one update for each weight would read all weights
            # behind it each time.
            ordered[:, :, end:] -= errors @ self.upper[:, start:end, end:]
            squares += np.einsum("goi,goi->go", errors, errors)
        result = np.empty_like(rounded)
        np.put_along_axis(result, self.order[:, None, :], rounded, axis=2)
        return result, squares


def round_in_turn(weight: Doubles, moments: Doubles, levels: Levels, damping: float) -> Doubles:
    """Round weights one after another, each passing its error on to those that follow.

    Args:
        weight: ``[groups, outputs, inputs]``.
        moments: Second moments of the inputs of each group, ``[groups, inputs, inputs]``,
            symmetric, without negative eigenvalues.
        levels: What the weights are rounded to.
        damping: What is added to the diagonal, as a share of its mean: moments of few samples are
            singular, and errors that they seem to make good would be passed on without measure.

    Returns:
        Levels, of the shape of the weights. Inputs that are always zero are rounded to the nearest.
    """
    return Turns.from_moments(moments, damping).round(weight, levels)[0]


def _reorder(moments: Doubles, order: npt.NDArray[np.intp]) -> Doubles:
    rows = np.take_along_axis(moments, order[:, :, None], axis=1)
    return np.asarray(np.take_along_axis(rows, order[:, None, :], axis=2))


def _factor(moments: Doubles, damping: float) -> Doubles:
    """Return the upper triangles of which the transposes times themselves are the inverses."""
    count = moments.shape[1]
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    mean = diagonal.mean(axis=1, keepdims=True)
    # An input that is always 0 gets the mean moment as if it were independent of the others: it
    # takes no errors and passes none on, and the matrix has a factorization.
    added = np.where(mean > 0, damping * mean, 1.0) + np.where(diagonal > 0, 0.0, mean)
    damped = moments + added[:, :, None] * np.eye(count)
    # inv(H) = inv(L).T inv(L) for H = L L.T; the factor wanted is upper triangular, so the order is
    # turned around: with H turned = L L.T, inv(L) turned is an upper triangle U, inv(H) = U.T U.
    lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
    return np.ascontiguousarray(np.linalg.inv(lower)[:, ::-1, ::-1])


def descend(rounded: Doubles, wanted: Doubles, moments: Doubles, levels: Levels) -> Doubles:
    """Move each weight to the level that is best while the others stay, as long as that helps.

    What becomes smaller is ``r H r - 2 r a`` for the rounded weights ``r`` of each output: the mean
    squared difference to the wanted result, but for a constant.

    Source: [quantease], which descends by coordinates in the same way.

    Args:
        rounded: Levels to start from, ``[groups, outputs, inputs]``.
        wanted: ``a``, the mean of the wanted result times the inputs, of that shape.
        moments: ``H``, second moments of the inputs, ``[groups, inputs, inputs]``, with a positive
            diagonal.
        levels: What the weights are rounded to.

    Returns:
        Levels, of the shape of the weights.
    """
    # A copy: the loop moves weights in place, and the caller keeps those that it began with.
    found = np.array(rounded, np.float64, order="C")
    moments = np.ascontiguousarray(moments)
    rest = wanted - found @ moments
    row_parameters = levels.row_parameters(*found.shape[:2])
    bounds = float(levels.low), float(levels.high)
    blocks = np.tile(levels.blocks_of(found.shape[2]), (len(found), 1))
    for _ in range(_SWEEPS):
        moved = 0
        for start in range(0, found.shape[2], _BLOCK):
            end = min(start + _BLOCK, found.shape[2])
            block, before = rest[:, :, start:end].copy(), found[:, :, start:end].copy()
            here = descend_columns(
                found, block, moments, *row_parameters, blocks, *bounds, start, end
            )
            if here:
                moved += here
                rest -= (found[:, :, start:end] - before) @ moments[:, start:end]
        if not moved:
            break
    return found


def squared_error(
    weight: Doubles, rounded: Doubles, wanted: Doubles, cross: Doubles, moments: Doubles
) -> Doubles:
    """Return the mean squared difference of ``weight x`` and ``rounded z`` of each output.

    Args:
        weight: ``[groups, outputs, inputs]``.
        rounded: The same shape.
        wanted: ``mean(x x)``, ``[groups, inputs, inputs]``.
        cross: ``mean(x z)``.
        moments: ``mean(z z)``.

    Returns:
        ``[groups, outputs]``, not negative.
    """
    own = np.einsum("goi,goi->go", weight @ wanted, weight)
    both = np.einsum("goi,goi->go", weight @ cross, rounded)
    other = np.einsum("goi,goi->go", rounded @ moments, rounded)
    return np.asarray(np.maximum(own - 2 * both + other, 0.0))


_Read = types.Array(types.float64, 3, "C", readonly=True)
_Block = types.Array(types.int64, 2, "C", readonly=True)
_Write = types.Array(types.float64, 3, "C")
_Turn = types.void(
    _Write,
    _Write,
    _Write,
    _Read,
    _Read,
    _Read,
    _Block,
    types.float64,
    types.float64,
    types.int64,
    types.int64,
)
_Descend = types.int64(
    _Write,
    _Write,
    _Read,
    _Read,
    _Read,
    _Block,
    types.float64,
    types.float64,
    types.int64,
    types.int64,
)


@njit(cache=CACHED, nogil=True, error_model="numpy", inline="always")
def _nearest(value: Any, scale: Any, zero: Any, low: Any, high: Any) -> Any:
    code = np.rint(value / scale) + zero
    code = low if code < low else code
    code = high if code > high else code
    return (code - zero) * scale


@njit(_Turn, cache=CACHED, nogil=True, error_model="numpy")
def round_columns(
    weight: Any,
    rounded: Any,
    errors: Any,
    upper: Any,
    scale: Any,
    zero: Any,
    blocks: Any,
    low: Any,
    high: Any,
    start: Any,
    end: Any,
) -> None:
    """Round columns ``start`` to ``end`` one after another, in place.

    Each passes its error on to those behind it up to ``end``; ``errors``, ``[groups, outputs,
    columns]``, takes what is to be passed on to the others.
    """
    for group in range(weight.shape[0]):
        for row in range(weight.shape[1]):
            for column in range(start, end):
                block = blocks[group, column]
                step, offset = scale[group, row, block], zero[group, row, block]
                now = weight[group, row, column]
                near = _nearest(now, step, offset, low, high)
                rounded[group, row, column] = near
                # Divided by the diagonal once: row `column` of the triangle times it is what each
                # other weight gets, and its square is what the rounding costs.
                error = (now - near) / upper[group, column, column]
                errors[group, row, column - start] = error
                for other in range(column + 1, end):
                    weight[group, row, other] -= error * upper[group, column, other]


@njit(_Descend, cache=CACHED, nogil=True, error_model="numpy")
def descend_columns(
    found: Any,
    rest: Any,
    moments: Any,
    scale: Any,
    zero: Any,
    blocks: Any,
    low: Any,
    high: Any,
    start: Any,
    end: Any,
) -> int:
    """Move columns ``start`` to ``end`` to their best levels, in place; count those that moved.

    ``rest``, ``[groups, outputs, columns]``, is what is missing of the wanted products there; it
    follows.
    """
    moved = 0
    for group in range(found.shape[0]):
        for row in range(found.shape[1]):
            for column in range(start, end):
                block = blocks[group, column]
                step, offset = scale[group, row, block], zero[group, row, block]
                now = found[group, row, column]
                # The minimum of the quadratic along this coordinate; the best level is the one
                # nearest to it.
                aim = now + rest[group, row, column - start] / moments[group, column, column]
                change = _nearest(aim, step, offset, low, high) - now
                if change != 0:
                    moved += 1
                    found[group, row, column] = now + change
                    for other in range(start, end):
                        rest[group, row, other - start] -= change * moments[group, column, other]
    return moved
