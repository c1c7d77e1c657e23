"""Handles inputs that hold one number and choose a branch, and plans that they leave empty.

A model may have an input ``training`` of one bool, on which the condition of an If depends. What is
in the branches of an If is not quantized, so there may be nothing else to quantize.
`deciding_inputs` finds such inputs, and `refuse_nothing_to_do` names them in its error, with the
remedy ``--input-value training=false``. `with_values` makes them constants, and the If is resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from intact.errors import PlanError
from intact.graph import Graph
from intact.graph.fixed_inputs import Number, fix_inputs, shown_value, takes_one_value
from intact.ops import MEASURING
from intact.ops.operators import If, is_a
from intact.plan.quantized_graph import QuantizedGraph
from intact.plan.topology import has_caches_only, has_weights_only
from intact.results.recipes import open_fed

if TYPE_CHECKING:
    from intact.recipe.groups import CalibrationOptions, DataSource

Values: TypeAlias = Mapping[str, Number]


def with_values(model: ir.Model, values: Values | None) -> ir.Model:
    """Return a model with inputs fixed to values.

    Raises:
        UsageError: The model has no such input, or its input does not hold that one value.
    """
    return fix_inputs(model, values) if values else model


def deciding_inputs(graph: Graph) -> tuple[str, ...]:
    """Name the inputs of one number on which it depends which branches of If run.

    ``("training",)`` for a model with an input ``training`` of the shape ``[]`` or ``[1]`` that an
    If reads, directly or through other nodes.
    """
    deciding = _deciding(graph)
    inputs = (value for value in graph.inputs if value in deciding and takes_one_value(value))
    return tuple(str(value.name) for value in inputs)


def sizes_decide(graph: Graph) -> bool:
    """Tell whether it depends on sizes of tensors (Shape, Size) which branches of If run."""
    producers = (value.producer() for value in _deciding(graph))
    return any(node is not None and node.op_type in MEASURING for node in producers)


def _deciding(graph: Graph) -> dict[ir.Value, None]:
    """List the values that conditions of If are computed from, back to sizes and inputs."""
    pending = [node.inputs[0] for node in graph.nodes if is_a(node, If) and node.inputs]
    seen: dict[ir.Value, None] = {}
    while pending:
        value = pending.pop()
        if value is None or value in seen:
            continue
        seen[value] = None
        node = value.producer()
        # What is behind a Shape or a Size changes only the numbers in the tensor, not its lengths.
        if node is not None and node.op_type not in MEASURING:
            pending.extend(node.inputs)
    return seen


def values_in_samples(
    names: tuple[str, ...], graph: Graph, options: CalibrationOptions, data: DataSource | None
) -> Values:
    """Return the values that inputs have in all samples; without those that differ.

    An iterator gives its samples once, so nothing is read of it.

    Raises:
        DataError: The samples cannot be read.
    """
    if data is None or isinstance(data, Iterator):
        return {}
    samples = open_fed(data, graph, options, limit=options.samples)
    return samples.common_values(names)


def refuse_nothing_to_do(
    plan: QuantizedGraph, look: Callable[[tuple[str, ...]], Values] | None = None
) -> None:
    """Refuse a plan that leaves all in float.

    Args:
        plan: The plan.
        look: Finds the values that inputs have in all samples, for the remedy: `values_in_samples`.

    Raises:
        PlanError: With the reasons; where an input decides what is computed, with its name.
    """
    decisions = plan.decisions.values()
    if any(each.quantized or has_weights_only(each) or has_caches_only(each) for each in decisions):
        return
    if plan.float16 is not None and plan.float16.nodes:
        return
    refused = f"target {plan.target.name} quantizes no node of this model"
    deciding = deciding_inputs(plan.graph)
    if deciding:
        known = {} if look is None else look(deciding)
        flags = [
            shown_value(name, known[name])
            if name in known
            else f"--input-value {quote(f'{name}=VALUE')}"
            for name in deciding
        ]
        raise PlanError(
            f"{refused}: it computes in branches of If, and input "
            f"{', '.join(map(repr, deciding))} decides which",
            remedy=f"fix it: {' '.join(flags)}",
        )
    reasons = sorted({decision.reason for decision in plan.decisions.values()})
    raise PlanError(
        f"{refused}: {'; '.join(reasons[:3])}",
        remedy="see `intact inspect`, choose another target, or take it as it is: --allow-empty",
    )
