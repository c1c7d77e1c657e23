"""Running the float and the quantized model on the same samples, each on its own activations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.observe.observer import model_of_outputs
from intact.data.batching import real_samples
from intact.data.stream import Samples
from intact.engines.integer import IntegerEngine
from intact.engines.session import Feeds, make_session, run_session
from intact.engines.simulate import Simulator
from intact.numerics.affine import dequantize
from intact.plan import QuantizedGraph, TensorEnd
from intact.program import Tensor
from intact.program.lower import lower

_BATCH = 10

Array: TypeAlias = npt.NDArray[Any]
_Arrays: TypeAlias = Mapping["ComparedPoint", Array]


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
    """Runs both models.

    Only the activations of one batch of at most ten samples are in memory.

    Args:
        plan: A plan with scales.
        places: The tensors to compare; those that the executor does not compute are left out.
        threads: Threads inside one operator; 0 lets the runtime choose.
        integers: Run the integer engine, not the simulation in float32.

    Raises:
        PlanError: An end has no scale yet.

    Attributes:
        executor: What computes the quantized model: ``"simulate"`` or ``"integer"``.
        places: The compared tensors, in the order given.
        samples: Number of samples so far.
    """

    def __init__(
        self, plan: QuantizedGraph, places: Iterable[ComparedPoint], *, threads: int, integers: bool
    ) -> None:
        self.executor = "integer" if integers else "simulate"
        kind = _Integers if integers else _Simulated
        self._quantized: _Quantized = kind(plan, tuple(places), threads)
        self.places = self._quantized.places
        self.samples = 0
        self._tensors = list(dict.fromkeys(place.tensor for place in self.places))
        self._session = make_session(model_of_outputs(plan.graph, self._tensors), threads=threads)

    def run(self, samples: Samples, most: int) -> Iterator[list[tuple[Array, Array]]]:
        """Yield for each batch the pairs of float and quantized tensors.

        Args:
            samples: The data.
            most: Maximum number of samples.

        Raises:
            DataError: A sample does not fit the model.
        """
        limit = most if samples.limit is None else min(most, samples.limit)
        limited = replace(samples, limit=limit)
        size = limited.batch_size(min(_BATCH, limit))
        for feeds, count in limited.batches(size):
            arrays = run_session(self._session, feeds, self._tensors) if self._tensors else []
            wanted = real_samples(dict(zip(self._tensors, arrays, strict=True)), size, count)
            found = real_samples(self._quantized.run(feeds), size, count)
            yield [(wanted[place.tensor], found[place]) for place in self.places]
            self.samples += count


class _Quantized(Protocol):
    """The quantized model with observed tensors."""

    places: tuple[ComparedPoint, ...]

    def run(self, feeds: Feeds) -> _Arrays:
        """Return the float32 tensors."""


class _Simulated:
    def __init__(self, plan: QuantizedGraph, places: Sequence[ComparedPoint], threads: int) -> None:
        self._simulator = Simulator(plan, threads=threads)
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
        program = lower(plan)
        self._engine = IntegerEngine(program, threads=threads)
        by_end = {tensor.end: tensor for tensor in program.tensors() if not tensor.is_constant}
        self._tensors = {
            place: by_end[place.end] for place in places if place.end and place.end in by_end
        }
        self.places = tuple(each for each in places if each.end is None or each in self._tensors)

    def run(self, feeds: Feeds) -> _Arrays:
        found = self._engine.run(feeds, [tensor.name for tensor in self._tensors.values()])
        decoded = {
            place: _decoded(tensor, found.tensors[tensor.name])
            for place, tensor in self._tensors.items()
        }
        outputs = {place: found.outputs[place.tensor] for place in self.places if place.end is None}
        return {**outputs, **decoded}


def _decoded(tensor: Tensor, array: Array) -> Array:
    encoding = tensor.encoding
    if encoding is not None:
        array = dequantize(array, encoding.scale, encoding.zero_point, axis=encoding.axis)
    return tensor.as_in_model(array)
