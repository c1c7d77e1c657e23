"""Rounds weights in blocks by second moments; decoders have hundreds of such layers.

What follows from the moments of an input is computed once for all layers that read it. How strongly
the moments are damped is tried on some outputs of a layer: fitted on half of the samples, judged on
the other half. All outputs are then rounded by the moments of all samples.

Source: `intact.numerics.block_rounding`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.calibrate.scales.ranges import stored_scales
from intact.config import TensorQuantConfig
from intact.data.stream import Samples
from intact.improve.layers import Doubles, Layer
from intact.improve.refine.moments import Moments
from intact.numerics.block_rounding import BlockFit, Singles, Stored, round_blocks
from intact.numerics.metrics import decibels
from intact.numerics.second_order import Levels
from intact.ops import DENSE
from intact.plan import QuantizedGraph
from intact.program.lower.chains import Points
from intact.targets.blocks import Blocks, ScaleType

DAMPINGS = (1e-2, 1e-1, 0.3, 1.0, 3.0)
"""What is added to the diagonals of second moments, as shares of their mean. Inputs of few samples
take the strong ones: of sentences of an encoder there are fewer than inputs."""
ZOOMS = tuple(1 - step / 20 for step in range(11))
"""Factors of the scales that are tried at first; they are fitted to the codes later."""
ENOUGH_ROWS = 4
"""Products that are counted for each input of a layer: with as many, what is fitted to these
samples serves others. Twice as many gained 0.1 dB on other text, and nothing in the divergence of
the next token (SmolLM2's first three layers and its table)."""
_FEWEST = 16
"""Samples that are looked at in any case: rows of one are alike."""
_JUDGED = 32
"""Outputs that a strength of damping is judged by, evenly spread."""
_AT_ONCE = 96
"""Outputs that are rounded together: fixed, so that results do not depend on threads."""

Scales: TypeAlias = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


@dataclass
class SharedInput:
    """The input that was looked at last, and what it was found to be good for.

    Attributes:
        fit: Moments of the samples that decide what is tried.
        held_out: Moments of the others.
    """

    fit: Moments
    held_out: Moments
    _fits: dict[tuple[float, bool], BlockFit | None] = field(default_factory=dict)
    _means: dict[bool, tuple[Doubles, Doubles]] = field(default_factory=dict)

    def prepared(self, damping: float, *, of_all: bool) -> BlockFit | None:
        """Return what layers are rounded by: of the samples to fit, or of all."""
        (found,) = self.all_prepared((damping,), of_all=of_all)
        return found

    def all_prepared(
        self, dampings: Sequence[float], *, of_all: bool = False
    ) -> list[BlockFit | None]:
        """Return it for several strengths of damping, which are prepared side by side."""
        missing = [each for each in dampings if (each, of_all) not in self._fits]
        if missing:
            if of_all not in self._means:
                seen = self.fit + self.held_out if of_all else self.fit
                cross, moments = seen.of_quantized()
                self._means[of_all] = cross[0] - moments[0], moments[0]
            # What is best for some samples is more than enough for all: as the mean of an error
            # squared, a ridge that keeps out noise falls with how much was counted.
            share = self.fit.count / (self.fit.count + self.held_out.count) if of_all else 1.0
            make = partial(BlockFit.of, *self._means[of_all])
            with ThreadPoolExecutor(len(missing)) as pool:
                found = pool.map(make, [each * share for each in missing])
                self._fits |= zip(((each, of_all) for each in missing), found, strict=True)
        return [self._fits[each, of_all] for each in dampings]


@dataclass
class LastInput:
    """Layers that read one tensor follow one another: queries, keys and values."""

    _last: SharedInput | None = None

    def of(self, fit: Moments, held_out: Moments) -> SharedInput:
        """Return what is known of an input."""
        if self._last is None or self._last.fit is not fit:
            self._last = SharedInput(fit, held_out)
        return self._last


@dataclass(frozen=True)
class BlockTrial:
    """A layer whose weight is in blocks.

    Attributes:
        weight: In float, ``[outputs, inputs]``, in single precision: a table is large.
        config: How it is quantized.
        blocks: How the target holds weights in blocks.
        shared: Its input.
        judges: Batches of its input that nothing is fitted to, in float and quantized,
            ``[..., inputs]``.
    """

    weight: Singles
    config: TensorQuantConfig
    blocks: Blocks | None
    shared: SharedInput
    judges: Iterable[tuple[Array, Array]]

    @staticmethod
    def of(
        layer: Layer,
        config: TensorQuantConfig,
        blocks: Blocks | None,
        shared: SharedInput,
        judges: Iterable[tuple[Array, Array]],
    ) -> BlockTrial:
        """Look at a layer."""
        weight = layer.view(layer.weight)[0, :, :, 0]
        return BlockTrial(np.ascontiguousarray(weight, np.float32), config, blocks, shared, judges)

    def best(self) -> tuple[Scales, Singles, float, float] | None:
        """Return scale and levels, and the signal to noise on held-out samples.

        Returns:
            The scale as the config has it, levels ``[1, outputs, inputs]``, and the dB with
            rounding to nearest and with these; the scale as it is, and weights in float, where
            nothing was better; None where nothing could be tried.
        """
        levels = self._levels(np.asarray(self.config.scale, np.float32))
        some = np.linspace(0, len(self.weight) - 1, min(_JUDGED, len(self.weight)))
        judged = np.unique(some.astype(np.intp))
        weight, few = self.weight[judged].astype(np.float64), _rows(levels, judged)
        fits = zip(DAMPINGS, self.shared.all_prepared(DAMPINGS), strict=True)
        known = {damping: fit for damping, fit in fits if fit is not None}
        if not known:
            return None
        work = partial(self._tried, weight, few)
        with ThreadPoolExecutor(len(known)) as pool:
            tried = list(pool.map(work, known.values()))
        before, *after = self._decibels(weight, [few.nearest(weight), *tried])
        # Of equal ones the least damping, which comes first.
        best = max(range(len(after)), key=lambda at: after[at])
        fit = self.shared.prepared(list(known)[best], of_all=True)
        if fit is None or not after[best] > before:
            nearest = np.asarray(self.config.scale, np.float32)
            return nearest, self.weight[None], before, min(after[best], before)
        rounded, scale = self._rounded(levels, fit)
        return self._of_blocks(scale), rounded[None], before, after[best]

    def _tried(self, weight: Doubles, levels: Levels, fit: BlockFit) -> Doubles:
        return round_blocks(weight, levels, fit, ZOOMS, self._stored).rounded

    def _rounded(self, levels: Levels, fit: BlockFit) -> tuple[Singles, Doubles]:
        """Round all outputs, some at a time, on all cores; return levels and scales."""
        rounded, scale = np.empty_like(self.weight), np.empty_like(levels.scale)

        def work(start: int) -> None:
            part = slice(start, start + _AT_ONCE)
            weight = self.weight[part].astype(np.float64)
            found = round_blocks(weight, _rows(levels, part), fit, ZOOMS, self._stored)
            rounded[part], scale[part] = found.rounded, found.scale

        starts = range(0, len(self.weight), _AT_ONCE)
        with ThreadPoolExecutor(min(os.cpu_count() or 1, len(starts))) as pool:
            list(pool.map(work, starts))  # raises what one of them does
        return rounded, scale

    def _decibels(self, weight: Doubles, tried: Sequence[Doubles]) -> list[float]:
        """Return the signal to noise of some outputs on the judges, for each way to round them."""
        wanted, *others = (np.asarray(each.T, np.float32) for each in (weight, *tried))
        power, lost = 0.0, np.zeros(len(others))
        for in_float, quantized in self.judges:
            signal = in_float.reshape(-1, len(wanted)) @ wanted
            power += float(np.square(signal).sum(dtype=np.float64))
            for at, other in enumerate(others):
                noise = quantized.reshape(-1, len(wanted)) @ other - signal
                lost[at] += float(np.square(noise).sum(dtype=np.float64))
        return [decibels(power, float(each)) for each in lost]

    def _stored(self, scale: Doubles) -> Doubles:
        return _stored(self.blocks, scale)

    def _levels(self, scale: Scales) -> Levels:
        return _levels(self.config, scale)

    def _of_blocks(self, scale: npt.NDArray[Any]) -> Scales:
        return _of_blocks(self.config, scale)


def table_scales(
    table: Singles, config: TensorQuantConfig, blocks: Blocks | None
) -> tuple[Scales, float, float]:
    """Choose the scales of what is looked up: each number is a result, none better than another.

    Args:
        table: In float, of two axes.
        config: How it is quantized.
        blocks: How the target holds weights in blocks.

    Returns:
        The scale as the config has it, and the signal to noise of the numbers with the scale that
        it had and with this, dB; the codes are the nearest.

    Raises:
        ValueError: The table is not in blocks.
    """
    axis, size = config.grid.axis or 0, config.grid.block or 1
    levels = _levels(config, np.asarray(config.scale, np.float32))
    rows = np.moveaxis(table, axis, -1)
    # Each block is an output of its own, whose inputs have the same power.
    fit = BlockFit.of(np.zeros((size, size)), np.eye(size), 0.0)
    if fit is None:
        raise ValueError("the table is not in blocks")
    scale = np.empty_like(levels.scale)
    power = before = after = 0.0
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        own, few = rows[part].astype(np.float64), _rows(levels, part)
        scale[part] = _of_each_block(own, few, fit, partial(_stored, blocks))
        found = Levels(scale[part], few.zero_point, few.low, few.high, few.block)
        power += float(np.square(own).sum())
        before += float(np.square(own - few.nearest(own)).sum())
        after += float(np.square(own - found.nearest(own)).sum())
    return _of_blocks(config, scale), decibels(power, before), decibels(power, after)


def _of_each_block(rows: Doubles, levels: Levels, fit: BlockFit, stored: Stored) -> Doubles:
    """Return the scales of least error, ``[outputs, blocks]``."""
    size, count = len(fit.moments), rows.shape[1]
    padded = np.pad(rows, ((0, 0), (0, -count % size)))
    zero = np.broadcast_to(levels.zero_point, levels.scale.shape)
    flat = Levels(levels.scale.reshape(-1, 1), zero.reshape(-1, 1), levels.low, levels.high, size)
    found = round_blocks(padded.reshape(-1, size), flat, fit, ZOOMS, stored)
    return found.scale.reshape(levels.scale.shape)


def _stored(blocks: Blocks | None, scale: Doubles) -> Doubles:
    """Return scales as a file holds them."""
    kind = ScaleType.FLOAT32 if blocks is None else blocks.scale_type
    return stored_scales(scale, kind).astype(np.float64)


def _levels(config: TensorQuantConfig, scale: Scales) -> Levels:
    """Return the levels of ``[outputs, inputs]``, given scales as a config has them."""
    params = config.params
    zero = np.zeros(scale.shape) if params is None else params.zero_point
    scales, zeros = (
        np.ascontiguousarray(np.moveaxis(each, config.grid.axis or 0, -1), np.float64)
        for each in (scale, np.broadcast_to(zero, scale.shape))
    )
    return Levels(scales, zeros, config.quant_min, config.quant_max, config.grid.block)


def _of_blocks(config: TensorQuantConfig, scale: npt.NDArray[Any]) -> Scales:
    """Bring ``[outputs, blocks]`` into the shape of the scales of blocks."""
    moved = np.moveaxis(scale, -1, config.grid.axis or 0)
    return np.ascontiguousarray(moved, np.float32)


def enough_samples(plan: QuantizedGraph, points: Points, samples: Samples) -> int | None:
    """Count the samples that give each layer enough rows of inputs, where that is known beforehand.

    It is where all weights are in blocks and inputs are ids: each gives a row. Decoders have
    hundreds of windows, and what more of them tell costs more time than it gains.

    Returns:
        The number; None where it is not known.
    """
    weights = [
        point.config
        for (name, _), point in points.at_input.items()
        if point.is_constant and plan.graph.node(name).op_type in DENSE
    ]
    if not weights or any(each.grid.block is None for each in weights):
        return None
    widest = max(
        each.grid.block * np.asarray(each.scale).shape[each.grid.axis or 0]
        for each in weights
        if each.grid.block is not None
    )
    feeds, count = next(samples.first(1).real_batches(samples.batch_size(1)))
    given = [array for array in feeds.values() if array.size]  # caches are empty
    ids = [array.size for array in given if array.dtype.kind in "iu"]
    if not ids or len(ids) < len(given):
        return None
    enough: int = -(-ENOUGH_ROWS * widest * count // max(ids))
    return max(enough, _FEWEST)


def _rows(levels: Levels, rows: npt.NDArray[np.intp] | slice) -> Levels:
    return Levels(
        levels.scale[rows], levels.zero_point[rows], levels.low, levels.high, levels.block
    )
