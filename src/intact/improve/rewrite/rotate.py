"""Rotates what a decoder's caches keep of its keys, so that few bits suffice.

A few channels of keys are much larger than the others, and queries are large in others still. What
a code errs by in one channel of a key, a score gets times that channel of the query: the error of
scores is in proportion to the sum over channels of ``E[k^2] E[q^2]``. In the basis where keys and
queries have the same diagonal moments L, and rotated from there so that all channels are alike,
that sum is ``(sum L)^2 / n``, the least that any basis has.

Moments are those at all places of the rotary embedding's tables: they follow from those of the keys
before they are turned, and from the tables. Half of the weight of a token is what attention gives
it: the first token takes most of it, and is one of many.

What a code of a value errs by counts by the square of the share that attention gives it. Values are
kept without their mean by these weights: often the value of the first token, which has the code 0
then, without an error.

A node is left as it is where the sum does not fall on the half of the samples that nothing was
chosen on.

Sources: [quarot] rotates keys and queries by a Hadamard matrix behind the rotary embedding.
Equal moments are those of balanced realizations in control theory [balancing]. The rotation is the
discrete Hartley transform, which every size has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.data.stream import Samples
from intact.engines.session import make_session, run_session
from intact.graph import Graph
from intact.graph.edit import Editor
from intact.graph.key_basis import (
    Basis,
    Turns,
    basis_of,
    change_bases,
    is_key,
    takes_offset,
    turns_of,
)
from intact.graph.ops import input_value
from intact.numerics.metrics import decibels
from intact.plan import QuantizedGraph
from intact.plan.caches import CachePoint, cache_points
from intact.plan.gains import Gain, Report, unreported

Numbers = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

MOST_SAMPLES = 64
_PLACES = 4096
"""Places of the tables that moments are averaged over."""
_ATTENDED = 0.5
"""The part of a token's weight that is what attention gives it."""
_LEAST = 1e-4
"""What is added to moments, of their mean: no direction is without any."""
_NOISE = 3.0
"""Squared error of rounding normally distributed numbers, times 4**bits, of their square."""
_QUERIES_AT_ONCE = 512


def rotate_keys(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> Graph:
    """Rotate the keys of caches that hold codes, and queries the other way round.

    What the model gives differs by float32 rounding alone, but for the keys in its caches.

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
    seen = list(_seen(plan))
    if not seen or not _observe(plan.graph, seen, samples.first(most), threads):
        return plan.graph
    bases = {}
    for each in seen:
        fit, held_out = each.moments([0]), each.moments([1])
        before, after = (
            held_out.signal_to_noise(basis, each.bits) for basis in (None, fit.basis(each.keys))
        )
        name = str(each.node.name)
        report(Gain(name, before, after, after > before))
        if after > before:
            bases[name] = each.moments([0, 1]).basis(each.keys)
    return change_bases(plan.graph, bases) if bases else plan.graph


def _seen(plan: QuantizedGraph) -> Iterator[_Seen]:
    """Yield the nodes whose keys can be rotated, with nothing seen."""
    for point in cache_points(plan):
        cache = point.cache
        if not is_key(cache) or basis_of(cache) is not None:
            continue
        queries, keys = (turns_of(input_value(cache.node, slot), cache.size) for slot in (0, 1))
        if queries is not None and keys is not None:
            yield _Seen(point, queries, keys)


class _Moments(NamedTuple):
    """Second moments of keys and queries over all places, ``[heads, size, size]``.

    Attributes:
        offset: The keys' mean, which is left out of their moments, ``[heads, size]``.
        keys: Of keys.
        queries: Of the queries that read them.
        values: The values' mean, likewise; None where it cannot be left out.
    """

    offset: Numbers
    keys: Numbers
    queries: Numbers
    values: Numbers | None

    def basis(self, turns: Turns) -> Basis:
        """Return the basis with the least error of scores."""
        size = self.keys.shape[-1]
        found = [_balanced(*pair) for pair in zip(self.keys, self.queries, strict=True)]
        return Basis(self.offset, _hartley(size) @ np.stack(found), turns, self.values)

    def signal_to_noise(self, basis: Basis | None, bits: int) -> float:
        """Estimate that of scores, in dB; None for the basis that keys have."""
        keys, queries = self.keys, self.queries
        signal = float((keys * queries).sum())
        lost = self.offset if basis is None else self.offset - basis.offset
        keys = keys + lost[:, :, None] * lost[:, None, :]
        if basis is not None:
            inverse = np.linalg.inv(basis.matrix)
            keys = basis.matrix @ keys @ basis.matrix.transpose(0, 2, 1)
            queries = inverse.transpose(0, 2, 1) @ queries @ inverse
        channels = np.einsum("hii,hii->", keys, queries)
        return decibels(signal, _NOISE * float(channels) / 4.0**bits)


class _Seen:
    """Sums over the tokens of both halves of the samples, for one node."""

    def __init__(self, point: CachePoint, queries: Turns, keys: Turns) -> None:
        self.node, self.bits = point.cache.node, point.config.bits
        self.heads, self.size = point.cache.heads, point.cache.size
        heads, size = self.heads, self.size
        self.queries, self.keys = queries, keys
        self._takes_offset = takes_offset(self.node)
        # Each with equal weights and with those of attention.
        self._sums = np.zeros((2, 2, heads))
        self._means = np.zeros((2, 2, heads, size))
        self._squares = np.zeros((2, 2, heads, size, size))
        self._queries = np.zeros((2, heads, size, size))
        self._shares = np.zeros((2, heads))
        self._values = np.zeros((2, heads, size))

    @property
    def names(self) -> list[str]:
        """Queries and keys before they are turned, both behind, and values."""
        values = (self.queries.source, self.keys.source, *self.node.inputs[:3])
        return [str(value.name) for value in values if value is not None]

    def add(self, half: int, values: Sequence[Floats]) -> None:
        """Add a sample: what has these `names`, ``[sequence, channels]``."""
        queries, keys, turned_queries, turned_keys, given = (
            each.reshape(len(each), self.heads, -1, self.size) for each in values
        )
        weights, shares = self._weights(turned_queries, turned_keys)
        self._shares[half] += shares.sum(axis=0)
        self._values[half] += np.einsum("sh,shi->hi", shares, given[:, :, 0])
        rows = keys[:, :, 0].astype(np.float64)
        for kind, weight in enumerate((np.ones_like(weights), weights)):
            self._sums[half, kind] += weight.sum(axis=0)
            self._means[half, kind] += np.einsum("sh,shi->hi", weight, rows)
            weighted = (rows * weight[:, :, None]).transpose(1, 2, 0)
            self._squares[half, kind] += weighted @ rows.transpose(1, 0, 2)
        each = queries.transpose(1, 0, 2, 3).reshape(self.heads, -1, self.size).astype(np.float64)
        self._queries[half] += each.transpose(0, 2, 1) @ each

    def _weights(self, queries: Floats, keys: Floats) -> tuple[Numbers, Numbers]:
        """Sum over the queries what errors do to shares p, and to results, ``[sequence, heads]``.

        Those of scores count by ``p (1 - p)``, those of values by ``p^2``.
        """
        found, squares = np.zeros((2, *keys.shape[:2]))
        default = self.size**-0.5
        scale = np.float32(self.node.attributes.get_float("scale", default) or default)
        places = np.arange(len(keys))
        for head in range(self.heads):
            for start in range(0, len(queries), _QUERIES_AT_ONCE):
                some = queries[start : start + _QUERIES_AT_ONCE, head].transpose(1, 0, 2)
                scores = some @ keys[:, head, 0].T * scale
                later = places[None, :] > start + np.arange(some.shape[1])[:, None]
                scores[:, later] = -np.inf
                shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
                shares /= shares.sum(axis=-1, keepdims=True)
                found[:, head] += (shares * (1 - shares)).sum(axis=(0, 1))
                squares[:, head] += (shares * shares).sum(axis=(0, 1))
        return found, squares

    def moments(self, halves: Sequence[int]) -> _Moments:
        """Return the moments over some halves of the samples, at all places."""
        sums, means, squares = (
            each[halves].sum(axis=0) for each in (self._sums, self._means, self._squares)
        )
        parts = np.array([1 - _ATTENDED, _ATTENDED])[:, None] / np.maximum(sums, 1e-30)
        mean = np.einsum("kh,khi->hi", parts, means)
        square = np.einsum("kh,khij->hij", parts, squares)
        queries = self._queries[halves].sum(axis=0)
        cosines, sines = self.keys.at(np.arange(_PLACES))
        mean = mean * cosines.mean(axis=0) + mean @ self.keys.partner.T * sines.mean(axis=0)
        offset = mean if self._takes_offset else np.zeros_like(mean)
        keys = self._everywhere(square, cosines, sines)
        keys -= offset[:, :, None] * offset[:, None, :]
        shares, values = (each[halves].sum(axis=0) for each in (self._shares, self._values))
        values /= np.maximum(shares, 1e-30)[:, None]
        queries = self._everywhere(queries, cosines, sines)
        return _Moments(offset, keys, queries, values if self._takes_offset else None)

    def _everywhere(self, square: Numbers, cosines: Numbers, sines: Numbers) -> Numbers:
        """Average ``E[x x^T]`` of what is turned over the places.

        x becomes x c + (J x) s there, where J gives each number its partner.
        """
        partner = self.keys.partner
        count = len(cosines)
        both = cosines.T @ sines / count
        mixed = square @ partner.T
        found = square * (cosines.T @ cosines / count) + mixed * both
        found += mixed.transpose(0, 2, 1) * both.T
        return np.asarray(found + partner @ mixed * (sines.T @ sines / count))


def _observe(graph: Graph, seen: Sequence[_Seen], samples: Samples, threads: int) -> bool:
    """Run the float model; False where there is too little, or caches are given."""
    editor = Editor(graph.model)
    names = list(dict.fromkeys(name for each in seen for name in each.names))
    editor.model.graph.outputs[:] = [editor.value(name) for name in names]
    session = make_session(editor.finish(), threads=threads)
    wanted = {each.name for each in session.get_inputs()}
    past = [str(value.name) for each in seen if (value := input_value(each.node, 3)) is not None]
    count = 0
    for feeds, real in samples.batches(samples.batch_size(1)):
        if any(feeds[name].size for name in past if name in feeds):
            return False
        given = {name: array for name, array in feeds.items() if name in wanted}
        found = dict(zip(names, run_session(session, given, names), strict=True))
        for each in seen:
            values = [found[name] for name in each.names]
            for row in range(min(real, len(values[0]))):
                if not all(np.isfinite(value[row]).all() for value in values):
                    return False
                each.add((count + row) % 2, [value[row] for value in values])
        count += real
    return count > 1


def _balanced(keys: Numbers, queries: Numbers) -> Numbers:
    """Return the matrix A with ``A K A^T = A^-T Q A^-1`` diagonal."""
    unit = np.eye(len(keys))
    keys, queries = (
        each + unit * max(_LEAST * float(np.trace(each)) / len(each), 1e-30)
        for each in (keys, queries)
    )
    root = np.linalg.cholesky(keys)
    squares, vectors = np.linalg.eigh(root.T @ queries @ root)
    quarter = np.maximum(squares, squares[-1] * 1e-12) ** 0.25
    return np.asarray(quarter[:, None] * np.linalg.solve(root.T, vectors).T)


def _hartley(size: int) -> Numbers:
    """Return the orthogonal matrix with ``cos(a) + sin(a)`` for ``a = 2 pi i j / size``."""
    angles = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
    return np.asarray((np.cos(angles) + np.sin(angles)) / size**0.5)
