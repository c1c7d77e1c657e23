"""How far each layer of the quantised model is from the float model's: computed here only.

Both models run on the same samples, each from its own activations, so that an error is what has
come together up to that layer. Sums are kept, no activations.

Source of the figures by channel: Tengine's ``assess_quant_loss`` (at most 50 images; the cosine of
each channel for Conv and fully connected layers, of the whole tensor for others).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.observe.observer import model_of_outputs
from intact.graph import weight_slot
from intact.numerics.affine import dequantize
from intact.numerics.channel_errors import ChannelErrorSums
from intact.plan import QuantizedGraph, TensorEnd
from intact.program import Tensor
from intact.program.lower import lower
from intact.program.lowering.chains import Points, chains
from intact.run.integer import IntegerEngine
from intact.run.session import Feeds, make_session, run_session
from intact.run.simulate import Simulator
from intact.samples.stream import Samples

MOST_SAMPLES = 50
_BATCH = 10
_CHANNEL_AXES = {"Conv": 1, "ConvTranspose": 1, "Gemm": -1, "MatMul": -1}

_Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class LayerError:
    """One layer, quantised against float.

    Attributes:
        name: Of its (first) node.
        op_type: Of the same.
        tensor: What was compared: the layer's result, behind the activation that is fused to it.
        cosine: Of the whole tensors.
        channel_cosines: Of each output channel of a layer with weights; empty for others.
        sqnr_db: Signal to quantisation noise, dB.
        mse: Mean squared difference.
    """

    name: str
    op_type: str
    tensor: str
    cosine: float
    channel_cosines: tuple[float, ...]
    sqnr_db: float
    mse: float

    @property
    def mean_cosine(self) -> float:
        """The mean over the channels; the tensor's own where there are none."""
        cosines = self.channel_cosines
        return sum(cosines) / len(cosines) if cosines else self.cosine

    @property
    def worst_channel(self) -> tuple[int, float] | None:
        """The channel of the least cosine, and that; None where there are no channels."""
        cosines = self.channel_cosines
        if not cosines:
            return None
        worst = int(np.argmin(cosines))
        return worst, cosines[worst]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; numbers that are not finite become None."""
        return {
            "name": self.name,
            "op_type": self.op_type,
            "tensor": self.tensor,
            "cosine": _finite(self.cosine),
            "mean_cosine": _finite(self.mean_cosine),
            "channel_cosines": [_finite(each) for each in self.channel_cosines],
            "sqnr_db": _finite(self.sqnr_db),
            "mse": _finite(self.mse),
        }


@dataclass(frozen=True)
class QuantLoss:
    """All layers of a plan.

    Attributes:
        samples: How many were run.
        executor: What computed the quantised model: ``"simulate"`` or ``"integer"``.
        layers: In topological order; those that compute with integers.
    """

    samples: int
    executor: str
    layers: tuple[LayerError, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        layers = [layer.to_json() for layer in self.layers]
        return {"samples": self.samples, "executor": self.executor, "layers": layers}


def quant_loss(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    integers: bool = False,
) -> QuantLoss:
    """Compare every quantised layer with the float model's.

    Memory holds the activations of one batch of at most ten samples.

    Args:
        plan: With scales.
        samples: The data; its first ``most`` samples are run.
        most: How many.
        threads: Threads inside one operator; 0 lets the runtime choose.
        integers: Run the integer engine, not the simulation in float32.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    rows = dict(_rows(plan))
    computed: _Quantized
    computed = _Integers(plan, rows, threads) if integers else _Simulated(plan, rows, threads)
    rows = {name: row for name, row in rows.items() if name in computed.names}
    sums = {name: ChannelErrorSums(row.axis) for name, row in rows.items()}
    session = make_session(model_of_outputs(plan.graph, list(rows)), threads=threads)
    limit = most if samples.limit is None else min(most, samples.limit)
    limited = replace(samples, limit=limit)
    size = limited.batch_size(min(_BATCH, limit))
    seen = 0
    for feeds, count in limited.batches(size):
        wanted = run_session(session, feeds, list(rows)) if rows else []
        found = computed.run(feeds)
        for (name, total), reference in zip(sums.items(), wanted, strict=True):
            total.add(_real(reference, size, count), _real(found[name], size, count))
        seen += count
    layers = tuple(_layer(rows[name], name, total) for name, total in sums.items())
    return QuantLoss(seen, "integer" if integers else "simulate", layers)


@dataclass(frozen=True)
class _Row:
    node: ir.Node
    end: TensorEnd | None
    """None for a float output of the model."""
    axis: int | None


def _rows(plan: QuantizedGraph) -> Iterator[tuple[str, _Row]]:
    """Yield the results of quantised layers by tensor name; those that only move codes are none."""
    points = Points.of(plan)
    for chain in chains(plan, points):
        value, head = chain[-1].outputs[0], chain[0]
        if not plan.is_quantized(head):
            continue
        point = points.at_output.get(value)
        if (point is None and not value.is_graph_output()) or (point and point.is_passed_on):
            continue
        axis = _CHANNEL_AXES.get(head.op_type) if weight_slot(head) is not None else None
        yield str(value.name), _Row(head, point.end if point else None, axis)


def _layer(row: _Row, tensor: str, sums: ChannelErrorSums) -> LayerError:
    cosines = () if row.axis is None else tuple(sums.cosines.tolist())
    ends = (str(row.node.name), row.node.op_type, tensor)
    return LayerError(*ends, sums.cosine, cosines, sums.sqnr_db, sums.mse)


class _Quantized(Protocol):
    """The quantised model, observed."""

    names: frozenset[str]

    def run(self, feeds: Feeds) -> _Arrays:
        """Return the float32 values of the layers' results by name."""


class _Simulated:
    def __init__(self, plan: QuantizedGraph, rows: Mapping[str, _Row], threads: int) -> None:
        self._simulator = Simulator(plan, threads=threads)
        points = self._simulator.points
        self._ends = {
            name: row.end for name, row in rows.items() if row.end is not None and row.end in points
        }
        outputs = {name for name, row in rows.items() if row.end is None}
        self.names = frozenset((*self._ends, *outputs))

    def run(self, feeds: Feeds) -> _Arrays:
        outputs, observed = self._simulator.run(feeds, list(self._ends.values()))
        return {**outputs, **{name: observed[end] for name, end in self._ends.items()}}


class _Integers:
    def __init__(self, plan: QuantizedGraph, rows: Mapping[str, _Row], threads: int) -> None:
        program = lower(plan)
        self._engine = IntegerEngine(program, threads=threads)
        by_end = {tensor.end: tensor for tensor in program.tensors() if not tensor.is_constant}
        self._tensors = {
            name: by_end[row.end] for name, row in rows.items() if row.end and row.end in by_end
        }
        outputs = {name for name, row in rows.items() if row.end is None}
        self.names = frozenset((*self._tensors, *outputs))

    def run(self, feeds: Feeds) -> _Arrays:
        found = self._engine.run(feeds, [tensor.name for tensor in self._tensors.values()])
        decoded = {
            name: _decoded(tensor, found.tensors[tensor.name])
            for name, tensor in self._tensors.items()
        }
        return {**found.outputs, **decoded}


def _decoded(tensor: Tensor, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    encoding = tensor.encoding
    if encoding is not None:
        array = dequantize(array, encoding.scale, encoding.zero_point, axis=encoding.axis)
    return tensor.as_in_model(array)


def _real(array: npt.NDArray[Any], size: int, count: int) -> npt.NDArray[Any]:
    """Return the samples that are no padding of the last batch."""
    has_samples = array.ndim > 0 and array.shape[0] == size
    return array[:count] if has_samples else array


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
