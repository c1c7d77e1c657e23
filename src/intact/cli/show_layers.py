"""What is printed of layers and edges, quantized against float."""

from __future__ import annotations

import math

from intact.analyze.errors import GraphStatistic, QuantLoss, TensorMoments
from intact.cli.printing import console, escape, new_table, print_json


def layers(found: QuantLoss | GraphStatistic, *, as_json: bool) -> None:
    """Print what a comparison of both models found."""
    if as_json:
        print_json(found.to_json())
    elif isinstance(found, QuantLoss):
        _quant_loss(found)
    else:
        _graph_statistic(found)


def _quant_loss(found: QuantLoss) -> None:
    """Print how far each layer is from the float model's, in the order of the layers."""
    numbers = ("cosine", "of channels", "worst channel", "SQNR, dB", "mean square error")
    table = new_table(f"{found.samples} samples, against float", ("layer", "op"), numbers=numbers)
    for layer in found.layers:
        worst = layer.worst_channel
        table.add_row(
            escape(layer.name),
            layer.op_type,
            f"{layer.cosine:.6f}",
            f"{layer.mean_cosine:.6f}" if worst is not None else "-",
            f"{worst[1]:.6f} ({worst[0]})" if worst is not None else "-",
            _decibels(layer.sqnr_db),
            f"{layer.mse:.3g}",
        )
    console().print(table)


def _graph_statistic(found: GraphStatistic) -> None:
    """Print every edge before and after quantizing, the most damaged first."""
    numbers = ("bits", "SQNR, dB\ncosine", "mean", "std", "min", "max")
    title = f"{found.samples} samples: float, then quantized"
    table = new_table(title, ("edge\noperator", "from\nto"), numbers=numbers)
    for edge in found.edges:
        table.add_row(
            f"{escape(edge.edge)}\n{edge.op_type}",
            f"{edge.in_dtype}\n{edge.out_dtype}",
            str(edge.bits),
            f"{_decibels(edge.sqnr_db)}\n{edge.cosine:.6f}",
            *_pairs(edge.before, edge.after),
        )
    console().print(table)


def _pairs(before: TensorMoments, after: TensorMoments) -> list[str]:
    names = ("mean", "std", "min", "max")
    return [f"{getattr(before, name):.4g}\n{getattr(after, name):.4g}" for name in names]


def _decibels(decibels: float) -> str:
    return "identical" if decibels == math.inf else f"{decibels:.1f}"
