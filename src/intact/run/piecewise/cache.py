"""Two bounded memories of a search: activations to resume from, and compiled pieces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

import numpy.typing as npt

Key: TypeAlias = tuple[int, bytes]
"""A chunk of the samples, and what computed the data."""

_AGEING = 4096
"""Requests after which all counts are halved, so that what a search has left behind goes."""


class Checkpoints:
    """Activations by key, within a number of bytes.

    An array is kept from the second time on that its key is asked for, and takes the place of
    others only if it is asked for more often than they (TinyLFU, Einziger et al. 2017): what one
    candidate needs once does not evict what all candidates begin with. May be used from several
    threads.

    Args:
        limit: Bytes; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._arrays: OrderedDict[Key, npt.NDArray[Any]] = OrderedDict()
        self._counts: dict[Key, int] = {}
        self._requests = 0
        self.size = 0

    def find(self, key: Key) -> npt.NDArray[Any] | None:
        """Return an array that is not to be written to, and count that it was asked for."""
        with self._lock:
            self._count(key)
            array = self._arrays.get(key)
            if array is not None:
                self._arrays.move_to_end(key)
            return array

    def offer(self, key: Key, array: npt.NDArray[Any]) -> bool:
        """Keep an array if it is worth it; tell whether it is kept, and no longer the caller's."""
        with self._lock:
            count = self._counts.get(key, 0)
            if count < 2 or array.nbytes > self._limit or key in self._arrays:
                return False
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


class Compiled(Generic[Made]):
    """What was made, by key: the latest used within a number of bytes, or of whatever is counted.

    Args:
        limit: Bytes; what was asked for last stays even if it is larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, tuple[Made, int]] = OrderedDict()
        self.size = 0
        self.made = 0

    def get(self, key: Hashable, make: Callable[[], tuple[Made, int]]) -> Made:
        """Return what is there, or make it: ``make`` gives it with its bytes."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
            entry = make()
            self.made += 1
            self._entries[key] = entry
            self.size += entry[1]
            while self.size > self._limit and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self.size -= freed
            return entry[0]
