"""Divides the time for reconstruction between blocks, by counted work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from intact.errors import UsageError
from intact.improve.learn.block_learning import (
    Pace,
    learnable_scales,
)
from intact.improve.learn.blocks import Block, blocks
from intact.improve.learn.slices import Profile, Slices
from intact.improve.learn.streams import Stream, to_device

_FEWEST_STEPS, _FEWEST_SAMPLES = 100, 8
LEAST_WORK = 2e9
"""Multiply-adds of all steps together that any net may take: a few seconds."""
_FEWEST_OF_MANY = 2
"""The fewest samples where the number of weights bounds the work: each has hundreds of places for
each weight."""
_PASSES = 3
"""A step costs a forward pass and about two more backward."""


@dataclass(frozen=True)
class Reconstruction:
    """How blocks are learned.

    Attributes:
        steps: Steps of each block, if there is time.
        batch: Samples of a step.
        work: Multiply-adds of all steps together at most; blocks that cost more than others get
            smaller batches and fewer steps. Counted, not measured: results do not depend on time.
        per_weight: Multiply-adds for each weight that is learned at most, beside `LEAST_WORK`: a
            few weights of large images are known from few of their pixels.
        most: Samples that are read at most.
        drop: Probability with which a quantized element stays in float while learning.
        scales: Whether scales of activations are learned.
        layers: Layers of blocks that are joined of smaller ones.
        largest: Layers of a block between articulation points; one of more is cut at its layers.
        seed: Decides batches and what stays in float.
        device: ``cpu``, ``cuda`` or ``auto``.
        threads: Torch's threads on the CPU, where steps are large enough for several. Results
            depend on it, and therefore not on the machine's.
        folder: Where the state is kept, to go on from after an interruption; None for nowhere.
    """

    steps: int = 1200
    batch: int = 32
    work: float = 2e13
    per_weight: float = 2e7
    most: int = 512
    drop: float = 0.5
    scales: bool = True
    layers: int = 4
    largest: int = 8
    seed: int = 0
    device: str = "cpu"
    threads: int = 2
    folder: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: A number is out of its range.
        """
        for name in ("steps", "batch", "work", "per_weight", "layers", "largest", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}", remedy=f"give {name}=1 or more")
        if not 0 <= self.drop < 1:
            raise UsageError(f"drop={self.drop:g}", remedy="give drop=0 to less than 1")


DEFAULTS = Reconstruction()


@dataclass(frozen=True)
class Work:
    """What is to be done.

    Attributes:
        blocks: The blocks, in order.
        paces: How long each learns.
        by_sample: Keys of tensors whose first axis is that of samples.
        largest_step: Multiply-adds of the dearest step.
    """

    blocks: tuple[Block, ...]
    paces: tuple[Pace, ...]
    by_sample: frozenset[str]
    largest_step: float

    @staticmethod
    def of(slices: Slices, stream: Stream, layers: frozenset[str], options: Reconstruction) -> Work:
        """Cut a plan into blocks, and divide the work by what each costs on some samples."""
        first = stream.units[0]
        count = max(len(next(iter(first.values()))), 1)
        whole = slices.profile(to_device(slices, first))
        found = blocks(slices.steps, whole.sizes, layers, options.layers, options.largest)
        costs = [sum(whole.costs[each.first : each.end]) / count for each in found]
        is_learned = [bool(each.layers or learnable_scales(slices, each)) for each in found]
        batch = options.batch if stream.is_free else count
        learned = sum(slices.weights_of(name) for each in found for name in each.layers)
        # Small nets have little to learn: without this they would take as long as large ones.
        most = min(options.work, LEAST_WORK + options.per_weight * learned)
        work = most if stream.is_free else math.inf
        paces = divide_work(
            [cost if learned else 0.0 for cost, learned in zip(costs, is_learned, strict=True)],
            replace(options, batch=batch, work=work),
            _FEWEST_OF_MANY if work < options.work else _FEWEST_SAMPLES,
        )
        largest = max(
            (_PASSES * each.batch * cost for each, cost in zip(paces, costs, strict=True)),
            default=0.0,
        )
        return Work(found, paces, _by_sample(slices, whole, stream), largest)


def divide_work(
    costs: Sequence[float], options: Reconstruction, fewest: int = _FEWEST_SAMPLES
) -> tuple[Pace, ...]:
    """Divide the work: all blocks get their steps, or the dear ones the same share each.

    Args:
        costs: Multiply-adds of each block for a sample; 0 where nothing is learned.
        options: Steps, batch and work.
        fewest: Samples of a step at least.
    """
    each = options.steps * options.batch * _PASSES
    full = sorted(each * cost for cost in costs if cost)
    share, left = math.inf, options.work
    for index, work in enumerate(full):
        rest = len(full) - index
        # From the cheapest on: what these do not need, the others share.
        if work * rest > left:
            share = left / rest
            break
        left -= work
    paces = []
    for cost in costs:
        if not cost:
            paces.append(Pace(0, options.batch))
            continue
        ratio = min(1.0, share / (each * cost))
        drawn = ratio * options.steps * options.batch
        least = max(fewest, min(_FEWEST_SAMPLES, round(drawn / _FEWEST_STEPS)))
        batch = min(options.batch, max(least, round(options.batch * ratio)))
        steps = math.ceil(drawn / batch)
        paces.append(Pace(min(max(steps, _FEWEST_STEPS), options.steps), batch))
    return tuple(paces)


def _by_sample(slices: Slices, whole: Profile, stream: Stream) -> frozenset[str]:
    """Find the tensors whose first axis is that of samples, and no other is."""
    first = stream.units[0]
    count = len(next(iter(first.values())))
    if not stream.is_free or count < _TOLD_APART:
        return frozenset()
    # Run with one sample less, only axes of samples become shorter; equal lengths prove nothing.
    fewer = slices.profile(to_device(slices, {name: t[:-1] for name, t in first.items()}))
    return frozenset(
        key
        for key, shape in whole.shapes.items()
        if shape[:1] == (count,) and fewer.shapes[key] == (count - 1, *shape[1:])
    )


_TOLD_APART = 2
