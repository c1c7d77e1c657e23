"""Means and deviations of activations in training, as folded BatchNormalizations remember them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import Graph
from intact.graph.batch_norm import STILL

Doubles = npt.NDArray[np.float64]


class Remembered(NamedTuple):
    """What a BatchNormalization tells of a tensor, ``[channels]`` along axis 1.

    Attributes:
        mean: Of each channel.
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


def _usable(mean: npt.NDArray[np.float32], deviation: Doubles) -> Remembered:
    wide = mean.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(deviation)
    largest = deviation[finite].max(initial=0.0)
    return Remembered(wide, deviation, finite & (deviation > STILL * largest))
