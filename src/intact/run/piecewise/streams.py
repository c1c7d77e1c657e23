"""What every reader of a plan reads: which data, and quantised how on the way.

A stream is a value's data after the quantisers between its producer and some of its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.graph import IMPLICIT_SLOT
from intact.graph.graph import values_read_inside
from intact.plan import QuantizedGraph, QuantPoint, quantization_points
from intact.run.overflow import wrapping_sums
from intact.run.piecewise.quantizer import Quantizer, overflowing, quantizer_of

Reader: TypeAlias = tuple[str, int]
"""A node's name and the slot at which it reads; ``IMPLICIT_SLOT`` for what its bodies read."""


@dataclass(frozen=True)
class Stream:
    """The data of a value as some of its readers get it.

    Attributes:
        value: The value's name.
        end: The end where readers quantise it; empty for what the producer hands out.
    """

    value: str
    end: str = ""


@dataclass
class Streams:
    """The quantisers of a plan, by whom they concern.

    Attributes:
        handed_out: By value: what its producer quantises, for all that read it.
        at_end: By end: what readers quantise on top of that.
        ends: Which readers those are.
        constants: The point that quantises a constant for a reader.
    """

    handed_out: dict[str, Quantizer] = field(default_factory=dict)
    at_end: dict[str, Quantizer] = field(default_factory=dict)
    ends: dict[Reader, str] = field(default_factory=dict)
    constants: dict[Reader, QuantPoint] = field(default_factory=dict)

    @staticmethod
    def of(
        plan: QuantizedGraph, quantizer: Callable[[TensorQuantConfig], Quantizer] = quantizer_of
    ) -> Streams:
        """Return those of a calibrated plan.

        Args:
            plan: Has its scales.
            quantizer: Makes those of its configs.
        """
        streams = Streams()
        for point in quantization_points(plan):
            readers = [(str(node.name), slot) for node, slot in point.readers]
            if point.is_constant:
                streams.constants |= dict.fromkeys(readers, point)
            elif point.is_passed_on:
                continue
            elif point.at_output:
                streams.handed_out[str(point.value.name)] = quantizer(point.config)
            else:
                streams.at_end[str(point.end)] = quantizer(point.config)
                streams.ends |= dict.fromkeys(readers, str(point.end))
        for sums in wrapping_sums(plan):
            value = str(sums.node.outputs[0].name)
            wrapping = overflowing(sums, streams.handed_out.get(value))
            if wrapping is not None:
                streams.handed_out[value] = wrapping
        return streams

    @property
    def places(self) -> tuple[frozenset[str], frozenset[tuple[Reader, str]]]:
        """Where there are quantisers, whatever they do."""
        return frozenset(self.handed_out), frozenset(self.ends.items())

    def read(self, value: ir.Value, reader: Reader) -> Stream:
        """Return what a reader gets of a value that is no constant."""
        return Stream(str(value.name), self.ends.get(reader, ""))

    def is_cut(self, value: ir.Value, reader: Reader) -> bool:
        """Tell whether something quantises between the producer and a reader."""
        return str(value.name) in self.handed_out or reader in self.ends

    def quantizer(self, stream: Stream) -> Quantizer | None:
        """Return what makes a stream: of what is handed out, or of what the producer computed."""
        return self.at_end[stream.end] if stream.end else self.handed_out.get(stream.value)


def reads(node: ir.Node) -> Iterator[tuple[ir.Value, Reader]]:
    """Yield what a node reads and where, with what its bodies read of their surroundings."""
    name = str(node.name)
    for slot, value in enumerate(node.inputs):
        if value is not None:
            yield value, (name, slot)
    for value in values_read_inside(node):
        if value.graph is node.graph:  # not what a body makes itself
            yield value, (name, IMPLICIT_SLOT)
