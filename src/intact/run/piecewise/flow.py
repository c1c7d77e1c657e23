"""The data of one run: quantised when first read, dropped after the last reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.run.piecewise.prepared import Prepared, Step
from intact.run.piecewise.streams import Stream

Array = npt.NDArray[Any]


class Flow:
    """Hands each step the streams that it reads.

    Args:
        prepared: The plan that is run.
        steps: Those that will run.
        given: Arrays of values that are not computed; never written to.
    """

    def __init__(
        self, prepared: Prepared, steps: Iterable[Step], given: Mapping[str, Array]
    ) -> None:
        self._quantizers = prepared.quantizers
        self._computed: dict[str, Array] = dict(given)
        self._ours: set[str] = set()
        self._streams: dict[Stream, Array] = {}
        reads = [stream for step in steps for stream in step.piece.inputs]
        self._left = Counter((*reads, *prepared.outputs.values()))
        self._read = frozenset(self._left)  # a step may hold them while it takes others
        for stream in [stream for stream in self._left if stream.end]:
            self._left[Stream(stream.value)] += 1  # made of what is handed out

    def put(self, value: str, array: Array, *, is_ours: bool) -> None:
        """Give a computed value; the flow may write to it if nobody else has it."""
        self._computed[value] = array
        if is_ours:
            self._ours.add(value)

    def take(self, stream: Stream) -> Array:
        """Return a stream for one of its readers, not to be written to.

        Raises:
            DataError: It is an input of the model that was not given.
        """
        array = self._streams.get(stream)
        if array is None:
            array = self._made(stream)
        self._left[stream] -= 1
        if self._left[stream]:
            self._streams[stream] = array
        else:
            self._streams.pop(stream, None)
        return array

    def _made(self, stream: Stream) -> Array:
        quantizer = self._quantizers.get(stream)
        if not stream.end:
            array = self._source(stream.value)
            in_place = stream.value in self._ours
        else:
            source = Stream(stream.value)
            array = self.take(source)
            is_last = source not in self._streams and source not in self._read
            in_place = is_last and (source in self._quantizers or stream.value in self._ours)
        if quantizer is None:
            return array
        return np.asarray(quantizer(array, array if in_place else None))

    def _source(self, value: str) -> Array:
        try:
            return self._computed.pop(value)
        except KeyError:
            raise DataError(
                f"input {value!r} is missing", remedy="give an array of that name"
            ) from None
