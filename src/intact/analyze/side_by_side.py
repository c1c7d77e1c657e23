"""Runs the float and the quantized model side by side, each on its own activations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy.typing as npt
import onnx_ir as ir

from intact.data.batching import real_samples
from intact.data.stream import Samples
from intact.engines.session import Feeds, FloatModel
from intact.engines.simulate import Simulator
from intact.limits import HELD_AT_ONCE
from intact.numerics.affine import dequantize
from intact.plan import QuantizedGraph, TensorEnd
from intact.program import Tensor
from intact.workers.threads import map_ahead

_MOST_WORKERS = 4

Array: TypeAlias = npt.NDArray[Any]
_Arrays: TypeAlias = Mapping["ComparedPoint", Array]


class Accumulator(Protocol):
    """Sums over the values of a tensor in both models."""

    def add(self, reference: Array, actual: Array, /) -> None:
        """Add some samples of both."""

    def join(self, more: Self, /) -> None:
        """Add what was summed of other samples."""


Sums = TypeVar("Sums", bound=Accumulator)


@dataclass(frozen=True)
class ComparedPoint:
    """A tensor that is compared between both models.

    Attributes:
        node: The node that it is reported for.
        tensor: Name of the tensor in the float model.
        end: The end that names the quantization point; None for a float output of the model.
        axis: Channel axis, if errors are computed per channel.
    """

    node: ir.Node
    tensor: str
    end: TensorEnd | None
    axis: int | None = None


class SideBySide:
    """Runs both models, some batches at a time.

    Each batch is run by one thread, so that floats do not depend on the number of threads.

    Args:
        plan: A plan with scales.
        places: The tensors to compare; those that the executor does not compute are left out.
        threads: Batches that run side by side, four at most; 0 takes all cores. Threads of the
            integer engine, which runs one batch at a time.
        integers: Run the integer engine, not the simulation in float32.
        floats: The float model; it has the tensors of the places. Built where there is none.

    Raises:
        PlanError: An end has no scale yet.

    Attributes:
        executor: What computes the quantized model: ``"integer"`` or ``"simulate"``.
        places: The compared tensors, in the order given.
        samples: Number of samples so far.
    """

    def __init__(
        self,
        plan: QuantizedGraph,
        places: Iterable[ComparedPoint],
        *,
        threads: int,
        integers: bool,
        floats: FloatModel | None = None,
    ) -> None:
        self.executor = "integer" if integers else "simulate"
        # The engine has threads of its own, and counts overflows over all that it runs.
        self._workers = 1 if integers else workers(threads)
        self._quantized: _Quantized = (
            _Integers(plan, tuple(places), threads) if integers else _Simulated(plan, tuple(places))
        )
        self.places = self._quantized.places
        self.samples = 0
        self._tensors = list(dict.fromkeys(place.tensor for place in self.places))
        self._floats = floats or FloatModel(
            plan.graph, self._tensors, threads=threads if integers else 1
        )

    def summed(
        self, samples: Samples, most: int, begin: Callable[[ComparedPoint], Sums]
    ) -> list[Sums]:
        """Sum the float and the quantized tensor of each place.

        Args:
            samples: The data.
            most: Maximum number of samples.
            begin: Makes the empty sums of a place; called in several threads.

        Returns:
            The sums, in the order of the places.

        Raises:
            DataError: A sample does not fit the model.
        """
        limited = replace(samples.first(most), progress=samples.progress)
        size = limited.batch_size(HELD_AT_ONCE)

        def batches() -> Iterator[tuple[Feeds, int]]:
            for feeds, count in limited.batches(size):
                self.samples += count
                # Batches are read ahead, and readers may fill the same arrays again.
                yield {name: array.copy() for name, array in feeds.items()}, count

        def compare(batch: tuple[Feeds, int]) -> list[Sums]:
            feeds, count = batch
            wanted = real_samples(self._floats.run(feeds, self._tensors), size, count)
            found = real_samples(self._quantized.run(feeds), size, count)
            sums = [begin(place) for place in self.places]
            for each, place in zip(sums, self.places, strict=True):
                each.add(wanted[place.tensor], found[place])
            return sums

        total = [begin(place) for place in self.places]
        # Joined in the order of the batches, whatever thread was first: floats that are added in
        # another order differ.
        for of_batch in map_ahead(compare, batches(), self._workers, self._workers + 1):
            for each, more in zip(total, of_batch, strict=True):
                each.join(more)
        return total


def workers(threads: int) -> int:
    """Return how many batches run side by side: each holds all activations of its samples."""
    return min(threads or os.cpu_count() or 1, _MOST_WORKERS)


class _Quantized(Protocol):
    """The quantized model with observed tensors."""

    places: tuple[ComparedPoint, ...]

    def run(self, feeds: Feeds) -> _Arrays:
        """Return the float32 tensors."""


class _Simulated:
    def __init__(self, plan: QuantizedGraph, places: Sequence[ComparedPoint]) -> None:
        floats = [place.tensor for place in places if place.end is None]
        self._simulator = Simulator(plan, threads=1, tensors=floats)
        points = self._simulator.points
        self.places = tuple(each for each in places if each.end is None or each.end in points)

    def run(self, feeds: Feeds) -> _Arrays:
        ends = [place.end for place in self.places if place.end is not None]
        outputs, observed = self._simulator.run(feeds, ends)
        return {
            place: outputs[place.tensor] if place.end is None else observed[place.end]
            for place in self.places
        }


class _Integers:
    def __init__(self, plan: QuantizedGraph, places: Sequence[ComparedPoint], threads: int) -> None:
        from intact.engines.integer import IntegerEngine  # compiled code, slow to load
        from intact.program.lower import lower

        program = lower(plan)
        self._engine = IntegerEngine(program, threads=threads)
        made = [tensor for tensor in program.tensors() if not tensor.is_constant]
        by_end = {tensor.end: tensor for tensor in made}
        floats = {tensor.value: tensor for tensor in made if tensor.encoding is None}
        self._tensors = {
            place: by_end[place.end] for place in places if place.end and place.end in by_end
        }
        self._tensors |= {
            place: floats[place.tensor]
            for place in places
            if place.end is None and place.tensor not in program.outputs
        }
        self.places = tuple(each for each in places if each.end is None or each in self._tensors)

    def run(self, feeds: Feeds) -> _Arrays:
        found = self._engine.run(feeds, [tensor.name for tensor in self._tensors.values()])
        decoded = {
            place: _decoded(tensor, found.tensors[tensor.name])
            for place, tensor in self._tensors.items()
        }
        outputs = {
            place: found.outputs[place.tensor]
            for place in self.places
            if place.end is None and place not in self._tensors
        }
        return {**outputs, **decoded}


def _decoded(tensor: Tensor, array: Array) -> Array:
    encoding = tensor.encoding
    if encoding is not None:
        array = dequantize(array, encoding.scale, encoding.zero_point, axis=encoding.axis)
    return tensor.as_in_model(array)
