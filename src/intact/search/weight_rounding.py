"""Rounds weights of few bits for a search, before its first trial.

Each weight is rounded once for each of its widths that are few, on the inputs that its layer gets
where everything has the widest integers: what the layers before it lose in a candidate is not made
good. All trials then share these integers. Where a search is resumed they are read from the file
beside its log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from intact.data.progress import Progress, begin
from intact.data.stream import Samples
from intact.errors import ConfigError
from intact.improve.presets import FEW_BITS, Preset, Weakness, passes_of
from intact.improve.refine.moments import LastMoments
from intact.improve.refine.rounding import (
    MOST_SAMPLES,
    OBSERVER,
    RoundingChoice,
    RoundingSite,
    with_table,
)
from intact.improve.refine.tied import tables_of_layers
from intact.improve.refine.walk import Array, Walk
from intact.plan import QuantizedGraph
from intact.program.lower.chains import Points
from intact.search.plans import Planner
from intact.search.roundings import Place, RoundedWeight, Roundings, beside
from intact.search.space import FLOAT, Candidate, GroupKind, Space
from intact.targets import Target


@dataclass(frozen=True)
class Rounding:
    """The rounding of a search, done.

    Attributes:
        roundings: The weights that it is better for.
        tried: Number of layers and widths at which it was tried.
        seconds: Time that it took.
        was_read: The roundings are those of the search that is resumed.
    """

    roundings: Roundings = field(default_factory=Roundings)
    tried: int = 0
    seconds: float = 0.0
    was_read: bool = False

    @property
    def remark(self) -> str:
        """What the user should know of it; "" for nothing."""
        found = len(self.roundings.found)
        if self.was_read:
            return f"refined rounding of {found} weight(s) is that of the search before"
        if not self.tried:
            return ""
        return (
            f"weights of {FEW_BITS} bits or fewer have refined rounding: it is better at {found} "
            f"of {self.tried} layers and widths, and took {self.seconds:.1f} s; --preset fast "
            "leaves it out"
        )


def is_rounded(target: Target, preset: str | None) -> bool:
    """Tell whether a preset rounds weights of few bits: that which is named, else the target's."""
    level = Preset(preset or target.calibration.preset)
    return "rounding" in passes_of(level, [Weakness.FEW_WEIGHT_BITS])


def rounding_of(
    planner: Planner,
    space: Space,
    samples: Samples,
    *,
    log: Path | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Rounding:
    """Round the weights of a search at their few widths.

    Args:
        planner: Without rounded weights.
        space: The choices that are left; a part of the planner's.
        samples: What the float model was observed on.
        log: The log of the search that is resumed; None for a new one.
        threads: Threads inside one operator; 0 lets the runtime choose.
        progress: Takes nodes done.
    """
    # A plan for each width and not for each layer and width: a walk runs all of them at once.
    uniform = dict(_uniform_candidates(space))
    if not uniform:
        return Rounding()
    # The integers must be those that the logged trials had, whatever this version would find.
    if log is not None and beside(log).is_file():
        return Rounding(Roundings.load(beside(log)), was_read=True)
    begin(progress, "rounding weights")
    start = time.perf_counter()
    plans = {bits: planner.plan(candidate) for bits, candidate in uniform.items()}
    widest = planner.plan(space.default)
    # Threads of NumPy's own would change the order of sums.
    with threadpool_limits(1, "blas"):
        walk = Walk(widest, replace(samples, progress=progress), most=MOST_SAMPLES, threads=threads)
        tried = dict(_round_all(walk, plans, samples.first(MOST_SAMPLES)))
    found = {place: each for place, each in tried.items() if each is not None}
    return Rounding(Roundings(found, OBSERVER), len(tried), time.perf_counter() - start)


def _uniform_candidates(space: Space) -> Iterator[tuple[int, Candidate]]:
    """Yield each of the few widths, with a candidate in which all weights that can have it do."""
    weights = [group for group in space.groups if group.kind is GroupKind.WEIGHT]
    few = {bits for group in weights for bits in group.choices if bits <= FEW_BITS}
    # Sorted, because the order goes into the hash of what is found.
    for bits in sorted(few - {FLOAT}, reverse=True):
        yield (
            bits,
            tuple(
                bits if group.kind is GroupKind.WEIGHT and bits in group.choices else group.default
                for group in space.groups
            ),
        )


def _round_all(
    walk: Walk, plans: Mapping[int, QuantizedGraph], samples: Samples
) -> Iterator[tuple[Place, RoundedWeight | None]]:
    """Yield each weight at each of its few widths; None where rounding to nearest is better.

    Moments of a layer's input are counted once for all its widths, and then dropped.
    """
    points, last = {bits: Points.of(plan) for bits, plan in plans.items()}, LastMoments()
    tied = {bits: tables_of_layers(plan, points[bits]) for bits, plan in plans.items()}
    for stop in walk:
        for bits, plan in plans.items():
            site = RoundingSite.of(plan, points[bits], stop.node)
            # A weight that cannot have the width has its own in this plan; it is met again at its
            # width.
            if site is None or site.weight.config.bits != bits:
                continue
            choice, found = site.choose(site.moments(walk.points, stop, last)), None
            table = tied[bits].get(stop.node)
            if choice is not None and choice.is_better:
                is_tied = stop.node in tied[bits]
                is_kept = not is_tied or with_table(plan, stop.node, choice, samples)[1]
                found = _as_integers(site, choice) if is_kept else None
            yield Place(site.weight.end, bits), found
            if found is not None and table is not None:
                scale, codes = (np.ascontiguousarray(a.T) for a in (found.scale, found.codes))
                yield Place(table.end, bits), RoundedWeight(scale, codes)


def _as_integers(site: RoundingSite, found: RoundingChoice) -> RoundedWeight | None:
    config = site.weight.config
    try:
        config.set_params(found.scale, config.offset)
    except ConfigError:  # not a scale of this grid
        return None
    weight: Array = found.weight
    codes = config.quantize(weight)
    scale = np.asarray(config.scale, np.float32)
    # All candidates share these arrays; a pass that wrote into one would change the others.
    for array in (codes, scale, found.shift):
        if array is not None:
            array.setflags(write=False)
    return RoundedWeight(scale, codes, found.shift)
