"""Writes the figures of a plan's nodes as a table, a row a node, and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from intact.analyze.layers import LayerErrors, ModelErrors, errors_of_chains
from intact.plan import QuantizedGraph
from intact.plan.inspection import inspect_plan

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one node. Those that are not known, or do not apply, are None.

    Attributes:
        node: Its name.
        op: Its operator.
        computes: ``integer``, ``float``, or ``stored``: in float, with weights stored as integers.
        activation_bits: Width of its result, or of its first quantized input.
        weight_bits: Width of its weight.
        fused_into: The last node of its fused chain; empty where it is not fused.
        reason: Why it is quantized or not.
        layer: The first node of its fused chain, of which the errors are.
        own_db: Signal to noise of the layer by itself, dB.
        weights_db: The same with only weights and bias quantized.
        bias_db: The same with only the bias quantized.
        activations_db: What quantizing its inputs and its result adds.
        accumulated_db: In the quantized model, with the errors of all layers before.
        alone_db: The model's outputs, where this layer alone is quantized.
        cosine: Cosine of the result in both models.
        mse: Mean squared difference.
        kl: Kullback-Leibler divergence, nats.
    """

    node: str
    op: str
    computes: str
    activation_bits: int | None
    weight_bits: int | None
    fused_into: str
    reason: str
    layer: str = ""
    own_db: float | None = None
    weights_db: float | None = None
    bias_db: float | None = None
    activations_db: float | None = None
    accumulated_db: float | None = None
    alone_db: float | None = None
    cosine: float | None = None
    mse: float | None = None
    kl: float | None = None


def node_figures(plan: QuantizedGraph, errors: ModelErrors | None) -> Iterator[NodeFigures]:
    """Yield the figures of each node, in topological order.

    Nodes of a fused chain have the errors of the chain.

    Args:
        plan: A plan with scales.
        errors: Its layers' errors; None where they were not measured.
    """
    of = errors_of_chains(plan, errors)
    for row in inspect_plan(plan).nodes:
        layer = of.get(row.fused_into or row.node)
        yield NodeFigures(
            node=row.node,
            op=row.op_type,
            computes=row.computes,
            activation_bits=row.activation_bits,
            weight_bits=row.weight_bits,
            fused_into=row.fused_into,
            reason=row.reason,
            **({} if layer is None else _of_layer(layer)),
        )


def csv_of(rows: Iterator[NodeFigures]) -> bytes:
    """Write rows as CSV in UTF-8, with a line of headings; what is not known is empty.

    Infinite decibels, of results that are exact, are ``inf``. A name that a spreadsheet would take
    for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(NodeFigures.__struct_fields__)
    for row in rows:
        writer.writerow(map(_cell, msgspec.structs.astuple(row)))
    return text.getvalue().encode()


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        # Names come from the model, and a spreadsheet that opens the file would run them.
        return f"'{value}" if value.startswith(_FORMULA) else value
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _of_layer(layer: LayerErrors) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "own_db": layer.own,
        "weights_db": layer.weights,
        "bias_db": layer.bias,
        "activations_db": layer.activations,
        "accumulated_db": layer.accumulated.sqnr_db,
        "alone_db": layer.alone,
        "cosine": layer.accumulated.cosine,
        "mse": layer.accumulated.mse,
        "kl": layer.accumulated.kl,
    }
