"""Measures the error of each layer in three ways.

Accumulated: both models run from their inputs. By itself: the layer reads what the float model
gives. Cost: what quantizing that layer alone does to the outputs of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from intact._text import finite
from intact.analyze.errors import layer_results
from intact.analyze.layer_costs import FEWEST, LayerCosts, layer_costs, read_tensors
from intact.analyze.side_by_side import Array, ComparedPoint, SideBySide, workers
from intact.analyze.teacher import OwnResult, TeacherForced
from intact.calibrate.outputs import FloatRuns
from intact.config import QuantPolicy
from intact.data.batching import Batch, real_samples
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.graph import Graph
from intact.graph.ops import bias_slot, constant_array
from intact.limits import INSPECTED, MOST_DB
from intact.numerics.answers import are_classes
from intact.numerics.divergence import Bins, Divergence
from intact.numerics.error_sums import ChannelErrorSums
from intact.numerics.metrics import agreement, decibels
from intact.plan import QuantizedGraph, QuantPoint, quantization_points

_OWN = 8
"""The samples on which each layer is run by itself, and alone is quantized."""
_AT_ONCE = 2
"""How many of these are run at once where activations are large."""
_IN_CACHE = 1 << 22
"""Elements of activations that are worth one batch: 16 MiB."""
_COSTED = 3 << 29
"""Elements of activations that are run, about, for costs of layers that nothing else asks for."""
_FEWEST_LAYERS = 16
"""Layers whose costs are measured in any case, those with the most noise of their own."""
_BINS = 64


class Figures(msgspec.Struct, frozen=True):
    """How far a tensor is from that of the float model.

    Attributes:
        sqnr_db: Signal to quantization noise, dB; infinite without noise, -100 at least: that of
            what is NaN or infinite, or something where the float model has nothing.
        cosine: Cosine of both.
        mse: Mean squared difference.
        kl: Kullback-Leibler divergence of the values, nats, in up to 64 bins over the codes; None
            where they have no scale, or channels have several.
    """

    sqnr_db: float
    cosine: float
    mse: float
    kl: float | None


class OutputError(msgspec.Struct, frozen=True):
    """The error of one output of the model.

    Attributes:
        name: Its name.
        error: Against the float model's.
        agreement: Share of samples with the same best class, percent; None if it does not look
            like scores of classes, ``[samples, classes]``.
    """

    name: str
    error: Figures
    agreement: float | None


class LayerErrors(msgspec.Struct, frozen=True):
    """The errors of one layer, each as signal to noise in dB unless said otherwise.

    Attributes:
        name: Its (first) node.
        op_type: Operator of that node.
        tensor: Its result, after the activation function that is fused.
        accumulated: In the quantized model, with the errors of all layers before.
        own: The layer by itself, on what the float model computes before it.
        channels: The same for each output channel; empty for layers without weights.
        weights: By itself, with only its weights and its bias quantized.
        bias: With only its bias quantized, before the activation function; infinite where it is
            exact, None where there is none.
        activations: What quantizing its inputs and its result adds to that of weights.
        alone: The output that loses most, where this layer alone is quantized; None where it does
            not depend on it, or others have more noise of their own (see `LayerCosts`).
    """

    name: str
    op_type: str
    tensor: str
    accumulated: Figures
    own: float
    channels: tuple[float, ...]
    weights: float
    bias: float | None
    activations: float
    alone: float | None


class ModelErrors(msgspec.Struct, frozen=True):
    """The errors of a plan.

    Attributes:
        samples: Number of samples.
        outputs: The errors of the model's outputs.
        layers: The layers, in topological order.
        samples_alone: Number of those on which layers alone are quantized.
    """

    samples: int
    outputs: tuple[OutputError, ...]
    layers: tuple[LayerErrors, ...]
    samples_alone: int = 0

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        found: dict[str, Any] = finite(msgspec.to_builtins(self))
        return found


def model_errors(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = INSPECTED,
    costs: LayerCosts | None = None,
    threads: int = 0,
) -> ModelErrors:
    """Measure the errors of all layers.

    Errors are accumulated over all samples. Each layer is run by itself on the first 8, and
    quantized alone on the first 8 or, where layers are many, on fewer.

    Args:
        plan: A plan with scales.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples.
        costs: What layers alone cost, where that was measured before.
        threads: Batches that run side by side; 0 takes all cores, four at most.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    places, outputs = tuple(layer_results(plan)), tuple(_outputs(plan))
    floats = FloatModel(plan.graph, read_tensors(plan, places), threads=1)
    forced = TeacherForced(plan, places)
    # All results of all layers are held for a batch: where they leave the caches, smaller batches
    # are faster.
    is_small = _OWN * _elements(plan.graph, forced.tensors) <= _IN_CACHE
    own = _own_errors(forced, floats, samples, _OWN if is_small else _AT_ONCE)
    if costs is None:
        runs = FloatRuns(plan.graph, _kept(samples, _OWN), threads=workers(threads))
        # Nobody looked for a loss: what follows is the order of a table, and colours.
        elements = _elements(plan.graph, forced.tensors)
        many = max(_COSTED // max(FEWEST * elements, 1), _FEWEST_LAYERS)
        costs = layer_costs(plan, runs, forced=forced, floats=floats, threads=threads, most=many)
    both = SideBySide(plan, (*own, *outputs), threads=threads, integers=False, floats=floats)
    points = {point.end: point for point in quantization_points(plan)}
    bins = {place: _bins(points[place.end]) for place in both.places if place.end}
    total = both.summed(samples, most, lambda place: _Sums(place, bins.get(place)))
    of_place = dict(zip(both.places, total, strict=True))
    found = tuple(of_place[place].output(place.tensor) for place in outputs)
    worst = min(found, key=lambda each: each.error.sqnr_db, default=None)
    output = "" if worst is None else worst.name
    biases = _bias_errors(plan)
    layers = tuple(
        each.layer(
            place,
            of_place[place].figures,
            costs.alone(place.tensor, output),
            biases.get(str(place.node.name)),
        )
        for place, each in own.items()
    )
    return ModelErrors(both.samples, found, layers, costs.samples)


class _Sums:
    """Sums over the values of a tensor in both models."""

    def __init__(self, place: ComparedPoint, bins: Bins | None) -> None:
        self.errors = ChannelErrorSums()
        self._values = None if bins is None else Divergence(bins)
        self._scores = _Scores() if place.end is None else None

    def add(self, reference: Array, actual: Array) -> None:
        self.errors.add(reference, actual)
        if self._values is not None:
            self._values.add(reference, actual)
        if self._scores is not None:
            self._scores.add(reference, actual)

    def join(self, more: _Sums) -> None:
        self.errors.join(more.errors)
        if self._values is not None and more._values is not None:
            self._values.join(more._values)
        if self._scores is not None and more._scores is not None:
            self._scores.join(more._scores)

    @property
    def figures(self) -> Figures:
        errors, nats = self.errors, None if self._values is None else self._values.nats
        return Figures(_bounded(errors.sqnr_db), errors.cosine, errors.mse, nats)

    def output(self, name: str) -> OutputError:
        return OutputError(name, self.figures, self._scores.agreement if self._scores else None)


class _Scores:
    """Counts the samples for which the same class is best."""

    def __init__(self) -> None:
        self._same = self._all = 0

    def add(self, reference: Array, actual: Array) -> None:
        # Asked of the float model's scores, which decide what the output is.
        if reference.ndim == 2 and are_classes(reference):
            self._same += round(agreement(reference, actual) * len(reference))
            self._all += len(reference)

    def join(self, more: _Scores) -> None:
        self._same += more._same
        self._all += more._all

    @property
    def agreement(self) -> float | None:
        return 100 * self._same / self._all if self._all else None


def _bounded(level: float) -> float:
    """Return decibels no lower than ``-MOST_DB``, which NaN becomes; infinity stays: no noise."""
    return -MOST_DB if math.isnan(level) else max(level, -MOST_DB)


def _bins(point: QuantPoint) -> Bins | None:
    """Lay bins over the codes of a tensor; None where channels or levels are unlike."""
    config = point.config
    grid = config.grid
    if grid.exponential or not config.policy & QuantPolicy.PER_TENSOR:
        return None
    low, high = config.dequantize(np.array([grid.quant_min, grid.quant_max])).tolist()
    step = (high - low) / (grid.quant_max - grid.quant_min)
    bins = min(_BINS, grid.quant_max - grid.quant_min + 1)
    # Half a step beyond both ends: a bin has whole levels, with all that is rounded to them.
    return Bins(low - step / 2, high + step / 2, bins)


class _Own:
    """Sums over the values of a layer that is run by itself."""

    def __init__(self, place: ComparedPoint) -> None:
        self._all, self._weights = ChannelErrorSums(place.axis), ChannelErrorSums()
        self._activations = ChannelErrorSums()

    def add(self, result: OwnResult) -> None:
        self._all.add(result.reference, result.quantized)
        self._weights.add(result.reference, result.weights)
        self._activations.add(result.weights, result.quantized)

    def _channels(self) -> list[float]:
        found: list[float] = self._all.channel_sqnr_db.tolist()
        return found

    def layer(
        self, place: ComparedPoint, accumulated: Figures, alone: float | None, bias: float | None
    ) -> LayerErrors:
        """Make the figures.

        Args:
            place: Where the layer's result is.
            accumulated: How far the quantized model is off here.
            alone: What is left of the output that loses most, dB.
            bias: The mean squared error of its bias; None where it has none.
        """
        signal = self._weights.signal
        return LayerErrors(
            str(place.node.name),
            place.node.op_type,
            place.tensor,
            accumulated,
            own=_bounded(self._all.sqnr_db),
            channels=() if place.axis is None else tuple(map(_bounded, self._channels())),
            weights=_bounded(self._weights.sqnr_db),
            bias=None if bias is None else decibels(signal, bias * self._weights.elements),
            activations=_bounded(decibels(signal, self._activations.noise)),
            alone=alone,
        )


def _own_errors(
    forced: TeacherForced, floats: FloatModel, samples: Samples, at_once: int
) -> dict[ComparedPoint, _Own]:
    """Run each layer by itself, and return what is summed of it."""
    found = {place: _Own(place) for place in forced.places}
    few, size = _first(samples, _OWN, at_once)
    for feeds, count in few.batches(size):
        of_batch = forced.run(feeds, floats.run(feeds))
        for sums, result in zip(found.values(), of_batch, strict=True):
            real = real_samples(result._asdict(), size, count)
            sums.add(OwnResult(**real))
    return found


def _elements(graph: Graph, tensors: Iterable[str]) -> int:
    """Count the elements of tensors, for one sample; free dimensions count as 1."""
    shapes = (graph.value(name).shape or () for name in tensors)
    return sum(math.prod(dim for dim in shape if isinstance(dim, int)) for shape in shapes)


def _first(samples: Samples, most: int, at_once: int) -> tuple[Samples, int]:
    """Return the first samples, and the size of their batches."""
    few = samples.first(most)
    return few, few.batch_size(at_once)


def _kept(samples: Samples, most: int) -> list[tuple[Batch, int]]:
    """Keep the first samples."""
    few, size = _first(samples, most, most)
    return [
        # Readers may fill the same arrays again for the next batch.
        ({name: array.copy() for name, array in feeds.items()}, count)
        for feeds, count in few.batches(size)
    ]


def _bias_errors(plan: QuantizedGraph) -> dict[str, float]:
    """Return the mean squared error of each bias by node."""
    found = {}
    for point in quantization_points(plan):
        node = plan.graph.node(point.end.node)
        array = constant_array(point.value)
        if array is not None and (node, bias_slot(node)) in point.readers and array.size:
            stored = point.config.dequantize(point.constant_codes()).astype(np.float64)
            found[point.end.node] = float(np.square(stored - array).mean())
    return found


def _outputs(plan: QuantizedGraph) -> Iterator[ComparedPoint]:
    """Yield the outputs that are computed."""
    for value in plan.graph.outputs:
        node = value.producer()
        if node is not None and plan.graph.is_float(value):
            yield ComparedPoint(node, str(value.name), None)


def errors_of_chains(plan: QuantizedGraph, errors: ModelErrors | None) -> Mapping[str, LayerErrors]:
    """Return the errors of layers by the last node of the fused chain: it writes their result."""
    found = {}
    for layer in () if errors is None else errors.layers:
        last = plan.graph.value(layer.tensor).producer()
        found[layer.name if last is None else str(last.name)] = layer
    return found
