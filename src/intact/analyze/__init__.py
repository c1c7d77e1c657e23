"""Quantization errors of a model, layer by layer."""

from __future__ import annotations

from intact.analyze.errors import (
    EdgeStatistic,
    GraphStatistic,
    LayerError,
    QuantLoss,
    TensorMoments,
    inspect_graph_statistic,
    quant_loss,
)

__all__ = [
    "EdgeStatistic",
    "GraphStatistic",
    "LayerError",
    "QuantLoss",
    "TensorMoments",
    "inspect_graph_statistic",
    "quant_loss",
]
