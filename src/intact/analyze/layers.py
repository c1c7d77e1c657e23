"""Errors of each layer, three ways: accumulated, by itself, and what it alone costs the outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from intact._text import finite
from intact.analyze.errors import layer_results
from intact.analyze.side_by_side import Array, ComparedPoint, SideBySide, workers
from intact.analyze.teacher import OwnResult, Replaced, TeacherForced
from intact.calibrate.choice import MOST_DB, FloatRuns
from intact.config import QuantPolicy
from intact.data.batching import Batch, real_samples
from intact.data.stream import Samples
from intact.graph.ops import bias_slot, constant_array
from intact.numerics.answers import are_classes
from intact.numerics.divergence import Divergence
from intact.numerics.metrics import ChannelErrorSums, agreement, decibels
from intact.plan import QuantizedGraph, QuantPoint, quantization_points

MOST_SAMPLES = 64
"""Samples that errors are accumulated over."""
_OWN = 8
"""Of these, those on which each layer is run by itself."""
_ALONE = 2
"""Of these, those on which each layer alone is quantized: the model runs once for each layer."""
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
        alone: The mean of the model's outputs, where this layer alone is quantized; None where no
            output depends on it.
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
        outputs: Of the model's outputs.
        layers: In topological order.
    """

    samples: int
    outputs: tuple[OutputError, ...]
    layers: tuple[LayerErrors, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        found: dict[str, Any] = finite(msgspec.to_builtins(self))
        return found


def model_errors(
    plan: QuantizedGraph, samples: Samples, *, most: int = MOST_SAMPLES, threads: int = 0
) -> ModelErrors:
    """Measure the errors of all layers.

    Errors are accumulated over all samples. Each layer is run by itself on the first 8, and
    quantized alone on the first 2.

    Args:
        plan: A plan with scales.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples.
        threads: Batches that run side by side; 0 takes all cores, four at most.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    places = tuple(layer_results(plan))
    outputs = tuple(_outputs(plan))
    own, alone = _own_errors(plan, places, samples, threads)
    both = SideBySide(plan, (*own, *outputs), threads=threads, integers=False)
    points = {point.end: point for point in quantization_points(plan)}

    def begin(place: ComparedPoint) -> _Sums:
        return _Sums(place, points.get(place.end) if place.end else None)

    total = both.summed(samples, most, begin)
    of_place = dict(zip(both.places, total, strict=True))
    biases = _bias_errors(plan)
    layers = tuple(
        each.layer(
            place,
            of_place[place].figures,
            alone.get(place.tensor),
            biases.get(str(place.node.name)),
        )
        for place, each in own.items()
    )
    found = tuple(of_place[place].output(place.tensor) for place in outputs)
    return ModelErrors(both.samples, found, layers)


class _Sums:
    """What is summed of a tensor in both models."""

    def __init__(self, place: ComparedPoint, point: QuantPoint | None) -> None:
        self.errors = ChannelErrorSums()
        self._values = None if point is None else _divergence(point)
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
    """Return decibels of which only those without noise are no number."""
    return -MOST_DB if math.isnan(level) else max(level, -MOST_DB)


def _divergence(point: QuantPoint) -> Divergence | None:
    """Make bins over the codes of a tensor; None where channels or levels are unlike."""
    config = point.config
    grid = config.grid
    if grid.exponential or not config.policy & QuantPolicy.PER_TENSOR:
        return None
    low, high = config.dequantize(np.array([grid.quant_min, grid.quant_max])).tolist()
    step = (high - low) / (grid.quant_max - grid.quant_min)
    bins = min(_BINS, grid.quant_max - grid.quant_min + 1)
    return Divergence(low - step / 2, high + step / 2, bins)


class _Own:
    """What is summed of a layer that is run by itself."""

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
            accumulated: Of the quantized model.
            alone: Of the model's outputs, dB.
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
    plan: QuantizedGraph, places: Sequence[ComparedPoint], samples: Samples, threads: int
) -> tuple[dict[ComparedPoint, _Own], dict[str, float]]:
    """Run each layer by itself, then the float model with the result of one layer at a time.

    Returns:
        What is summed by layer, and the decibels of the outputs by tensor.
    """
    forced = TeacherForced(plan, places)
    found = {place: _Own(place) for place in forced.places}
    kept: list[tuple[Batch, int]] = []
    results: dict[int, dict[str, Array]] = {}
    limit = _OWN if samples.limit is None else min(_OWN, samples.limit)
    few = replace(samples, limit=limit, progress=None)
    size = few.batch_size(min(_ALONE, limit))
    done = 0
    for feeds, count in few.batches(size):
        of_batch = forced.run(feeds)
        if done < _ALONE:
            own = {name: array.copy() for name, array in feeds.items()}
            kept.append((own, count))
            quantized = (result.quantized for result in of_batch)
            names = (place.tensor for place in forced.places)
            results[id(own)] = dict(zip(names, quantized, strict=True))
        done += count
        for sums, result in zip(found.values(), of_batch, strict=True):
            real = real_samples(result._asdict(), size, count)
            sums.add(OwnResult(**real))
    replaced = Replaced(plan, [place.tensor for place in forced.places])

    def run(tensor: str, feeds: Batch) -> dict[str, Array]:
        return replaced.run(feeds, tensor, results[id(feeds)][tensor])

    runs = FloatRuns(plan.graph, kept, threads=workers(threads))
    tensors = [place.tensor for place in forced.places]
    errors = runs.errors(*(partial(run, tensor) for tensor in tensors))
    outputs = zip(tensors, errors, strict=True)
    return found, {tensor: each.mean for tensor, each in outputs if each.decibels}


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
