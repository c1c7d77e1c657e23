"""Draws random inputs for checks without data, as calibration saw them, or by type."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.calibrate.statistics import Statistics
from intact.config import QuantState
from intact.data.batching import Batch
from intact.data.feeding import Feeding, takes_feeds
from intact.data.signature import InputSpec, input_specs
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.engines.session import Optimization, make_session, run_session
from intact.errors import DataError, ModelError
from intact.graph import Graph
from intact.numerics.distribution import Distribution
from intact.ops.operators import DequantizeLinear
from intact.plan import QuantizedGraph, quantizes
from intact.plan.provenance import Provenance

_SEED = 20240229
_PIECE = 64
"""Samples generated at a time."""
_OPEN = 32
"""Length of an open axis of which nothing is known: networks halve images up to five times."""
_Draw = Callable[["np.random.Generator", int], npt.NDArray[Any]]  # numpy loads it when it is used
"""Generates so many samples of one input."""


class _Drawn(msgspec.Struct, frozen=True):
    """Samples generated as they are read, so that memory does not grow with their number."""

    count: int
    inputs: dict[str, _Draw]
    is_fed: bool

    def __iter__(self) -> Iterator[Batch]:
        """Yield the same batches in every pass."""
        generator = np.random.default_rng(_SEED)
        for _ in range(self.count if self.is_fed else 0):
            yield {name: draw(generator, 1)[0] for name, draw in self.inputs.items()}
        for start in range(0, 0 if self.is_fed else self.count, _PIECE):
            count = min(_PIECE, self.count - start)
            yield {name: draw(generator, count) for name, draw in self.inputs.items()}


def drawn_samples(plan: QuantizedGraph, statistics: Statistics | None, count: int) -> Samples:
    """Draw inputs as calibration saw them, or else evenly from the ranges of the plan.

    A plan that needed no calibration tells nothing of its inputs: they are drawn from -1 to 1.

    Raises:
        DataError: An input was not observed and is not quantized either.
    """
    if statistics is None:
        try:
            # Ranges of codes are the better guess; free draws only where an input has no quantizer.
            return evenly_drawn_samples(plan, count)
        except DataError:
            sample = None if plan.keeps_runtime else sample_that_runs(plan.graph)
            if sample is None:
                raise
        return _freely_drawn_samples(plan.graph, count, sample)
    return synthetic_samples(plan.graph, statistics, count, plan.provenance)


def any_sample(graph: Graph, absent: str = "") -> Batch:
    """Draw a sample of which only type and shape are known; small, with open axes of 32.

    Whole numbers are 0 or 1, which are valid indices of almost everything.

    Args:
        graph: The model.
        absent: A length that the model leaves open and that is 0, by its name.

    Raises:
        ModelError: An input cannot be given by samples.
    """
    generator = np.random.default_rng(_SEED)
    sample = {}
    names = {str(value.name): value.shape or () for value in graph.inputs}
    for name, spec in input_specs(graph).items():
        opened = [str(dim) == absent and bool(absent) for dim in names.get(name, ())]
        opened += [False] * (len(spec.shape) - len(opened))
        sizes = (0 if opened[axis] else _OPEN if axis else 1 for axis in range(len(spec.shape)))
        given = zip(spec.shape, sizes, strict=True)
        shape = [drawn if size is None else size for size, drawn in given]
        drawn = np.asarray(generator.uniform(-1, 1, shape))
        whole = spec.dtype.kind != "f"
        sample[name] = np.asarray(drawn > 0 if whole else drawn).astype(spec.dtype)
    return sample


def sample_that_runs(graph: Graph) -> Batch | None:
    """Draw a sample that a float model takes, of which only types and shapes are known."""
    with contextlib.suppress(ModelError):
        session = make_session(graph.model, optimization=Optimization.NONE)
        for sample in any_samples(graph):
            with contextlib.suppress(ModelError):
                run_session(session, {**graph.fixed_inputs, **sample})
                return sample
    return None


def any_samples(graph: Graph) -> Iterator[Batch]:
    """Draw samples of which one may run: all lengths open, then each open length as 0 in turn.

    What is handed on from step to step is empty at first: a decoder's keys and values of no words.

    Raises:
        ModelError: An input cannot be given by samples.
    """
    # The axis of samples is left out: a batch of none would run anything, and show nothing.
    yield any_sample(graph)
    lengths = (dim for value in graph.inputs for dim in (value.shape or ())[1:])
    for name in dict.fromkeys(str(dim) for dim in lengths if not isinstance(dim, int)):
        if name not in ("", "None"):
            yield any_sample(graph, name)


def synthetic_samples(
    graph: Graph, statistics: Statistics, count: int, seen: Provenance | None = None
) -> Samples:
    """Draw each element of each input independently from its recorded distribution.

    The marginal distribution is that of the calibration data, so every layer sees plausible
    numbers; the images are noise. Always the same for the same statistics. States are drawn like
    other inputs: the samples are no sequence.

    Args:
        graph: The float model.
        statistics: The statistics of its inputs.
        count: How many samples.
        seen: How the samples of the calibration were fed, and in which shapes.

    Raises:
        DataError: An input was not observed, or has a free dimension besides the batch of which no
            length is known.
        UsageError: ``count`` is not positive.
    """
    form = _Form.of(graph, seen)
    draws = {}
    for name, spec in form.specs.items():
        if name not in statistics.tensors:
            raise _cannot_draw(name, "it was not observed")
        sizes = form.sizes(name)
        if 0 in sizes:  # a cache before the first run: there is nothing to draw
            draws[name] = _evenly((0.0, 0.0), spec, sizes)
        else:
            draws[name] = _draw_as_seen(statistics[name].distribution(), spec, sizes)
    return _open(graph, count, draws, form)


def evenly_drawn_samples(plan: QuantizedGraph, count: int) -> Samples:
    """Draw each element of each input evenly from the range that the plan's quantizer of it has.

    For plans that were not calibrated: of the inputs of a quantized model that was read, only the
    range of their codes is known. Integer inputs that a DequantizeLinear reads are drawn
    from the range of their type. Always the same for the same plan.

    Raises:
        DataError: An input is not quantized, or has a free dimension besides the batch.
        UsageError: ``count`` is not positive.
    """
    form = _Form.of(plan.graph, plan.provenance)
    draws = {
        name: _evenly(_range(plan, name, spec), spec, form.sizes(name))
        for name, spec in form.specs.items()
    }
    return _open(plan.graph, count, draws, form)


def _freely_drawn_samples(graph: Graph, count: int, like: Batch) -> Samples:
    """Draw samples of the shapes of one: floats from -1 to 1, whole numbers 0 or 1."""
    form = _Form.of(graph, None)
    form = msgspec.structs.replace(form, shapes={n: array.shape for n, array in like.items()})
    ends = {
        name: (-1.0, 1.0) if spec.dtype.kind == "f" else (0.0, 1.0)
        for name, spec in form.specs.items()
    }
    draws = {name: _evenly(ends[name], spec, form.sizes(name)) for name, spec in form.specs.items()}
    return _open(graph, count, draws, form)


class _Form(msgspec.Struct, frozen=True):
    """In which form samples are drawn.

    Attributes:
        specs: The model's inputs.
        shapes: What calibration saw of those that leave sizes open, a batch of one.
        is_fed: Each sample has the model's own shapes.
    """

    specs: dict[str, InputSpec]
    shapes: Mapping[str, tuple[int, ...]]
    is_fed: bool

    @staticmethod
    def of(graph: Graph, seen: Provenance | None) -> _Form:
        seen, specs = seen or Provenance(), input_specs(graph)
        is_fed = takes_feeds(specs, Feeding(seen.no_batch, seen.states))
        return _Form(specs, seen.input_shapes, is_fed)

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return the shape of one sample."""
        first = 0 if self.is_fed else 1
        shape = self.shapes.get(name, self.specs[name].shape)[first:]
        sizes = tuple(size for size in shape if size is not None)
        if len(sizes) < len(shape):
            raise _cannot_draw(name, "it has a free dimension besides the batch")
        return sizes


def _open(graph: Graph, count: int, inputs: dict[str, _Draw], form: _Form) -> Samples:
    drawn = _Drawn(count, inputs, form.is_fed)
    feeding = Feeding(no_batch=tuple(inputs)) if form.is_fed else None
    return replace(open_samples(drawn, graph, limit=count, feeding=feeding), count=count)


def _range(plan: QuantizedGraph, name: str, spec: InputSpec) -> tuple[float, float]:
    value = plan.graph.value(name)
    for _, _, config in plan.consumer_configs(value):
        if quantizes(config) or config.state is QuantState.OVERLAPPED:
            return config.dominator.value_range()
    readers = [node.op_type for node, _ in plan.graph.consumers(value)]
    # Wider integers are indices or lengths, of which almost none in the type's range is valid.
    if spec.dtype.kind in "iu" and spec.dtype.itemsize <= 2 and DequantizeLinear.name in readers:
        limits = np.iinfo(spec.dtype)
        return float(limits.min), float(limits.max)
    raise _cannot_draw(name, "the plan does not quantize it")


def _cannot_draw(name: str, reason: str) -> DataError:
    return DataError(
        f"inputs like {name!r} cannot be generated: {reason}", remedy="give samples with --data"
    )


def _cast(values: npt.NDArray[Any], spec: InputSpec, low: float, high: float) -> npt.NDArray[Any]:
    if spec.dtype.kind != "f":
        # Rounding may leave a range whose ends are no integers, where an index would be out of
        # bounds.
        values = np.clip(np.rint(values), low, high)
    return values.astype(spec.dtype)


def _draw_as_seen(distribution: Distribution, spec: InputSpec, sizes: tuple[int, ...]) -> _Draw:
    """Draw from a distribution: a bin by its count, then evenly inside it."""
    ends = np.cumsum(distribution.count)

    def draw(generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        shape = (count, *sizes)
        # By integers: a random float times the count would favour some bins where counts exceed
        # 2**53.
        bins = np.searchsorted(ends, generator.integers(0, ends[-1], shape), side="right")
        low, high = distribution.low[bins], distribution.high[bins]
        # In float64 until here: the sum is rounded once, at the end.
        values = (low + (high - low) * generator.random(shape)).astype(np.float32)
        return _cast(values, spec, distribution.minimum, distribution.maximum)

    return draw


def _evenly(limits: tuple[float, float], spec: InputSpec, sizes: tuple[int, ...]) -> _Draw:
    def draw(generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        return _cast(generator.uniform(*limits, (count, *sizes)), spec, *limits)

    return draw
