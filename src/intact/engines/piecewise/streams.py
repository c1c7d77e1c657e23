"""Derives the stream that each reader of a plan gets: a tensor, and its quantizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.graph import IMPLICIT_SLOT, is_constant
from intact.graph.graph import values_read_inside
from intact.numerics.dynamic import DynamicQuantizer
from intact.numerics.simulated_quantize import FLOAT, SimulatedQuantize
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd
from intact.plan.dynamic import DynamicPoint, dynamic_points, dynamic_quantizer
from intact.plan.overflows import Overflows, WrappingSums
from intact.plan.points import QuantPlace, quantization_places
from intact.plan.stored_weights import is_stored
from intact.targets.float16 import Rounded

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ConfigQuantizer:
    """A quantizer of any config: of logarithmic levels, blocks, channels with ranges of their own.

    Attributes:
        config: The config with grid and scale.
    """

    config: TensorQuantConfig

    @cached_property
    def key(self) -> bytes:
        """Bytes that are equal if two quantizers compute the same."""
        return config_key(self.config)

    def __call__(self, data: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Fake-quantize data, into ``out`` if given.

        Raises:
            DataError: A value is NaN.
        """
        levels = self.config.fake_quantize(data, inplace=False)
        if out is None:
            return levels
        np.copyto(out, levels)
        return out


@dataclass(frozen=True, eq=False)
class OverflowingQuantizer:
    """Wrap-around of sums in an accumulator, followed by a quantizer.

    Attributes:
        overflow: Wraps the sums.
        then: The quantizer after it; None if they are not quantized.
    """

    overflow: SimulatedQuantize
    then: SimulatedQuantize | ConfigQuantizer | RunningQuantizer | None

    @cached_property
    def key(self) -> bytes:
        """Bytes that are equal if two quantizers compute the same."""
        return self.overflow.key + (b"" if self.then is None else self.then.key)

    def __call__(self, data: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Wrap and quantize data; see `SimulatedQuantize`."""
        # The second quantizer writes over the sums: they are this call's own.
        sums = self.overflow(data, out)
        return sums if self.then is None else self.then(sums, sums)


@dataclass(frozen=True, eq=False)
class RunningQuantizer:
    """A quantizer whose scale follows from the data at hand.

    Attributes:
        quantizer: How.
    """

    quantizer: DynamicQuantizer

    @cached_property
    def key(self) -> bytes:
        """Bytes that are equal if two quantizers compute the same."""
        return repr(self.quantizer).encode()

    def __call__(self, data: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Fake-quantize data, into ``out`` if given.

        Raises:
            DataError: A value is NaN.
        """
        found = self.quantizer.fake_quantize(data)
        if out is None:
            return found
        np.copyto(out, found)
        return out


Quantizer: TypeAlias = SimulatedQuantize | ConfigQuantizer | OverflowingQuantizer | RunningQuantizer


def wrapping_quantizer(sums: WrappingSums, then: Quantizer | None) -> OverflowingQuantizer | None:
    """Make the quantizer that wraps sums; None if they exceed float32's exact integers."""
    if sums.scale is None or not sums.are_exact:
        return None
    overflow = SimulatedQuantize(
        in_scale=sums.scale, in_dtype=f"int{sums.bits}", out_dtype=FLOAT, axis=sums.axis
    )
    return OverflowingQuantizer(overflow, None if isinstance(then, OverflowingQuantizer) else then)


def quantizer_of(config: TensorQuantConfig) -> Quantizer:
    """Make the quantizer of a config with a scale."""
    params = config.params
    grid = config.grid
    # Blocks too: `SimulatedQuantize` has one scale, or one for each channel, and one range.
    if grid.exponential or grid.block is not None or grid.channel_codes or params is None:
        return ConfigQuantizer(config)
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
    """Compute bytes that are equal if two configs quantize alike."""
    grid, params = config.grid, config.params
    fixed = [grid.steps_per_octave, grid.rounding.value, grid.axis, grid.quant_min, grid.quant_max]
    fixed += [] if grid.block is None else [grid.block]
    fixed += [code for codes in grid.channel_codes for code in codes]
    # Their bytes need no lengths: the axis in front says how many there are for one graph.
    arrays = () if params is None else (params.scale, params.zero_point)
    return b"".join((repr(fixed).encode(), *(array.tobytes() for array in arrays)))


Reader: TypeAlias = tuple[str, int]


class Stream(NamedTuple):
    """The data of a value for some of its readers.

    Attributes:
        value: The value's name.
        end: The end at which readers quantize it; empty for the producer's output.
    """

    value: str
    end: str = ""


@dataclass(frozen=True)
class Layout:
    """Where a plan quantizes; plans of one structure share it.

    Attributes:
        at_output: By value: the end of its producer.
        at_end: The ends of readers, by their text.
        ends: The text of the end of each such reader.
        constants: The places of constants, each with its readers.
        running: What is quantized by a scale of its own values.
        cuts: Results of float nodes with a stored constant, which candidates give other widths:
            with nothing quantized between such nodes a whole decoder would be one piece, made anew
            for each candidate.
    """

    at_output: Mapping[str, TensorEnd]
    at_end: Mapping[str, TensorEnd]
    ends: Mapping[Reader, str]
    constants: tuple[tuple[QuantPlace, tuple[Reader, ...]], ...]
    running: tuple[DynamicPoint, ...] = ()
    cuts: frozenset[str] = frozenset()

    @staticmethod
    def from_plan(plan: QuantizedGraph) -> Layout:
        """Find where a plan quantizes."""
        at_output: dict[str, TensorEnd] = {}
        at_end: dict[str, TensorEnd] = {}
        ends: dict[Reader, str] = {}
        constants: list[tuple[QuantPlace, tuple[Reader, ...]]] = []
        cuts: set[str] = set()
        for place in quantization_places(plan):
            end = place.ends[0]
            readers = tuple((str(node.name), slot) for node, slot in place.readers)
            if is_constant(place.value):
                constants.append((place, readers))
                if is_stored(plan.configs[end]):
                    cuts.update(str(node.outputs[0].name) for node, _ in place.readers)
            # Its codes are those of the producer, at the same scale: a second rounding would change
            # nothing.
            elif place.is_passed_on:
                continue
            elif place.at_output:
                at_output[str(place.value.name)] = end
            else:
                at_end[str(end)] = end
                ends |= dict.fromkeys(readers, str(end))
        running = tuple(dynamic_points(plan))
        for point in running:
            readers = tuple((str(node.name), slot) for node, slot in point.readers)
            ends |= dict.fromkeys(readers, str(point.ends[0]))
        return Layout(at_output, at_end, ends, tuple(constants), running, frozenset(cuts))


@dataclass
class Streams:
    """The quantizers of a plan, by value and reader.

    Attributes:
        at_output: By value: the quantizer of its producer, for all readers.
        at_end: By end: the quantizer of readers, after that of the producer.
        ends: The end of each such reader.
        constants: The quantization point of a constant, by reader.
        cuts: Values that are cut without a quantizer.
        float16: The nodes that compute in float16.
        rounded: What the target's runtime rounds there.
    """

    at_output: dict[str, Quantizer] = field(default_factory=dict)
    at_end: dict[str, Quantizer] = field(default_factory=dict)
    ends: Mapping[Reader, str] = field(default_factory=dict)
    constants: dict[Reader, QuantPoint] = field(default_factory=dict)
    cuts: frozenset[str] = frozenset()
    float16: frozenset[str] = frozenset()
    rounded: Rounded = Rounded.VALUES

    @staticmethod
    def from_plan(
        plan: QuantizedGraph,
        layout: Layout,
        overflows: Overflows,
        quantizer: Callable[[TensorQuantConfig], Quantizer] = quantizer_of,
    ) -> Streams:
        """Make the streams of a calibrated plan.

        Args:
            plan: A plan with scales.
            layout: The pieces of its structure.
            overflows: Where the plan's sums may overflow.
            quantizer: Makes the quantizer of a config.
        """
        configs, asked = plan.configs, plan.target.float16
        streams = Streams(
            {value: quantizer(configs[end]) for value, end in layout.at_output.items()},
            {name: quantizer(configs[end]) for name, end in layout.at_end.items()},
            layout.ends,
            cuts=layout.cuts,
            float16=frozenset(() if plan.float16 is None else plan.float16.nodes),
            rounded=Rounded.VALUES if asked is None else asked.rounded,
        )
        for point in layout.running:
            arithmetic = plan.arithmetic_of(point.readers[0][0])
            grid = plan.configs[point.ends[0]].grid
            own = RunningQuantizer(dynamic_quantizer(grid, arithmetic))
            streams.at_end[str(point.ends[0])] = own
        for place, readers in layout.constants:
            streams.constants |= dict.fromkeys(readers, place.point(plan))
        for sums in overflows.wrapping:
            value = str(sums.node.outputs[0].name)
            wrapping = wrapping_quantizer(sums, streams.at_output.get(value))
            # The sums of the node pass through the register first, whatever quantizes them then.
            if wrapping is not None:
                streams.at_output[value] = wrapping
        return streams

    @property
    def places(self) -> tuple[frozenset[str], frozenset[tuple[Reader, str]]]:
        """The places of all quantizers, and of cuts without one."""
        return self.cuts.union(self.at_output), frozenset(self.ends.items())

    def read(self, value: ir.Value, reader: Reader) -> Stream:
        """Return the stream that a reader gets for a value that is not constant."""
        return Stream(str(value.name), self.ends.get(reader, ""))

    def is_cut(self, value: ir.Value, reader: Reader) -> bool:
        """Tell whether there is a quantizer between the producer and a reader."""
        name = str(value.name)
        return name in self.at_output or name in self.cuts or reader in self.ends

    def quantizer(self, stream: Stream) -> Quantizer | None:
        """Return the quantizer of a stream; None if it is the producer's own result."""
        return self.at_end[stream.end] if stream.end else self.at_output.get(stream.value)


def reads(node: ir.Node) -> Iterator[tuple[ir.Value, Reader]]:
    """Yield a node's inputs with their slots, including those of its subgraphs."""
    name = str(node.name)
    for slot, value in enumerate(node.inputs):
        if value is not None:
            yield value, (name, slot)
    for value in values_read_inside(node):
        if value.graph is node.graph:  # not values of the body itself
            yield value, (name, IMPLICIT_SLOT)
