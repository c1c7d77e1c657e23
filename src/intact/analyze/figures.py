"""What the analysis says: figures of layers and edges, as values and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from intact.numerics.moments import Moments
from intact.targets import DType


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


@dataclass(frozen=True)
class TensorMoments:
    """A tensor in numbers, over all samples."""

    mean: float
    std: float
    min: float
    max: float

    @staticmethod
    def of(moments: Moments) -> TensorMoments:
        """Return what was added up."""
        return TensorMoments(moments.mean, moments.std, moments.minimum, moments.maximum)

    def to_json(self) -> dict[str, float | None]:
        """Return JSON values; numbers that are not finite become None."""
        named = {"mean": self.mean, "std": self.std, "min": self.min, "max": self.max}
        return {name: _finite(number) for name, number in named.items()}


@dataclass(frozen=True)
class EdgeStatistic:
    """One edge, before and after quantising.

    Attributes:
        edge: The tensor end at which it is quantised, ``NODE.output[K]`` or ``NODE.input[K]``.
        op_type: Of that node.
        tensor: The value in the float model.
        group: The edge whose scale holds here: edges of one group have one scale. Empty for a
            float output of the model.
        bits: Of its integers; 32 for a float output.
        in_scale: What a step of the integers means that arrive, for each channel; empty where
            floats do (`intact.plan.inference.EdgeTypes`).
        in_dtype: The type in which it arrives: that of an accumulator, of moved codes, or float32.
        out_dtype: The type that holds its integers; float32 for a float output.
        position: In topological order, from 0.
        before: Of the float model.
        after: Of the quantised one.
        sqnr_db: Signal to quantisation noise, dB: how much damage has come together up to here.
        cosine: Of the two.
    """

    edge: str
    op_type: str
    tensor: str
    group: str
    bits: int
    in_scale: tuple[float, ...]
    in_dtype: DType
    out_dtype: DType
    position: int
    before: TensorMoments
    after: TensorMoments
    sqnr_db: float
    cosine: float

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; numbers that are not finite become None."""
        return {
            "edge": self.edge,
            "op_type": self.op_type,
            "tensor": self.tensor,
            "group": self.group,
            "bits": self.bits,
            "in_scale": list(self.in_scale),
            "in_dtype": self.in_dtype.value,
            "out_dtype": self.out_dtype.value,
            "position": self.position,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "sqnr_db": _finite(self.sqnr_db),
            "cosine": _finite(self.cosine),
        }


@dataclass(frozen=True)
class GraphStatistic:
    """All edges of a plan.

    Attributes:
        samples: How many were run.
        executor: What computed the quantised model: ``"simulate"`` or ``"integer"``.
        edges: The most damaged first, or in topological order.
    """

    samples: int
    executor: str
    edges: tuple[EdgeStatistic, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        edges = [edge.to_json() for edge in self.edges]
        return {"samples": self.samples, "executor": self.executor, "edges": edges}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
