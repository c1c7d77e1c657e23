"""Reads the means and deviations that BatchNormalizations remember of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import Graph
from intact.graph.batch_norm import STILL
from intact.graph.passes.fold_linear import parameters_of

FIRST = 4
"""Remembered tensors that show what is wrong at the input: the first ones."""

Doubles = npt.NDArray[np.float64]


class Remembered(NamedTuple):
    """What a BatchNormalization tells of a tensor, ``[channels]`` along axis 1.

    Attributes:
        mean: The mean of each channel.
        deviation: Standard deviation; above 0 where the channel is live.
        live: Channels that vary, and of which both are finite; of the others nothing is known.
    """

    mean: Doubles
    deviation: Doubles
    live: npt.NDArray[np.bool_]

    def mismatch(self, mean: Doubles, variance: Doubles) -> float:
        """Return by how much moments differ: root mean square, in deviations of the channel."""
        live = self.live
        off = (mean - self.mean)[live] / self.deviation[live]
        spread = np.sqrt(np.maximum(variance[live], 0)) / self.deviation[live] - 1
        return float(np.sqrt((off**2 + spread**2).mean() / 2))


def remembered(graph: Graph) -> Mapping[ir.Value, Remembered]:
    """Return what is known of tensors, in the order in which they are computed.

    A BatchNormalization gives mean ``beta`` and deviation ``|gamma|``, but for its epsilon; one
    that was folded into the layer behind it has its running statistics of what that layer reads.
    """
    found: dict[ir.Value, Remembered] = {}
    for node in graph.nodes:
        name = str(node.name)
        behind, before = graph.input_batch_norms.get(name), graph.batch_norms.get(name)
        data = node.inputs[0] if node.inputs else None
        with np.errstate(all="ignore"):
            if behind is not None and data is not None and data not in found:
                found[data] = _usable(behind.mean, np.sqrt(behind.variance.astype(np.float64)))
            if before is not None:
                deviation = np.abs(before.ratio) * np.sqrt(before.variance.astype(np.float64))
                # Scales that were folded in later are in gamma and beta, not in the statistics.
                found[node.outputs[0]] = _usable(before.beta, deviation)
    return {value: each for value, each in found.items() if each.live.any()}


def memories_of(graph: Graph) -> dict[str, Remembered]:
    """Return what is remembered of tensors, by name, in the order in which they are computed.

    Of BatchNormalizations that were folded, and of those that stand in the graph.
    """
    folded = {str(value.name): memory for value, memory in remembered(graph).items()}
    found: dict[str, Remembered] = {}
    for node in graph.nodes:
        norm, data = parameters_of(node), node.inputs[0] if node.inputs else None
        if norm is not None and data is not None:
            deviation = np.sqrt(np.maximum(norm.variance.astype(np.float64), 0))
            memory = Remembered(norm.mean.astype(np.float64), deviation, deviation > 0)
            found.setdefault(str(data.name), memory)
        for value in (data, *node.outputs):
            name = "" if value is None else str(value.name)
            if name in folded:
                found.setdefault(name, folded[name])
    return {name: memory for name, memory in found.items() if memory.live.any()}


class SampleMoments(NamedTuple):
    """Moments of the channels of some samples, each ``[samples, channels]``.

    Attributes:
        means: The means of the values.
        squares: Means of the squared values.
    """

    means: Doubles
    squares: Doubles

    @staticmethod
    def of(tensor: npt.NDArray[Any], real: int) -> SampleMoments:
        """Measure the first ``real`` samples of a tensor, whose channels are along axis 1."""
        wide = tensor[:real].astype(np.float64)
        wide = wide.reshape(*wide.shape[:2], -1)
        return SampleMoments(wide.mean(axis=2), (wide**2).mean(axis=2))

    @staticmethod
    def joined(parts: Iterable[SampleMoments]) -> SampleMoments:
        """Join those of several batches."""
        return SampleMoments(*map(np.concatenate, zip(*parts, strict=True)))

    def mismatch(self, memory: Remembered, part: slice = slice(None)) -> float:
        """Return by how much the samples, or some of them, differ from what is remembered."""
        mean = self.means[part].mean(axis=0)
        return memory.mismatch(mean, self.squares[part].mean(axis=0) - mean**2)


def _usable(mean: npt.NDArray[np.float32], deviation: Doubles) -> Remembered:
    wide = mean.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(deviation)
    largest = deviation[finite].max(initial=0.0)
    return Remembered(wide, deviation, finite & (deviation > STILL * largest))
