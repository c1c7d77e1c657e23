"""Rounds weights in blocks by second moments; decoders have hundreds of such layers.

What follows from the moments of an input is computed once for all layers that read it. How strongly
the moments are damped is tried on some outputs of a layer: fitted on half of the samples, judged on
the other half. All outputs are then rounded by the moments of all samples.

Source: `intact.numerics.block_rounding`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.calibrate.scales.ranges import stored_scales
from intact.config import TensorQuantConfig
from intact.data.stream import Samples
from intact.improve.layers import Doubles, Layer
from intact.improve.refine.moments import Moments
from intact.numerics.block_rounding import BlockCodes, BlockFit, round_blocks
from intact.numerics.metrics import decibels
from intact.numerics.second_order import Levels, squared_error
from intact.ops import DENSE
from intact.plan import QuantizedGraph
from intact.program.lower.chains import Points
from intact.targets.blocks import Blocks, ScaleType

DAMPINGS = (1e-2, 1e-1, 1.0)
"""What is added to the diagonals of second moments, as shares of their mean."""
ZOOMS = tuple(1 - step / 20 for step in range(11))
"""Factors of the scales that are tried at first; they are fitted to the codes later."""
ENOUGH_ROWS = 8
"""Products that are counted for each input of a layer: with as many, what is fitted to these
samples serves others."""
_FEWEST = 16
"""Samples that are looked at in any case: rows of one are alike."""
_JUDGED = 32
"""Outputs that a strength of damping is judged by, evenly spread."""
_AT_ONCE = 256
"""Outputs that are rounded together: fixed, so that results do not depend on threads."""

Scales = npt.NDArray[np.float32]


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
    _means: dict[bool, tuple[Doubles, Doubles, Doubles]] = field(default_factory=dict)
    _judge: tuple[Doubles, Doubles, Doubles] | None = None

    def prepared(self, damping: float, *, of_all: bool) -> BlockFit | None:
        """Return what layers are rounded by: of the samples to fit, or of all."""
        key = damping, of_all
        if of_all not in self._means:
            seen = self.fit + self.held_out if of_all else self.fit
            self._means[of_all] = seen.means(centred=False)
        if key not in self._fits:
            _, cross, moments = self._means[of_all]
            self._fits[key] = BlockFit.of(cross[0], moments[0], damping)
        return self._fits[key]

    @property
    def judge(self) -> tuple[Doubles, Doubles, Doubles]:
        """Means of the held-out samples: x by x, x by z, z by z."""
        self._judge = self._judge or self.held_out.means(centred=False)
        return self._judge


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
        weight: In float, ``[outputs, inputs]``.
        config: How it is quantized.
        blocks: How the target holds weights in blocks.
        shared: Its input.
    """

    weight: Doubles
    config: TensorQuantConfig
    blocks: Blocks | None
    shared: SharedInput

    @staticmethod
    def of(
        layer: Layer, config: TensorQuantConfig, blocks: Blocks | None, shared: SharedInput
    ) -> BlockTrial:
        """Look at a layer."""
        weight = layer.view(layer.weight)[0, :, :, 0].astype(np.float64)
        return BlockTrial(np.ascontiguousarray(weight), config, blocks, shared)

    def best(self) -> tuple[Scales, Doubles, float, float] | None:
        """Return scale and levels, and the signal to noise on held-out samples.

        Returns:
            The scale as the config has it, levels ``[1, outputs, inputs]``, and the dB with
            rounding to nearest and with these; the scale and levels of rounding to nearest where
            nothing was better; None where nothing could be tried.
        """
        levels = self._levels(np.asarray(self.config.scale, np.float32))
        some = np.linspace(0, len(self.weight) - 1, min(_JUDGED, len(self.weight)))
        judged = np.unique(some.astype(np.intp))
        weight, few = self.weight[judged], _rows(levels, judged)
        before = self._decibels(weight, few.nearest(weight))
        tried = []
        for damping in DAMPINGS:
            fit = self.shared.prepared(damping, of_all=False)
            if fit is not None:
                found = round_blocks(weight, few, fit, ZOOMS, self._stored)
                # Of equal ones the least damping, hence the negative number.
                tried.append((self._decibels(weight, found.rounded), -damping, fit))
        if not tried:
            return None
        after, damping, _ = max(tried, key=lambda each: each[:2])
        fit = self.shared.prepared(-damping, of_all=True)
        if fit is None or not after > before:
            nearest = np.asarray(self.config.scale, np.float32)
            return nearest, levels.nearest(self.weight)[None], before, min(after, before)
        found = self._rounded(levels, fit)
        return self._of_blocks(found.scale), found.rounded[None], before, after

    def _rounded(self, levels: Levels, fit: BlockFit) -> BlockCodes:
        """Round all outputs, some at a time, on all cores."""
        starts = range(0, len(self.weight), _AT_ONCE)
        parts = [np.arange(at, min(at + _AT_ONCE, len(self.weight))) for at in starts]
        with ThreadPoolExecutor(min(os.cpu_count() or 1, len(parts))) as pool:
            jobs = [
                pool.submit(
                    round_blocks,
                    self.weight[part],
                    _rows(levels, part),
                    fit,
                    ZOOMS,
                    self._stored,
                )
                for part in parts
            ]
            # In the order of the outputs, whichever thread is done first.
            found = [job.result() for job in jobs]
        return BlockCodes(
            *(
                np.concatenate([getattr(each, name) for each in found])
                for name in ("rounded", "scale", "gain")
            )
        )

    def _decibels(self, weight: Doubles, rounded: Doubles) -> float:
        wanted, cross, moments = self.shared.judge
        power = float(np.einsum("oi,oi->", weight @ wanted[0], weight))
        lost = squared_error(weight[None], rounded[None], wanted, cross, moments)
        return decibels(power, float(lost.sum()))

    def _stored(self, scale: Doubles) -> Doubles:
        kind = ScaleType.FLOAT32 if self.blocks is None else self.blocks.scale_type
        return stored_scales(scale, kind).astype(np.float64)

    def _levels(self, scale: Scales) -> Levels:
        config, params = self.config, self.config.params
        zero = np.zeros(scale.shape) if params is None else params.zero_point
        scales, zeros = (
            np.ascontiguousarray(np.moveaxis(each, config.grid.axis or 0, -1), np.float64)
            for each in (scale, np.broadcast_to(zero, scale.shape))
        )
        return Levels(scales, zeros, config.quant_min, config.quant_max, config.grid.block)

    def _of_blocks(self, scale: npt.NDArray[Any]) -> Scales:
        """Bring ``[outputs, blocks]`` into the shape of the scales of blocks."""
        moved = np.moveaxis(scale, -1, self.config.grid.axis or 0)
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


def _rows(levels: Levels, rows: npt.NDArray[np.intp]) -> Levels:
    return Levels(
        levels.scale[rows], levels.zero_point[rows], levels.low, levels.high, levels.block
    )
