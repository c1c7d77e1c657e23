"""Observes the keys, queries and values of a decoder's attention: moments, at all places.

Moments of keys are those at all places of the rotary embedding's tables: they follow from those of
the keys before they are turned, and from the tables. Half of the weight of a token is what
attention gives it: the first token takes most of it, and is one of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.graph import Graph
from intact.graph.key_basis import Turns, takes_offset
from intact.graph.ops import input_value
from intact.plan.caches import CachePoint

Numbers = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

_PLACES = 4096
"""Places of the tables that moments are averaged over."""
_ATTENDED = 0.5
"""The part of a token's weight that is what attention gives it."""
_QUERIES_AT_ONCE = 512


class Moments(NamedTuple):
    """Second moments of keys and queries over all places, ``[heads, size, size]``.

    Attributes:
        offset: The keys' mean, which is left out of their moments, ``[heads, size]``.
        keys: Of keys.
        queries: Of the queries that read them.
        values: The values' mean, likewise; 0 where it cannot be left out.
    """

    offset: Numbers
    keys: Numbers
    queries: Numbers
    values: Numbers


class Attention:
    """What was seen of one node: sums over the tokens of both halves of the samples.

    Args:
        point: The cache of its keys.
        queries: The rotary embedding of its queries.
        keys: That of its keys.

    Attributes:
        first_keys: The mean of what the first tokens append as keys, ``[heads, size]``.
        first_values: The same of values.
    """

    def __init__(self, point: CachePoint, queries: Turns, keys: Turns) -> None:
        self.node, self.bits = point.cache.node, point.config.bits
        self.heads, self.size = point.cache.heads, point.cache.size
        heads, size = self.heads, self.size
        self.queries, self.keys = queries, keys
        self.takes_offset = takes_offset(self.node)
        self.first_keys, self.first_values = np.zeros((2, heads, size))
        self._samples = 0
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

    @property
    def channels(self) -> int:
        """How many numbers these have of a token."""
        heads = self.node.attributes.get_int("num_heads", self.heads) or self.heads
        return self.size * (2 * heads + 3 * self.heads)

    def add(self, half: int, values: Sequence[Floats]) -> None:
        """Add a sample: what has these `names`, ``[sequence, channels]``."""
        queries, keys, turned_queries, turned_keys, given = (
            each.reshape(len(each), self.heads, -1, self.size) for each in values
        )
        self._samples += 1
        self.first_keys += (turned_keys[0, :, 0] - self.first_keys) / self._samples
        self.first_values += (given[0, :, 0] - self.first_values) / self._samples
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

    def moments(self, halves: Sequence[int]) -> Moments:
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
        offset = mean if self.takes_offset else np.zeros_like(mean)
        keys = self._everywhere(square, cosines, sines)
        keys -= offset[:, :, None] * offset[:, None, :]
        shares, values = (each[halves].sum(axis=0) for each in (self._shares, self._values))
        values /= np.maximum(shares, 1e-30)[:, None]
        queries = self._everywhere(queries, cosines, sines)
        return Moments(offset, keys, queries, values * self.takes_offset)

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


def observe(graph: Graph, seen: Sequence[Attention], samples: Samples, threads: int) -> bool:
    """Run the float model; False where there is too little, or caches are given."""
    names = list(dict.fromkeys(name for each in seen for name in each.names))
    model = FloatModel(graph, names, threads=threads)
    past = [str(value.name) for each in seen if (value := input_value(each.node, 3)) is not None]
    count = 0
    for feeds, real in samples.batches(samples.batch_size(1)):
        if any(feeds[name].size for name in past if name in feeds):
            return False
        found = model.run(feeds)
        for each in seen:
            values = [found[name] for name in each.names]
            for row in range(min(real, len(values[0]))):
                if not all(np.isfinite(value[row]).all() for value in values):
                    return False
                if values[0].shape[1]:
                    each.add((count + row) % 2, [value[row] for value in values])
        count += real
    return count > 1
