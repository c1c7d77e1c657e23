"""Resolves a plan for `PiecewiseSimulator`: which piece, constants and quantizers it runs.

`Flow` is a run of it: it hands tensors from piece to piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from intact._memo import Forgetful, IdentityKey, Memo
from intact.engines.piecewise.pieces import Cut, Piece
from intact.engines.piecewise.streams import Quantizer, Reader, Stream, Streams, config_key
from intact.errors import DataError
from intact.plan import QuantPoint
from intact.plan.quantized_graph import Codes
from intact.targets.float16 import Rounded

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """A piece with its quantized constants.

    Attributes:
        piece: The piece.
        variant: Bytes that are equal if two steps are the same function of their inputs.
        constants: The quantization points of constants in the piece.
        float16: Its nodes that compute in float16.
        rounded: What the target's runtime rounds there.
    """

    piece: Piece
    variant: bytes
    constants: Mapping[Reader, QuantPoint]
    float16: frozenset[str] = frozenset()
    rounded: Rounded = Rounded.VALUES


@dataclass(frozen=True)
class PiecewisePlan:
    """A plan resolved into steps, quantizers and cache keys.

    Attributes:
        steps: The steps, in topological order.
        outputs: Graph outputs by name.
        quantizers: The quantizer of each stream; a stream without one is the computed value.
        producers: The step that computes each value.
        keys: For each computed value: bytes that are equal if two plans compute the same.
        checkpoints: Values from which a run can resume.
        is_exact: A run computes all overflows; else the integer engine is needed for them.
    """

    steps: tuple[Step, ...]
    outputs: Mapping[str, Stream]
    quantizers: Mapping[Stream, Quantizer]
    producers: Mapping[str, int]
    keys: Mapping[str, bytes]
    checkpoints: frozenset[str]
    is_exact: bool = True

    @staticmethod
    def resolve(
        cut: Cut, streams: Streams, *, is_exact: bool, memo: Memo | None = None
    ) -> PiecewisePlan:
        """Resolve a plan from the pieces of its graph and its quantizers.

        Args:
            cut: The pieces.
            streams: The quantizers.
            is_exact: They compute all overflows of the plan.
            memo: What former calls computed.
        """
        resolver = _Resolver(streams, Forgetful() if memo is None else memo)
        steps = tuple(resolver.step(piece) for piece in cut.pieces)
        for stream in cut.results.values():
            resolver.key(stream)
        return PiecewisePlan(
            steps,
            cut.results,
            resolver.quantizers,
            cut.producers,
            resolver.keys,
            cut.checkpoints,
            is_exact,
        )


class Flow:
    """Hands each step of a run the streams that it reads, and frees them after their last reader.

    A `Stream` is a tensor as one reader gets it: as computed, or behind its quantizer. The computed
    tensor itself is the stream without an end.

    Args:
        prepared: The plan that is run.
        steps: The steps that will run.
        given: Arrays of values that are not computed; they are not changed.
    """

    def __init__(
        self, prepared: PiecewisePlan, steps: Iterable[Step], given: Mapping[str, Array]
    ) -> None:
        self._quantizers = prepared.quantizers
        self._computed: dict[str, Array] = dict(given)
        # Values that nobody else holds, which a quantizer may overwrite.
        self._ours: set[str] = set()
        self._streams: dict[Stream, Array] = {}
        reads = [stream for step in steps for stream in step.piece.inputs]
        # How often each stream is still read: the last reader frees it, or lets it be overwritten.
        self._left = Counter((*reads, *prepared.outputs.values()))
        self._read = frozenset(self._left)  # a step may hold them while it reads others
        for stream in [stream for stream in self._left if stream.end]:
            self._left[Stream(stream.value)] += 1  # computed from the producer's output

    def put(self, value: str, array: Array, *, is_ours: bool) -> None:
        """Store a computed value; it may be overwritten if ``is_ours``."""
        self._computed[value] = array
        if is_ours:
            self._ours.add(value)

    def take(self, stream: Stream) -> Array:
        """Return a stream for one of its readers, which must not change it.

        Raises:
            DataError: It is a missing input of the model.
        """
        array = self._streams.get(stream)
        if array is None:
            array = self._make(stream)
        self._left[stream] -= 1
        if self._left[stream]:
            self._streams[stream] = array
        else:
            self._streams.pop(stream, None)
        return array

    def _make(self, stream: Stream) -> Array:
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


class _Resolver:
    """Computes keys: the key of a value depends on all that it is computed from."""

    def __init__(self, streams: Streams, memo: Memo) -> None:
        self._streams = streams
        self._memo = memo
        self._stream_keys: dict[Stream, bytes] = {}
        self.keys: dict[str, bytes] = {}
        self.quantizers: dict[Stream, Quantizer] = {}

    def step(self, piece: Piece) -> Step:
        known = self._streams.constants
        constants = {reader: known[reader] for reader in piece.constants if reader in known}
        parts = [piece.key]
        for (node, slot), point in constants.items():
            parts += (f"{node}/{slot}".encode(), config_key(point.config))
            # Remembered by the array itself: plans of a search share baked codes, whose megabytes
            # are hashed once so.
            if point.baked is not None:
                parts.append(self._memo(IdentityKey(point.baked), partial(_digest_of, point.baked)))
        float16, rounded = self._streams.float16, self._streams.rounded
        if float16:
            float16 &= {str(node.name) for node in piece.nodes}
        if float16:
            parts += (rounded.encode(), *(name.encode() for name in sorted(float16)))
        variant = _digest(*parts)
        inputs = b"".join([self.key(stream) for stream in piece.inputs])
        for name in piece.made:
            self.keys[name] = _digest(variant, name.encode(), inputs)
        return Step(piece, variant, constants, float16, rounded)

    def key(self, stream: Stream) -> bytes:
        """Compute the key of a stream, and collect its quantizers."""
        if stream not in self._stream_keys:
            source = Stream(stream.value)
            # A reader's own quantizer comes after the producer's: its key builds on that of the
            # value.
            key = self.key(source) if stream.end else self._source_key(stream.value)
            quantizer = self._streams.quantizer(stream)
            if quantizer is not None:
                self.quantizers[stream] = quantizer
                key = _digest(key, quantizer.key)
            self._stream_keys[stream] = key
        return self._stream_keys[stream]

    def _source_key(self, value: str) -> bytes:
        return self.keys[value] if value in self.keys else _digest(b"input", value.encode())


def _digest_of(codes: Codes) -> bytes:
    return _digest(codes.dtype.str.encode(), codes.tobytes())


def _digest(*parts: bytes) -> bytes:
    # Each with its length: parts of other borders would else give the same digest.
    framed = [piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)]
    return blake2b(b"".join(framed), digest_size=16).digest()
