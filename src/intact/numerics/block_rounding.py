"""Rounds weights in blocks by the second moments of their inputs: codes and scales.

A layer computes ``y = w x`` where the quantized model computes ``r z``, on inputs that the layers
before have changed. Over samples that is off, but for a constant, by ``e H e + 2 e C`` for
``e = w - r``, with ``H = mean(z z)`` and ``C = w mean((x - z) z)``. All that follows looks for the
least of it: the scale of each block at first alone, by the moments of its own inputs; then
each weight in turn ([gptq], `intact.numerics.second_order`); then each weight and each scale while
all others stay ([quantease], algorithm 1, here with scales).

Outputs do not depend on each other. All arrays are float64: weights ``[outputs, inputs]``, scales
and zero points ``[outputs, blocks]``, moments ``[inputs, inputs]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from intact.numerics.second_order import Doubles, Levels, Turns, descend_columns

Singles = npt.NDArray[np.float32]
Stored = Callable[[Doubles], Doubles]
"""Makes scales those that a file holds."""

_COLUMNS = 64
"""Weights that move before the others hear of it, in one product; at least a block."""
_SWEEPS = 20
"""Most passes over the weights; few move after the first ones."""
_LITTLE = 0.05
"""A pass that gains less than this share of what all have gained is the last."""


@dataclass(frozen=True)
class BlockFit:
    """What layers that read one input are rounded by.

    Attributes:
        moments: ``H`` and a ridge; see `of`.
        drift: ``mean((x - z) z)``, ``[inputs, inputs]``: what the quantized model does to the
            input.
        turns: The order of the inputs, and what each passes on.
        lower: Cholesky factor of the moments in the opposite order.
    """

    moments: Doubles
    drift: Doubles
    turns: Turns
    lower: Doubles

    @staticmethod
    def of(drift: Doubles, moments: Doubles, damping: float) -> BlockFit | None:
        """Prepare it; None where inputs vary so little that there is no inverse.

        Args:
            drift: ``mean((x - z) z)``.
            moments: ``mean(z z)``, symmetric.
            damping: What is added to the diagonal, as a share of its mean: moments of few samples
                are nearly singular, and errors that they seem to make good would be passed on
                without measure.
        """
        count = len(moments)
        mean = np.trace(moments) / max(count, 1)
        # Inputs that are always 0 would leave a matrix without an inverse.
        damped = moments + (damping * mean if mean > 0 else 1.0) * np.eye(count)
        order = np.argsort(-np.diagonal(damped), kind="stable")
        turned = order[::-1]
        lower, failed = lapack.dpotrf(damped[np.ix_(turned, turned)], lower=1, clean=1)
        inverse, singular = lapack.dtrtri(lower, lower=1)
        if failed or singular:
            return None
        # inv(H) = inv(L).T inv(L) for the turned H = L L.T; turned back that is upper triangular.
        upper = np.ascontiguousarray(inverse[::-1, ::-1])
        return BlockFit(damped, drift, Turns(order[None], upper[None]), lower)

    def aims(self, weight: Doubles, pull: Doubles) -> Doubles:
        """Return the weights that are best in real numbers on the quantized inputs.

        Args:
            weight: In float.
            pull: It times the drift.
        """
        turned = self.turns.order[0][::-1]
        moved, _ = lapack.dpotrs(self.lower, pull[:, turned].T, lower=1)
        found = weight.copy()
        found[:, turned] += moved.T
        return found


@dataclass(frozen=True)
class BlockCodes:
    """Weights in codes.

    Attributes:
        rounded: What their codes stand for.
        scale: Of each block.
        gain: By how much less they are off than those they were made of, ``[outputs]``; not
            negative.
    """

    rounded: Doubles
    scale: Doubles
    gain: Doubles


def round_blocks(
    weight: Doubles, levels: Levels, fit: BlockFit, zooms: Sequence[float], stored: Stored
) -> BlockCodes:
    """Round weights so that results change least.

    Args:
        weight: In float.
        levels: With a scale for each block, as rounding to the nearest has them.
        fit: What the layer is rounded by.
        zooms: Factors of the scales that are tried.
        stored: Makes scales those that a file holds.

    Returns:
        Of each output what is less off by the moments of the fit: this, or the nearest.
    """
    pull = weight @ fit.drift
    nearest = levels.nearest(weight)
    before = _objective(weight, nearest, pull, fit.moments)
    scale = zoomed_scales(weight, levels, fit.moments, zooms, stored)
    own = _with_scale(levels, scale)
    turned, _ = fit.turns.round(fit.aims(weight, pull)[None], _in_group(own))
    rounded, scale, after = _descended(weight, turned[0], pull, own, fit.moments, stored)
    is_better = (after < before)[:, None]
    return BlockCodes(
        np.where(is_better, rounded, nearest),
        np.where(is_better, scale, levels.scale),
        np.maximum(before - after, 0.0),
    )


def zoomed_scales(
    weight: Doubles, levels: Levels, moments: Doubles, zooms: Sequence[float], stored: Stored
) -> Doubles:
    """Choose for each block the multiple of its scale by which rounding to nearest loses least.

    What is lost is counted within the block, by the moments of its own inputs: errors of other
    blocks are as likely of one sign as of the other.
    """
    size, count = levels.block or weight.shape[1], weight.shape[1]
    zeros = np.broadcast_to(levels.zero_point, levels.scale.shape)
    found = np.empty_like(levels.scale)
    rows = np.arange(len(weight))
    for block, start in enumerate(range(0, count, size)):
        part = slice(start, min(start + size, count))
        own = levels.scale[:, block]
        tried = np.stack([stored(own * zoom) for zoom in zooms], axis=1)
        # In single precision, a block at a time: what is compared stays in the caches.
        steps, zero = tried[:, :, None].astype(np.float32), zeros[:, block, None, None]
        values = weight[:, None, part].astype(np.float32)
        codes = np.rint(values / steps)
        codes = np.clip(codes, levels.low - zero, levels.high - zero).astype(np.float32)
        lost = codes * steps - values
        within = np.einsum("ozi,ozi->oz", lost @ moments[part, part].astype(np.float32), lost)
        found[:, block] = tried[rows, within.argmin(axis=1)]
    return found


def _objective(weight: Doubles, rounded: Doubles, pull: Doubles, moments: Doubles) -> Doubles:
    error = weight - rounded
    off: Doubles = np.einsum("oi,oi->o", error @ moments + 2 * pull, error)
    return off


def _descended(
    weight: Doubles,
    rounded: Doubles,
    pull: Doubles,
    levels: Levels,
    moments: Doubles,
    stored: Stored,
) -> tuple[Doubles, Doubles, Doubles]:
    """Move each weight and scale to what is best while the others stay, as long as that helps.

    Returns:
        Levels, the scales, and how far each output is off.
    """
    found, scale = rounded.copy(), levels.scale.copy()
    # Single precision tells well enough which way to go, and takes half of the time.
    single = moments.astype(np.float32)
    error = weight - found
    rest = error.astype(np.float32) @ single + pull.astype(np.float32)
    off = np.einsum("oi,oi->o", error, rest + pull)
    first, moving = float(off.sum()), np.arange(len(weight))
    for _ in range(_SWEEPS):
        state = _Moving(found[moving], scale[moving], rest[moving])
        rows = _with_scale(levels, state.scale, moving)
        moved = state.swept(rows, moments, single, stored)
        found[moving], scale[moving], rest[moving] = state.found, state.scale, state.rest
        last = float(off.sum())
        off[moving] = np.einsum("oi,oi->o", weight[moving] - state.found, state.rest + pull[moving])
        # Of a row that did not move nothing will.
        moving = moving[moved]
        now = float(off.sum())
        if not len(moving) or last - now <= _LITTLE * (first - now):
            break
    return found, scale, _objective(weight, found, pull, moments)


@dataclass
class _Moving:
    """The outputs that still move.

    Attributes:
        found: What their codes stand for.
        scale: Of each block.
        rest: What is missing of the wanted products, for each input.
    """

    found: Doubles
    scale: Doubles
    rest: Singles

    def swept(
        self, levels: Levels, moments: Doubles, single: Singles, stored: Stored
    ) -> npt.NDArray[np.bool_]:
        """Move weights and scales once, in place; tell of which outputs some did."""
        count, size = self.found.shape[1], levels.block or self.found.shape[1]
        moved = np.zeros(len(self.found), np.bool_)
        columns = max(_COLUMNS // size, 1) * size
        for start in range(0, count, columns):
            end = min(start + columns, count)
            before = self.found[:, start:end].copy()
            here = self._move_weights(levels, moments, start, end)
            for at in range(start, end, size):
                stop = min(at + size, end)
                self._move_scale(at // size, slice(at, stop), here, start, moments, stored)
            change = self.found[:, start:end] - before
            self.rest -= change.astype(np.float32) @ single[start:end]
            moved |= change.any(axis=1)
        return moved

    def _move_weights(self, levels: Levels, moments: Doubles, start: int, end: int) -> Doubles:
        """Move some weights; return what is missing of their products."""
        here = self.rest[None, :, start:end].astype(np.float64)
        of_rows = levels.row_parameters(1, len(self.found))
        blocks = levels.blocks_of(self.found.shape[1])[None]
        bounds = float(levels.low), float(levels.high)
        found = self.found[None]
        descend_columns(
            found, here, moments[None], self.scale[None], of_rows[1], blocks, *bounds, start, end
        )
        missing: Doubles = here[0]
        return missing

    def _move_scale(
        self,
        block: int,
        part: slice,
        here: Doubles,
        start: int,
        moments: Doubles,
        stored: Stored,
    ) -> None:
        """Give a block the scale that is best for its codes, if a file can hold a better one."""
        own, scale = self.found[:, part], self.scale[:, block]
        missing = np.einsum("oi,oi->o", own, here[:, part.start - start : part.stop - start])
        power = np.einsum("oi,oi->o", own @ moments[part, part], own)
        wanted = 1 + np.divide(missing, power, out=np.zeros_like(missing), where=power > 0)
        # Not beyond what a search of scales would try, nor to the other sign.
        wanted = stored(scale * np.clip(wanted, 0.5, 2.0))
        more = wanted / scale - 1
        is_better = more * more * power < 2 * more * missing
        more = np.where(is_better, more, 0.0)[:, None]
        codes = np.rint(own / scale[:, None])
        self.scale[:, block] = np.where(is_better, wanted, scale)
        changed = np.where(is_better[:, None], codes * wanted[:, None] - own, 0.0)
        self.found[:, part] += changed
        here -= changed @ moments[part, start : start + here.shape[1]]


def _with_scale(levels: Levels, scale: Doubles, rows: npt.NDArray[np.intp] | None = None) -> Levels:
    zero = np.broadcast_to(levels.zero_point, levels.scale.shape)
    zero = zero if rows is None else zero[rows]
    return Levels(scale, zero, levels.low, levels.high, levels.block)


def _in_group(levels: Levels) -> Levels:
    """Return the levels of ``[1, outputs, inputs]``."""
    zero = np.broadcast_to(levels.zero_point, levels.scale.shape)
    return Levels(levels.scale[None], zero[None], levels.low, levels.high, levels.block)
