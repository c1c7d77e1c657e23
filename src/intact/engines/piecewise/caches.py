"""Caches of a simulation in pieces: activations, and what is compiled.

Both have a limit. They differ in what they evict: activations are many and most are of a single
candidate, so how often one is asked for counts (`Checkpoints`); of compiled pieces the one that was
used last longest ago goes (`CompiledCache`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

import numpy.typing as npt

Key: TypeAlias = tuple[int, bytes]

"""Number of a chunk, and the key of a value."""

_AGEING = 4096

"""Requests after which all counts are halved, so that unused entries are evicted."""


class Checkpoints:
    """A cache of activations with a size limit; thread-safe.

    An array is cached from the second request of its key on, and evicts others only if it is
    requested more often (TinyLFU, Einziger et al. 2017): so the activations of a single candidate
    do not evict those that all candidates share.

    Args:
        limit: Size limit in bytes; 0 caches nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._arrays: OrderedDict[Key, npt.NDArray[Any]] = OrderedDict()
        self._counts: dict[Key, int] = {}
        self._requests = 0
        self.size = 0

    def find(self, key: Key) -> npt.NDArray[Any] | None:
        """Return a cached array, which must not be changed, and count the request."""
        with self._lock:
            self._count(key)
            array = self._arrays.get(key)
            if array is not None:
                self._arrays.move_to_end(key)
            return array

    def offer(self, key: Key, array: npt.NDArray[Any]) -> bool:
        """Cache an array if it is requested often enough; return whether it was cached."""
        with self._lock:
            count = self._counts.get(key, 0)
            if count < 2 or array.nbytes > self._limit or key in self._arrays:
                return False
            # In the order of last use: the first that are asked for less often make room.
            victims, freed = [], self._limit - self.size
            for other, theirs in self._arrays.items():
                if freed >= array.nbytes:
                    break
                if self._counts.get(other, 0) < count:
                    victims.append(other)
                    freed += theirs.nbytes
            if freed < array.nbytes:
                return False
            for victim in victims:
                self.size -= self._arrays.pop(victim).nbytes
            # Shared by all plans from now on: whoever wrote to it would change the results of
            # others.
            array.flags.writeable = False
            self._arrays[key] = array
            self.size += array.nbytes
            return True

    def _count(self, key: Key) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1
        self._requests += 1
        if self._requests >= max(_AGEING, 8 * len(self._arrays)):
            self._requests = 0
            self._counts = {k: count // 2 for k, count in self._counts.items() if count > 1}


Made = TypeVar("Made")
"""The kind of object that a cache holds: sessions, quantizers, cuts of the graph."""


class CompiledCache(Generic[Made]):
    """A least-recently-used cache of compiled objects, with a size limit; thread-safe.

    Args:
        limit: Limit of the sum of sizes; the last entry stays even if it is larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, tuple[Made, int]] = OrderedDict()
        self.size = 0
        self.made = 0

    def get(self, key: Hashable, make: Callable[[], tuple[Made, int]]) -> Made:
        """Return the entry, or make it: ``make`` returns it with its size."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
            # Inside the lock: two threads that want the same session would compile it twice, each
            # with its weights.
            entry = make()
            self.made += 1
            self._entries[key] = entry
            self.size += entry[1]
            while self.size > self._limit and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self.size -= freed
            return entry[0]
