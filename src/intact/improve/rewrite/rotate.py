"""Rotates what a decoder's caches keep of its keys, so that few bits suffice.

A few channels of keys are much larger than the others, and queries are large in others still. What
a code errs by in one channel of a key, a score gets times that channel of the query: the error of
scores is in proportion to the sum over channels of ``E[k^2] E[q^2]``. In the basis where keys and
queries have the same diagonal moments L, and rotated from there so that all channels are alike,
that sum is ``(sum L)^2 / n``, the least that any basis has whose channels have one code each.

Some of L are much larger than the others, and some so small that a score hardly sees them. The
channels of the smallest are not kept. In their places the channels of the largest are kept a second
time, finer (see `intact.graph.key_basis`). How many, follows from what either loses: bits go where
they count, as reverse water-filling gives them [water-filling].

What a code of a value errs by counts by the square of the share that attention gives it. Values are
kept without their mean by these weights: often the value of the first token.

The first token's key and value are much the same in every text, and each later token gives them a
large share. Offsets are moved by up to half a step to where their codes are exact, in the channels
that are kept.

A node is left as it is where the estimated error does not fall on the half of the samples that
nothing was chosen on.

Sources: [quarot] rotates keys and queries by a Hadamard matrix behind the rotary embedding.
Equal moments are those of balanced realizations in control theory [balancing]. The rotation is the
discrete Hartley transform, which every size has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from intact.calibrate.cache_ranges import Magnitudes, folds_of
from intact.data.batching import groups_within
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.graph import Graph
from intact.graph.key_basis import Basis, Steps, change_bases, is_key, steps_of, turns_of
from intact.graph.ops import input_value
from intact.improve.rewrite.key_moments import Attention, Moments, Numbers, observe
from intact.numerics.metrics import decibels
from intact.plan import QuantizedGraph
from intact.plan.caches import HALF, cache_points
from intact.plan.gains import Gain, Report, unreported

MOST_SAMPLES = 64
_LEAST = 1e-4
"""What is added to moments, of their mean: no direction is without any."""
_NOISE = 3.0
"""Squared error of rounding normally distributed numbers, times 4**bits, of their square."""
_REACH = 4.0
"""Standard deviations up to which two codes of a normally distributed number reach."""
_PLACES = 4
"""At so many places keys are counted, for the range of their channels."""
_HELD = 1 << 28
"""Bytes of a sample's activations that are held at once, but for those of one node."""


def rotate_keys(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> Graph:
    """Rotate the keys of caches that hold codes, and queries the other way round.

    What the model gives differs by float32 rounding alone, but for what is in its caches.

    Args:
        plan: With caches. Those of GroupQueryAttentions are changed whose keys and queries a
            RotaryEmbedding with constant tables makes.
        samples: The data; with fewer than two, or where caches are given, nothing changes.
        most: Maximum number of samples.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes what each node gained: its scores' signal to noise, estimated.

    Returns:
        Another graph, or that of the plan where nothing changes.
    """
    some = samples.first(most)
    bases: dict[str, Basis] = {}
    for group in _groups(list(_attentions(plan)), some):
        if not observe(plan.graph, group, some, threads):
            return plan.graph
        changed = [each for each in group if _gains(each, report)]
        if changed:
            bases |= _bases(plan.graph, changed, some, threads)
    return change_bases(plan.graph, bases) if bases else plan.graph


def _attentions(plan: QuantizedGraph) -> Iterator[Attention]:
    """Yield the nodes whose keys can be rotated, with nothing seen."""
    for point in cache_points(plan):
        cache = point.cache
        if not is_key(cache) or steps_of(cache.node) is not None:
            continue
        queries, keys = (turns_of(input_value(cache.node, slot), cache.size) for slot in (0, 1))
        if queries is not None and keys is not None:
            yield Attention(point, queries, keys)


def _groups(seen: Sequence[Attention], samples: Samples) -> Iterator[list[Attention]]:
    """Group nodes whose activations can be held at once."""
    batches = samples.batches(samples.batch_size(1)) if seen else iter(())
    first = next(iter(batches), ({}, 0))[0]
    tokens = max((array.size for array in first.values()), default=0)
    return groups_within(seen, lambda each: 4 * tokens * each.channels, _HELD)


def _gains(seen: Attention, report: Report) -> bool:
    """Tell whether scores gain on the half of the samples that nothing is chosen on."""
    fit, held_out = seen.moments([0]), seen.moments([1])
    found = _Channels.of(fit, seen.bits)
    before, after = (
        _signal_to_noise(held_out, *basis, seen.bits)
        for basis in ((_Channels.given(fit), np.zeros_like(fit.offset)), (found, fit.offset))
    )
    report(Gain(str(seen.node.name), before, after, after > before))
    return after > before


class _Channels(NamedTuple):
    """The channels of keys, for each head: see `Basis` and `Steps`, but not in steps."""

    matrix: Numbers
    twice: tuple[int, ...]

    @classmethod
    def given(cls, moments: Moments) -> _Channels:
        """Return the channels that keys have."""
        heads, size = moments.offset.shape
        unit = np.tile(np.eye(size), (heads, 1, 1))
        return cls(unit, (0,) * heads)

    @classmethod
    def of(cls, moments: Moments, bits: int) -> _Channels:
        """Return those with the least error of scores."""
        heads = [_balanced(*pair) for pair in zip(moments.keys, moments.queries, strict=True)]
        counts = tuple(_twice(sizes, bits) for _, sizes in heads)
        matrices = np.array([matrix for matrix, _ in heads])
        for matrix, twice in zip(matrices, counts, strict=True):
            for part in np.split(matrix, [twice, len(matrix) - twice])[:2]:
                part[:] = _hartley(len(part)) @ part
        return cls(matrices, counts)


def _twice(sizes: Numbers, bits: int) -> int:
    """Choose how many of the largest moments are kept twice, and as many of the smallest not.

    Args:
        sizes: The moments that keys and queries have in common, the largest first.
        bits: The bits of a code.
    """
    errors = []
    for twice in range(len(sizes) // 2 + 1):
        first, others, lost = np.split(sizes, [twice, len(sizes) - twice])
        error = np.square(lost).sum()
        for part, noise in ((first, _finer_noise(bits)), (others, _noise(bits))):
            error += noise * part.sum() ** 2 / max(len(part), 1)
        errors.append(error)
    return int(np.argmin(errors))


def _noise(bits: int) -> float:
    """Return the squared error of a code, of the square of what it stands for."""
    return float(_NOISE / 4.0**bits)


def _finer_noise(bits: int) -> float:
    """Return the same of two codes, the second of which is finer."""
    step = _REACH / ((1 << bits - 1) - HALF) / ((1 << bits) - 1)
    return float(step**2 / 12)


def _signal_to_noise(moments: Moments, kept: _Channels, offset: Numbers, bits: int) -> float:
    """Estimate that of scores, in dB, where keys are kept without an offset."""
    keys, queries = moments.keys, moments.queries
    signal = float((keys * queries).sum())
    moved = moments.offset - offset
    keys = keys + moved[:, :, None] * moved[:, None, :]
    matrix, inverse, noise = kept.matrix, np.linalg.inv(kept.matrix), 0.0
    channels = np.einsum("hij,hjk,hik->hi", matrix, keys, matrix)
    channels *= np.einsum("hji,hjk,hki->hi", inverse, queries, inverse)
    for head, twice in enumerate(kept.twice):
        first, others, _ = np.split(channels[head], [twice, channels.shape[1] - twice])
        noise += float(_finer_noise(bits) * first.sum() + _noise(bits) * others.sum())
        if twice:
            lost = inverse[head][:, -twice:] @ matrix[head][-twice:]
            noise += float((lost @ keys[head] @ lost.T * queries[head]).sum())
    return decibels(signal, noise)


def _balanced(keys: Numbers, queries: Numbers) -> tuple[Numbers, Numbers]:
    """Return the matrix A with ``A K A^T = A^-T Q A^-1`` diagonal, and that, the largest first."""
    unit = np.eye(len(keys))
    keys, queries = (
        each + unit * max(_LEAST * float(np.trace(each)) / len(each), 1e-30)
        for each in (keys, queries)
    )
    root = np.linalg.cholesky(keys)
    squares, vectors = np.linalg.eigh(root.T @ queries @ root)
    squares, vectors = np.maximum(squares, squares[-1] * 1e-12)[::-1], vectors[:, ::-1]
    matrix = squares[:, None] ** 0.25 * np.linalg.solve(root.T, vectors).T
    return np.asarray(matrix), np.asarray(squares**0.5)


def _hartley(size: int) -> Numbers:
    """Return the orthogonal matrix with ``cos(a) + sin(a)`` for ``a = 2 pi i j / size``."""
    angles = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / max(size, 1)
    return np.asarray((np.cos(angles) + np.sin(angles)) / max(size, 1) ** 0.5)


def _bases(
    graph: Graph, seen: Sequence[Attention], samples: Samples, threads: int
) -> dict[str, Basis]:
    """Run the float model for the ranges of what is kept, and return that in steps, by node."""
    kept = [_Kept(each) for each in seen]
    names = list(dict.fromkeys(name for each in kept for name in each.names))
    model = FloatModel(graph, names, threads=threads)
    for feeds, real in samples.batches(samples.batch_size(1)):
        found, folds = model.run(feeds), list(folds_of(feeds, real))
        for each in kept:
            keys, values = (found[name] for name in each.names)
            # Where samples are not told apart, all rows are of one part.
            for row in range(len(folds) if len(folds) > 1 else len(keys)):
                each.add(folds[row % len(folds)], keys[row : row + 1], values[row : row + 1])
    return {str(each.seen.node.name): each.basis() for each in kept}


class _Kept:
    """What is kept of one node's keys and values, and the magnitudes of that."""

    def __init__(self, seen: Attention) -> None:
        self.seen, self._moments = seen, seen.moments([0, 1])
        self._channels = _Channels.of(self._moments, seen.bits)
        count = seen.heads * seen.size
        self._keys, self._values = Magnitudes(count), Magnitudes(count)

    @property
    def names(self) -> tuple[str, str]:
        """Keys before they are turned, and values."""
        seen = self.seen
        return str(seen.keys.source.name), seen.names[-1]

    def add(self, fold: int, keys: Numbers, values: Numbers) -> None:
        """Count a sample, ``[1, sequence, channels]``, which belongs to a part of them."""
        seen = self.seen
        keys, values = (
            each.reshape(1, each.shape[1], seen.heads, seen.size) for each in (keys, values)
        )
        for place in range(_PLACES):
            numbers = np.arange(keys.shape[1]) * _PLACES + place
            left = seen.keys.turned(keys, numbers) - self._moments.offset
            channels = np.einsum("bshi,hji->shj", left, self._channels.matrix)
            self._keys.add(fold, np.abs(channels).reshape(len(channels), -1))
        left = values[0].astype(np.float64) - self._moments.values
        self._values.add(fold, np.abs(left).reshape(len(left), -1))

    def basis(self) -> Basis:
        """Return it in steps, and with offsets for which the first token's codes are exact."""
        seen, kept, moments = self.seen, self._channels, self._moments
        codes = Steps(seen.bits, kept.twice, ())
        highest, finer = codes.codes[1], np.ones_like(moments.offset)
        for row, twice in zip(finer, kept.twice, strict=True):
            row[:twice] = codes.finer
        of_keys, of_values = (
            np.where(each > 0, each, 1.0).reshape(finer.shape) / (highest + HALF)
            for each in (
                self._keys.range(highest, finer=finer.reshape(-1)),
                self._values.range(highest),
            )
        )
        for row, twice in zip(of_keys, kept.twice, strict=True):
            # Those that are not kept have no codes: they are as small as they count.
            row[len(row) - twice :] = row[: len(row) - twice].max()
        matrix = kept.matrix / of_keys[:, :, None]
        offset, values = moments.offset, moments.values
        if seen.takes_offset:
            first = np.einsum("hij,hj->hi", matrix, seen.first_keys - offset)
            moved = first - np.rint(first)
            for row, twice in zip(moved, kept.twice, strict=True):
                row[len(row) - twice :] = 0
            offset = offset + np.linalg.solve(matrix, moved[:, :, None])[:, :, 0]
            first = (seen.first_values - values) / of_values
            values = values + of_values * (first - np.rint(first))
        steps = codes._replace(values=tuple(of_values.reshape(-1).tolist()))
        return Basis(offset, matrix, values, steps)
