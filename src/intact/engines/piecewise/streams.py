"""What every reader of a plan reads: which data, and how it is quantized on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.engines.limits import EXACT_BELOW, WrappingSums, wrapping_sums
from intact.graph import IMPLICIT_SLOT
from intact.graph.graph import values_read_inside
from intact.numerics.simulated_quantize import FLOAT, SimulatedQuantize
from intact.plan import QuantizedGraph, QuantPoint, quantization_points

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LogarithmicQuantizer:
    """A quantizer to levels that are spaced logarithmically.

    Attributes:
        config: Its grid and scale.
    """

    config: TensorQuantConfig

    @cached_property
    def key(self) -> bytes:
        """Bytes that are equal where two of them do the same to all data."""
        return config_key(self.config)

    def __call__(self, data: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Return the data on their levels, in ``out`` if given.

        Raises:
            DataError: A value is NaN.
        """
        levels = self.config.fake_quantize(data)
        if out is None:
            return levels
        np.copyto(out, levels)
        return out


@dataclass(frozen=True, eq=False)
class OverflowingQuantizer:
    """Sums that wrap round in their accumulator, and what is then made of them.

    Attributes:
        overflow: From integers to floats.
        then: What quantizes them; None where they stay as they are.
    """

    overflow: SimulatedQuantize
    then: SimulatedQuantize | LogarithmicQuantizer | None

    @cached_property
    def key(self) -> bytes:
        """Bytes that are equal where two of them do the same to all data."""
        return self.overflow.key + (b"" if self.then is None else self.then.key)

    def __call__(self, data: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Return the data wrapped and quantized; see `SimulatedQuantize`."""
        sums = self.overflow(data, out)
        return sums if self.then is None else self.then(sums, sums)


Quantizer: TypeAlias = SimulatedQuantize | LogarithmicQuantizer | OverflowingQuantizer


def overflowing(sums: WrappingSums, then: Quantizer | None) -> OverflowingQuantizer | None:
    """Make the quantizer that wraps sums; None where float32 does not hold them."""
    if sums.scale is None or sums.largest is None or sums.largest >= EXACT_BELOW:
        return None
    overflow = SimulatedQuantize(
        in_scale=sums.scale, in_dtype=f"int{sums.bits}", out_dtype=FLOAT, axis=sums.axis
    )
    return OverflowingQuantizer(overflow, None if isinstance(then, OverflowingQuantizer) else then)


def quantizer_of(config: TensorQuantConfig) -> Quantizer:
    """Make the quantizer of a config that has its scale."""
    params = config.params
    if config.grid.exponential or params is None:
        return LogarithmicQuantizer(config)
    sign = "" if config.quant_min < 0 else "u"
    return SimulatedQuantize(
        out_scale=params.scale,
        clip_min=config.quant_min,
        clip_max=config.quant_max,
        zero_point=params.zero_point,
        rounding=config.rounding,
        out_dtype=f"{sign}int{config.bits}",
        axis=config.granularity.axis,
    )


def config_key(config: TensorQuantConfig) -> bytes:
    """Return bytes that are equal where two configs quantize alike."""
    grid, params = config.grid, config.params
    parts: list[Any] = [grid.exponential, grid.rounding.value, grid.axis]
    parts += [grid.quant_min, grid.quant_max]
    if params is not None:
        parts += [params.scale.tobytes(), params.zero_point.tobytes()]
    return repr(parts).encode()


Reader: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Stream:
    """The data of a value as some of its readers get it.

    Attributes:
        value: The value's name.
        end: The end where readers quantize it; empty for the producer's output.
    """

    value: str
    end: str = ""


@dataclass
class Streams:
    """The quantizers of a plan, by whom they concern.

    Attributes:
        handed_out: By value: what its producer quantizes, for all that read it.
        at_end: By end: what readers quantize on top of that.
        ends: Which readers those are.
        constants: The point that quantizes a constant for a reader.
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
        """Where there are quantizers, whatever they do."""
        return frozenset(self.handed_out), frozenset(self.ends.items())

    def read(self, value: ir.Value, reader: Reader) -> Stream:
        """Return the stream by which a reader gets a value that is not constant."""
        return Stream(str(value.name), self.ends.get(reader, ""))

    def is_cut(self, value: ir.Value, reader: Reader) -> bool:
        """Tell whether something quantizes between the producer and a reader."""
        return str(value.name) in self.handed_out or reader in self.ends

    def quantizer(self, stream: Stream) -> Quantizer | None:
        """Return the source of a stream: the quantized output, or the producer's own result."""
        return self.at_end[stream.end] if stream.end else self.handed_out.get(stream.value)


def reads(node: ir.Node) -> Iterator[tuple[ir.Value, Reader]]:
    """Yield a node's inputs with their slots, those of its subgraphs included."""
    name = str(node.name)
    for slot, value in enumerate(node.inputs):
        if value is not None:
            yield value, (name, slot)
    for value in values_read_inside(node):
        if value.graph is node.graph:  # not what a body makes itself
            yield value, (name, IMPLICIT_SLOT)
