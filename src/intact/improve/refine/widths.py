"""Gives wider codes to the weights in blocks that lose most for their size.

What a weight alone costs is measured: the float model runs with that weight quantized, and the
noise of its first output is compared with the bytes that wider codes would add. The weights with
the most noise a byte become wider, until a share of the size of all is spent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from intact.calibrate.assign import activate
from intact.calibrate.method import Method
from intact.calibrate.scales.ranges import weight_params
from intact.config import TensorQuantConfig
from intact.data.stream import Samples
from intact.engines.piecewise import FloatPieces
from intact.engines.piecewise.floats import Array
from intact.engines.piecewise.streams import Reader
from intact.errors import UsageError
from intact.graph.tied_tables import tied_tables
from intact.numerics.metrics import decibels
from intact.plan import QuantizedGraph, QuantPoint
from intact.plan.gains import Gain, Report, unreported
from intact.program.lower.chains import Points
from intact.targets.blocks import Blocks, ScaleType

GROWTH = 5.0
"""Percent that stored weights may grow, unless it is said."""
MOST_SAMPLES = 1
"""Samples that each weight is tried on: there are hundreds of weights, and noise of a sample is of
thousands of numbers."""


def widen(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    growth: float = GROWTH,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> QuantizedGraph:
    """Give the weights that lose most for their size the widest codes of blocks.

    A table that a layer multiplies with too is one weight, since a file has it once.

    Args:
        plan: A plan with scales; it is not changed.
        samples: The data; the first ``most`` samples are run.
        growth: By how many percent all weights in blocks may grow together.
        most: Maximum number of samples.
        threads: Not used: each weight is tried by one thread.
        report: Takes the signal to noise of the first output with one weight quantized alone,
            before and after.

    Raises:
        UsageError: The plan has no weights in blocks.
    """
    del threads
    plan = plan.copy()
    blocks = plan.target.blocks
    wide = 0 if blocks is None else max(blocks.bits)
    weights = list(_weights(plan, wide, blocks))
    if blocks is None or not weights:
        raise UsageError(
            "--improve widths is for weights in blocks", remedy="give --block too, or leave it out"
        )
    room = growth / 100 * sum(each.bytes for each in weights)
    signal, noise = _noise(plan, weights, samples, most)
    chosen = []
    order = sorted(range(len(weights)), key=lambda at: -noise[at] / max(weights[at].added, 1e-9))
    for at in order:
        weight = weights[at]
        # One that does not fit is passed over: a smaller one behind it may.
        if noise[at] > 0 and 0 < weight.added <= room:
            room -= weight.added
            chosen.append(weight)
            before = decibels(signal, noise[at])
            # Each bit takes three quarters of the noise.
            after = before + 20 * np.log10(2) * (wide - weight.bits)
            report(Gain(weight.name, before, float(after), kept=True))
    for weight in chosen:
        _make_wide(plan, weight, wide, blocks)
    activate(plan)
    return plan


@dataclass(frozen=True)
class _Weight:
    """A weight that a file has once.

    Attributes:
        points: Where it is quantized: several for a table that is also multiplied with.
        bits: In which its codes are stored.
        bytes: What codes and scales take.
        added: Bytes that the widest codes add.
    """

    points: tuple[QuantPoint, ...]
    bits: int
    bytes: float
    added: float

    @property
    def name(self) -> str:
        """Name of the node that reads it last: the layer, of a table too."""
        return self.points[-1].end.node

    @property
    def constants(self) -> Mapping[Reader, Array]:
        """Its numbers as they are quantized, for those that read it."""
        return {
            (str(node.name), slot): point.config.dequantize(point.constant_codes())
            for point in self.points
            for node, slot in point.readers
        }


def _weights(plan: QuantizedGraph, wide: int, blocks: Blocks | None) -> Iterator[_Weight]:
    """Yield the weights in blocks whose codes are not given."""
    points = {
        reader: point
        for reader, point in Points.of(plan).at_input.items()
        if point.is_constant and point.config.grid.block is not None
    }
    layers = {str(layer.name): str(lookup.name) for lookup, layer, _ in tied_tables(plan.graph)}
    done: set[Reader] = set()
    # From the end, so that a layer is found before the table that it shares.
    for (name, slot), point in reversed(list(points.items())):
        if (name, slot) in done:
            continue
        table = points.get((layers[name], 0)) if name in layers and slot == 1 else None
        one = (point,) if table is None or table is point else (table, point)
        done.update((str(node.name), at) for each in one for node, at in each.readers)
        stored = point.config.bits if blocks is None else blocks.stored_bits(point.config.bits)
        count = np.prod(_shape(point))
        kind = ScaleType.FLOAT32 if blocks is None else blocks.scale_type
        scales = np.asarray(point.config.scale).size * kind.bytes
        size = float(count * stored / 8 + scales)
        added = float(count * (wide - stored) / 8)
        is_free = all(each.end not in plan.baked for each in one)
        yield _Weight(one, point.config.bits, size, added if is_free else 0.0)


def _shape(point: QuantPoint) -> tuple[int, ...]:
    tensor = point.value.const_value
    return () if tensor is None else tuple(tensor.shape.numpy())


def _noise(
    plan: QuantizedGraph, weights: list[_Weight], samples: Samples, most: int
) -> tuple[float, list[float]]:
    """Measure the power of the first output, and the noise there of each weight alone."""
    graph = plan.graph
    output = str(graph.outputs[0].name)
    results = {
        str(value.name)
        for each in weights
        for point in each.points
        for node, _ in point.readers
        for value in node.outputs
        if value.name
    }
    pieces = FloatPieces(graph, results)
    signal, noise = 0.0, [0.0] * len(weights)
    batches = samples.first(most).real_batches(samples.batch_size(1))
    for feeds, _ in itertools.islice(batches, most):
        known = pieces.values(feeds)
        wanted = pieces.run(known, {})[output].astype(np.float64)
        signal += float(np.square(wanted).sum())
        for at, weight in enumerate(weights):
            if samples.progress is not None:
                samples.progress(at, len(weights))
            if weight.added > 0:
                found = pieces.exchanged(weight.constants).run(known, {})[output]
                noise[at] += float(np.square(found - wanted).sum())
    return signal, noise


def _make_wide(plan: QuantizedGraph, weight: _Weight, bits: int, blocks: Blocks) -> None:
    method = Method.of(plan.target)
    truncates = plan.target.weight.truncated_zero_point
    for point in weight.points:
        config = _wide(point.config, bits)
        plan.configs[point.end] = config
        new = msgspec.structs.replace(point, config=config)
        params = weight_params(new, method, truncates=truncates, blocks=blocks)
        config.set_params(params.scale, params.zero_point)


def _wide(config: TensorQuantConfig, bits: int) -> TensorQuantConfig:
    is_signed = config.quant_min < 0
    low = -(1 << bits - 1) if is_signed else 0
    return config.replace(bits=bits, quant_min=low, quant_max=low + (1 << bits) - 1)
