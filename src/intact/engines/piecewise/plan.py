"""Resolves a plan for `PiecewiseSimulator`: which piece, constants and quantizers it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from intact._memo import Forgetful, IdentityKey, Memo
from intact.engines.piecewise.pieces import Cut, Piece
from intact.engines.piecewise.streams import Quantizer, Reader, Stream, Streams, config_key
from intact.plan import QuantPoint
from intact.plan.quantized_graph import Codes
from intact.targets.float16 import Rounded


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
