"""Measures what each layer costs the outputs if it alone is quantized.

The float model runs with the quantized result of one layer at a time. Findings, the table of
layers, the place where most is lost, the colours of graphs and the sets of nodes that are tried in
float all follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial

import msgspec

from intact.analyze.errors import layer_results
from intact.analyze.side_by_side import Array, ComparedPoint, workers
from intact.analyze.teacher import OwnResult, TeacherForced
from intact.calibrate.outputs import Errors, FloatRuns
from intact.data.batching import Batch, real_samples, sample_count
from intact.engines.piecewise import FloatPieces
from intact.engines.session import FloatModel
from intact.limits import MOST_DB
from intact.numerics.error_sums import ChannelErrorSums
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.dynamic import dynamic_points
from intact.program.lower.chains import Points, chains

MOST_RUNS = 512
"""Times that the float model runs one sample: the samples are fewer where layers are many."""
FEWEST = 2
"""Samples at least."""
MOST_LAYERS = 128
"""Layers that are measured where there are more: those with the most noise of their own."""
_SHARES = (0.5, 0.9, 0.99)
"""Shares of the costs that sets of layers are responsible for."""
ONE = 0.5
"""Share of the costs from which on a single layer is said to cost most of them."""


class LayerCost(msgspec.Struct, frozen=True):
    """What one layer costs.

    Attributes:
        name: Its (first) node.
        op_type: Operator of that node.
        tensor: Its result, after the activation function that is fused.
        nodes: All of its quantized nodes.
        noise: Power that it alone adds to each output, summed over the samples.
        decibels: Signal to noise of each output where it alone is quantized.
    """

    name: str
    op_type: str
    tensor: str
    nodes: tuple[str, ...]
    noise: Mapping[str, float]
    decibels: Mapping[str, float]


class LayerCosts(msgspec.Struct, frozen=True, dict=True):
    """What the layers of a plan cost.

    Attributes:
        samples: Number of samples.
        layers: The layers, in topological order; those that were measured.
    """

    samples: int
    layers: tuple[LayerCost, ...]

    @cached_property
    def by_tensor(self) -> Mapping[str, LayerCost]:
        """The layers by their results."""
        return {each.tensor: each for each in self.layers}

    def alone(self, tensor: str, output: str) -> float | None:
        """Return the signal to noise of an output where one layer alone is quantized, dB.

        None where that was not measured.
        """
        layer = self.by_tensor.get(tensor)
        return None if layer is None else layer.decibels.get(output)

    def ranked(self, output: str) -> list[LayerCost]:
        """Return the layers that cost an output something, the worst first."""
        found = [each for each in self.layers if each.noise.get(output, 0.0) > 0]
        return sorted(found, key=lambda each: -each.noise[output])

    def share(self, layer: LayerCost, output: str) -> float:
        """Return the part of all layers' costs that one has."""
        powers = _bounded([each.noise.get(output, 0.0) for each in self.layers])
        total = sum(powers)
        own = powers[self.layers.index(layer)]
        return own / total if total else 0.0

    def sets(self, output: str) -> Iterator[tuple[LayerCost, ...]]:
        """Yield the costliest layer, and then sets that make more and more of the costs.

        Sets of more than half of the layers are left out: that is no single fault.
        """
        ranked = self.ranked(output)
        powers = _bounded([each.noise[output] for each in ranked])
        total, before = sum(powers), 0
        for share in (0.0, *_SHARES):
            done, count = 0.0, 0
            for power in powers:
                if count and done >= share * total:
                    break
                done, count = done + power, count + 1
            # Two shares may give the same set, where one layer has most of the costs.
            if before < count <= max(1, len(self.layers) // 2):
                before = count
                yield tuple(ranked[:count])


def _bounded(powers: Sequence[float]) -> list[float]:
    """Give layers that make an output infinite by themselves the most weight that counts."""
    finite = sum(power for power in powers if math.isfinite(power))
    # Large enough to be a set by itself at the largest share, and finite, so that shares can be
    # summed.
    most = max(finite, 1.0) / (1 - _SHARES[-1])
    return [min(power, most) for power in powers]


def layer_costs(
    plan: QuantizedGraph,
    runs: FloatRuns,
    *,
    forced: TeacherForced | None = None,
    floats: FloatModel | None = None,
    threads: int = 0,
    most: int = MOST_LAYERS,
) -> LayerCosts:
    """Measure what each layer costs, with its weights, what it reads and its result quantized.

    Args:
        plan: A plan with scales.
        runs: The samples; the first ones are used where layers are many.
        forced: Runs its layers by themselves; made where it is not given.
        floats: The float model with the tensors that layers read; made where it is not given.
        threads: Batches that run side by side; 0 takes all cores, four at most.
        most: Layers that are measured where there are more: those with the most noise of their own;
            `MOST_LAYERS` at most.

    Raises:
        PlanError: An end has no scale yet.
    """
    forced = forced or TeacherForced(plan, tuple(layer_results(plan)))
    floats = floats or FloatModel(plan.graph, read_tensors(plan, forced.places), threads=1)
    if not forced.places:
        return LayerCosts(0, ())
    # The time grows with layers times samples: the product is bounded, and not one of both.
    few = runs.first(min(max(MOST_RUNS // len(forced.places), FEWEST), len(runs)))
    tensors = [place.tensor for place in forced.places]
    most = min(most, MOST_LAYERS)
    if len(tensors) > most:
        tensors = _noisiest(forced, floats, few.batches[0], most)
    pieces = FloatPieces(plan.graph, tensors)
    total: dict[str, Errors] = {}
    for feeds, real in few.batches:  # the results of one batch at a time are in memory
        of_batch = zip(forced.places, forced.run(feeds, floats.run(feeds)), strict=True)
        results = {place.tensor: own.quantized for place, own in of_batch}
        # Kept for all layers: each then runs only the pieces behind it.
        known = pieces.values(feeds)
        ways = [partial(_run_with, pieces, known, {name: results[name]}) for name in tensors]
        own_runs = FloatRuns(
            plan.graph,
            [(feeds, real)],
            threads=workers(threads),
            model=partial(_run_with, pieces, known, {}),
        )
        for tensor, errors in zip(tensors, own_runs.errors(*ways), strict=True):
            total[tensor] = total[tensor].joined(errors) if tensor in total else errors
    nodes = _nodes(plan)
    places = {place.tensor: place for place in forced.places}
    layers = (_cost(places[tensor], nodes, total[tensor]) for tensor in tensors)
    return LayerCosts(len(few), tuple(layers))


def _run_with(
    pieces: FloatPieces, known: Mapping[str, Array], changed: Mapping[str, Array], _: Batch
) -> dict[str, Array]:
    return pieces.run(known, changed)


def _cost(place: ComparedPoint, nodes: Mapping[str, tuple[str, ...]], errors: Errors) -> LayerCost:
    name = str(place.node.name)
    noise = {output: float(each.noise.sum()) for output, each in errors.outputs.items()}
    return LayerCost(
        name,
        place.node.op_type,
        place.tensor,
        nodes.get(name, (name,)),
        # What makes an output NaN costs all there is, and must sort before what only adds noise.
        {output: math.inf if math.isnan(power) else power for output, power in noise.items()},
        errors.decibels,
    )


def read_tensors(plan: QuantizedGraph, places: Collection[ComparedPoint]) -> list[str]:
    """List what is compared of the float model, what its layers read, and its outputs."""
    read = (point.value for point in quantization_points(plan) if not point.is_constant)
    running = (point.value for point in dynamic_points(plan))
    computed = (str(value.name) for value in (*read, *running) if value.producer() is not None)
    outputs = (str(value.name) for value in plan.graph.outputs)
    return list(dict.fromkeys((*outputs, *computed, *(place.tensor for place in places))))


def _noisiest(
    forced: TeacherForced, floats: FloatModel, batch: tuple[Batch, int], most: int
) -> list[str]:
    """Return the layers with the least signal to noise of their own, in their order."""
    feeds, real = batch
    levels: dict[str, float] = {}
    for place, result in zip(forced.places, forced.run(feeds, floats.run(feeds)), strict=True):
        part = OwnResult(**real_samples(result._asdict(), sample_count(feeds), real))
        sums = ChannelErrorSums()
        sums.add(part.reference, part.quantized)
        levels[place.tensor] = -MOST_DB if math.isnan(sums.sqnr_db) else sums.sqnr_db
    chosen = set(sorted(levels, key=lambda name: levels[name])[:most])
    return [name for name in levels if name in chosen]


def _nodes(plan: QuantizedGraph) -> dict[str, tuple[str, ...]]:
    """Return the quantized nodes of each layer, by the first of them."""
    return {
        str(chain[0].name): tuple(str(node.name) for node in chain if plan.is_quantized(node))
        for chain in chains(plan, Points.of(plan))
    }
