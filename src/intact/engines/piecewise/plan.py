"""A plan for piecewise simulation: the variant of each piece and the quantizers between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from intact.engines.piecewise.pieces import Cut, Piece
from intact.engines.piecewise.streams import Quantizer, Reader, Stream, Streams, config_key
from intact.plan import QuantPoint

FloatArray = npt.NDArray[np.float32]


"""A node's name and input slot; ``IMPLICIT_SLOT`` for values that its bodies read."""


@dataclass(frozen=True)
class Step:
    """A piece with its quantized constants.

    Attributes:
        piece: The piece.
        variant: Bytes that are equal if two steps are the same function of their inputs.
        constants: The quantization points of constants in the piece.
    """

    piece: Piece
    variant: bytes
    constants: Mapping[Reader, QuantPoint]


@dataclass(frozen=True)
class PiecewisePlan:
    """A plan resolved into steps, quantizers and cache keys.

    Attributes:
        steps: In topological order.
        outputs: Graph outputs by name.
        quantizers: The quantizer of each stream; a stream without one is the computed value.
        producers: The step that computes each value.
        keys: For each computed value: bytes that are equal if two plans compute the same.
        checkpoints: Values from which a run can resume.
    """

    steps: tuple[Step, ...]
    outputs: Mapping[str, Stream]
    quantizers: Mapping[Stream, Quantizer]
    producers: Mapping[str, int]
    keys: Mapping[str, bytes]
    checkpoints: frozenset[str]

    @staticmethod
    def of(cut: Cut, streams: Streams) -> PiecewisePlan:
        """Resolve a plan from the pieces of its graph and its quantizers."""
        resolver = _Resolver(streams)
        steps = tuple(resolver.step(piece) for piece in cut.pieces)
        outputs = {str(value.name): Stream(str(value.name)) for value in cut.outputs}
        for stream in outputs.values():
            resolver.key(stream)
        producers = {
            str(value.name): at for at, step in enumerate(steps) for value in step.piece.outputs
        }
        return PiecewisePlan(
            steps, outputs, resolver.quantizers, producers, resolver.keys, cut.checkpoints
        )


class _Resolver:
    """Computes keys: the key of a value depends on all that it is computed from."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._of_stream: dict[Stream, bytes] = {}
        self.keys: dict[str, bytes] = {}
        self.quantizers: dict[Stream, Quantizer] = {}

    def step(self, piece: Piece) -> Step:
        constants = {
            reader: self._streams.constants[reader]
            for reader in piece.constants
            if reader in self._streams.constants
        }
        variant = blake2b(piece.key, digest_size=16)
        for (node, slot), point in constants.items():
            variant.update(f"{node}/{slot}".encode() + config_key(point.config))
            if point.baked is not None:
                variant.update(point.baked.tobytes())
        inputs = b"".join(self.key(stream) for stream in piece.inputs)
        for value in piece.outputs:
            parts = (variant.digest(), str(value.name).encode(), inputs)
            self.keys[str(value.name)] = _digest(*parts)
        return Step(piece, variant.digest(), constants)

    def key(self, stream: Stream) -> bytes:
        """Compute the key of a stream, and collect its quantizers."""
        if stream not in self._of_stream:
            source = Stream(stream.value)
            key = self.key(source) if stream.end else self._computed(stream.value)
            quantizer = self._streams.quantizer(stream)
            if quantizer is not None:
                self.quantizers[stream] = quantizer
                key = _digest(key, quantizer.key)
            self._of_stream[stream] = key
        return self._of_stream[stream]

    def _computed(self, value: str) -> bytes:
        return self.keys[value] if value in self.keys else _digest(b"input", value.encode())


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
