"""Prints the errors of layers and edges, quantized against float."""

from __future__ import annotations

import math

from intact.analyze.errors import GraphStatistic, QuantLoss, TensorMoments
from intact.analyze.layers import LayerErrors, ModelErrors
from intact.cli.markup import escape
from intact.cli.printing import new_table, print_json, say, show_table

_SHOWN = 10
"""Layers that are listed: those that cost the outputs most."""


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
    show_table(table)


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
    show_table(table)


def _pairs(before: TensorMoments, after: TensorMoments) -> list[str]:
    names = ("mean", "std", "min", "max")
    return [f"{getattr(before, name):.4g}\n{getattr(after, name):.4g}" for name in names]


def _decibels(decibels: float) -> str:
    return "identical" if decibels == math.inf else f"{decibels:.1f}"


def model_errors(errors: ModelErrors) -> None:
    """Print the layers that cost the outputs most, each error as signal to noise in dB."""
    ranked = sorted(errors.layers, key=_cost)
    count, shown = len(ranked), ranked[:_SHOWN]
    which = f"the {len(shown)} of {count} layers that cost most" if count > _SHOWN else "layers"
    numbers = ("alone", "by itself", "weights", "activations", "bias", "accumulated")
    table = new_table(f"{which}; signal to noise, dB", ("layer", "op"), numbers=numbers)
    for layer in shown:
        figures = (layer.alone, layer.own, layer.weights, layer.activations, layer.bias)
        row = ("-" if each is None else _decibels(each) for each in figures)
        accumulated = _decibels(layer.accumulated.sqnr_db)
        table.add_row(escape(layer.name), layer.op_type, *row, accumulated)
    show_table(table)
    say(
        f"alone: of the output that loses most, where only this layer is quantized "
        f"({errors.samples_alone} samples); by itself: of its result, on "
        "the float model's inputs; accumulated: of its result in the quantized model "
        f"({errors.samples} samples)"
    )
    for output in errors.outputs:
        if output.agreement is not None:
            say(
                f"output {escape(output.name)}: {output.agreement:.1f} % of {errors.samples} "
                "decisions agree with the float model's"
            )


def _cost(layer: LayerErrors) -> tuple[bool, float]:
    """Sort layers by what they cost; those that no output depends on, and NaN, at the end."""
    alone = layer.alone
    return alone is None or math.isnan(alone), alone or 0.0
