"""Compares several results of quantization: decisions, errors, cost and accuracy.

For example: ``conv3`` is int8 in one and float in the other, because its target has no kernel.

Nodes are the same where name and operator are. Results of different float models, or of different
targets, are compared in the nodes that they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from intact._text import finite
from intact.analyze import comparison_text
from intact.analyze.comparison_text import KINDS
from intact.analyze.layers import ModelErrors
from intact.calibrate.scales.roles import point_role
from intact.config import TensorQuantConfig
from intact.graph import Graph, Role, is_constant
from intact.numerics.metrics import AccuracyDifference
from intact.plan import Direction, QuantizedGraph, QuantPoint, quantization_points
from intact.plan.inspection import NodeReport, inspect_plan


class Quantization(msgspec.Struct, frozen=True):
    """How a tensor is quantized.

    Attributes:
        bits: Width of the codes.
        codes: Smallest and largest code.
        axis: The channel axis where each channel has a scale; None for one of the tensor.
        channels: Number of scales.
        scale: The smallest and the largest scale.
        zero_point: The smallest and the largest zero point.
        method: The threshold method that chose the scale; empty for a bias, whose scale follows.
    """

    bits: int
    codes: tuple[int, int]
    axis: int | None
    channels: int
    scale: tuple[float, float]
    zero_point: tuple[int, int]
    method: str

    @property
    def centre(self) -> tuple[int, int]:
        """The zero points as codes with a sign have them."""
        # Two targets may hold the same levels, one with and one without a sign; only the codes are
        # shifted.
        offset = 1 << (self.bits - 1) if self.codes[0] >= 0 else 0
        return self.zero_point[0] - offset, self.zero_point[1] - offset


class ComparedTensor(msgspec.Struct, frozen=True):
    """A place where at least one of the results quantizes a tensor.

    Attributes:
        end: The place, ``NODE.input[K]`` or ``NODE.output[K]``.
        tensor: Name of the tensor in the float model.
        role: What it is: ``weight``, ``bias``, ``input`` or ``output`` of the node.
        each: By result; None where it is not quantized there.
        ratios: The scale by that of the first result that has one, in the channel where they
            differ most; None where there are not the same channels.
        differs: What differs, of `KINDS`.
    """

    end: str
    tensor: str
    role: str
    each: tuple[Quantization | None, ...]
    ratios: tuple[float | None, ...]
    differs: tuple[str, ...]


class ComparedNode(msgspec.Struct, frozen=True):
    """A node.

    Attributes:
        name: Its name.
        op_type: Its operator.
        each: What each result decides; None where it has no such node.
        tensors: Where it is quantized.
        weights: Equal numbers where the float models' constants that it reads are equal; empty
            where there is one float model.
        own: What differs of the node itself, of `KINDS`.
    """

    name: str
    op_type: str
    each: tuple[NodeReport | None, ...]
    tensors: tuple[ComparedTensor, ...]
    weights: tuple[int | None, ...]
    own: tuple[str, ...]

    @property
    def differs(self) -> tuple[str, ...]:
        """What differs of the node and of its tensors, in the order in which it matters."""
        found = {*self.own, *(kind for tensor in self.tensors for kind in tensor.differs)}
        return tuple(kind for kind in KINDS if kind in found)


class RunFigures(msgspec.Struct, frozen=True):
    """What running a result on samples gave.

    Attributes:
        samples: Number of samples.
        runtime: What ran the quantized model.
        top1: Accuracy of the float and of the quantized model, percent; None without labels.
        change: Top-1 minus that of the first result on the same samples, points, with its paired
            95 % interval; None for the first, and where there is no accuracy.
        agreement: Share of samples with the same best class as the float model, percent.
        sqnr_db: Signal to quantization noise by output, dB.
        latency_ms: Median time of one batch, float and quantized; None where it was not asked for,
            or the result does not run in ONNX Runtime.
        latency_batch: Samples in that batch.
        why_no_latency: Why there is none, where it was asked for.
    """

    samples: int
    runtime: str
    top1: tuple[float, float] | None
    change: AccuracyDifference | None
    agreement: float | None
    sqnr_db: dict[str, float]
    latency_ms: tuple[float, float] | None
    latency_batch: int
    why_no_latency: str = ""


class ComparedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One of the results.

    Attributes:
        name: How it is called here: what tells its folder from the others.
        target: Its target.
        formats: What it is deployed as, the best first.
        model: Hash of its float model.
        made_with: Methods, passes, search or training that led to it.
        nodes: Number of nodes.
        quantized: How many of them compute with integers.
        weight_bits: Quantized weights by width.
        activation_bits: Quantized activations by width.
        float_bytes: Size of the float model.
        bytes: Size of the deployed model.
        cost: Costs by name, as a search has them: ``bytes`` of the parameters and ``bitops``.
        errors: Errors of layers and outputs, on the same samples where the results take the same;
            None where they were not measured.
        why_no_errors: Why not.
        measured: What running it on data gave; None where there are no data.
    """

    name: str
    target: str
    formats: tuple[str, ...]
    model: str
    made_with: str
    nodes: int
    quantized: int
    weight_bits: dict[int, int]
    activation_bits: dict[int, int]
    float_bytes: int
    bytes: int
    cost: dict[str, float]
    errors: ModelErrors | None = None
    why_no_errors: str = ""
    measured: RunFigures | None = None


class Comparison(msgspec.Struct, frozen=True):
    """What differs between results.

    Attributes:
        results: The results, in the order given.
        nodes: All nodes: in the order of the first result, then those that only others have.
        remarks: What cannot be compared, or only with care, a sentence each.
        is_drawn: Whether errors are of inputs that were drawn from what calibration saw.
    """

    results: tuple[ComparedResult, ...]
    nodes: tuple[ComparedNode, ...]
    remarks: tuple[str, ...]
    is_drawn: bool

    @property
    def shared(self) -> int:
        """How many nodes all results have."""
        return sum(None not in node.each for node in self.nodes)

    @property
    def differing(self) -> tuple[ComparedNode, ...]:
        """The nodes that differ: what matters most first, then in the order of the graph."""
        order = {kind: place for place, kind in enumerate(KINDS)}
        found = [node for node in self.nodes if node.differs]
        return tuple(sorted(found, key=lambda node: order[node.differs[0]]))

    def counts(self) -> dict[str, int]:
        """Count the nodes in which each kind of thing differs."""
        counted = Counter(kind for node in self.nodes for kind in node.differs)
        return {kind: counted[kind] for kind in KINDS if kind in counted}

    def __repr__(self) -> str:
        """Name the results, and count what differs."""
        names = ", ".join(result.name for result in self.results)
        return f"Comparison({names}: {len(self.differing)} of {len(self.nodes)} nodes differ)"

    def _repr_html_(self) -> str:
        """Write figures and decisions as tables for a notebook."""
        tables = (comparison_text.figures(self), comparison_text.decisions(self))
        return "".join(each.to_html() for each in tables)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        found: dict[str, Any] = finite(msgspec.to_builtins(self, str_keys=True))
        # A property is no field, and the conversion leaves it out.
        for made, node in zip(found["nodes"], self.nodes, strict=True):
            made["differs"] = list(node.differs)
        return {**found, "shared": self.shared, "counts": self.counts()}


def compare_plans(plans: Sequence[QuantizedGraph]) -> tuple[ComparedNode, ...]:
    """Compare the decisions of plans, node by node.

    Args:
        plans: Plans with scales, of any targets and float models.
    """
    reports = [{(row.node, row.op_type): row for row in inspect_plan(plan).nodes} for plan in plans]
    points = [_points(plan) for plan in plans]
    # Equal hashes are equal weights: large constants are then not compared.
    is_one_model = len({plan.graph.hash for plan in plans}) == 1
    # A dictionary and no set: the order of the first result is the order of the table.
    keys = dict.fromkeys(key for found in reports for key in found)
    nodes = []
    for key in keys:
        each = tuple(found.get(key) for found in reports)
        weights = () if is_one_model else _weights([plan.graph for plan in plans], each)
        own = (*_differences_of(each), *(("weights",) if {*weights} - {0, None} else ()))
        tensors = tuple(
            _compared(each, [found.get(key, {}) for found in points], end)
            for end in dict.fromkeys(end for found in points for end in found.get(key, {}))
        )
        nodes.append(ComparedNode(*key, each, tensors, weights, own))
    return tuple(nodes)


_Points = dict[str, QuantPoint]
"""Quantization points by end."""


def _points(plan: QuantizedGraph) -> dict[tuple[str, str], _Points]:
    """Return the points of each node; those that only pass on the codes before are left out."""
    found: dict[tuple[str, str], _Points] = {}
    for point in quantization_points(plan):
        if not point.is_passed_on:
            node = plan.graph.node(point.end.node)
            found.setdefault((str(node.name), node.op_type), {})[str(point.end)] = point
    return found


def _differences_of(each: Sequence[NodeReport | None]) -> Iterator[str]:
    """Yield what differs of the node itself."""
    there = [report for report in each if report is not None]
    if len(there) < len(each):
        yield "node"
    if len({report.quantized for report in there}) > 1:
        yield "computes"
    # A reason tells something only of nodes that are float everywhere.
    elif not there[0].quantized and len({report.reason for report in there}) > 1:
        yield "reason"
    elif len({report.fused_into for report in there}) > 1:
        yield "fused"


def _compared(
    reports: Sequence[NodeReport | None], points: Sequence[_Points], end: str
) -> ComparedTensor:
    """Compare a place in all results that have its node."""
    found = [by_end.get(end) for by_end in points]
    first = next(point for point in found if point is not None)
    each = tuple(None if point is None else _quantization(point) for point in found)
    ratios = tuple(None if point is None else _ratio(first, point) for point in found)
    is_there = [report is not None for report in reports]
    role = _role(first)
    differs = _differences(each, ratios, is_there)
    if role == Role.BIAS.value:  # its scale follows from those of input and weight
        differs = (kind for kind in differs if kind in _OF_BIASES)
    return ComparedTensor(end, str(first.value.name), role, each, ratios, tuple(differs))


_OF_BIASES = ("quantized", "bits", "granularity")


def _differences(
    each: Sequence[Quantization | None], ratios: Sequence[float | None], is_there: Sequence[bool]
) -> Iterator[str]:
    """Yield what differs of a tensor, between the results that have its node."""
    if any(one is None for one, there in zip(each, is_there, strict=True) if there):
        yield "quantized"
    found = [one for one in each if one is not None]
    figures: dict[str, set[object]] = {
        "bits": {one.bits for one in found},
        "granularity": {one.axis for one in found},
    }
    yield from (name for name, values in figures.items() if len(values) > 1)
    if len(figures["bits"]) > 1:  # codes, scale and zero point follow
        return
    if len({one.codes for one in found}) > 1:
        yield "codes"
    is_there_and_other = (
        ratio not in (None, 1.0) for one, ratio in zip(each, ratios, strict=True) if one is not None
    )
    if any(is_there_and_other):
        yield "scale"
    if len({one.centre for one in found}) > 1:
        yield "zero_point"
    if len({one.method for one in found}) > 1:
        yield "method"


def _quantization(point: QuantPoint) -> Quantization:
    config = point.config.dominator
    params = config.params
    scale = np.asarray(np.nan if params is None else params.scale).reshape(-1)
    zero_point = np.asarray(0 if params is None else params.zero_point).reshape(-1)
    return Quantization(
        point.config.bits,
        point.config.grid.widest,
        point.config.granularity.axis,
        len(scale),
        _shortest(scale.min(), scale.max()),
        (int(zero_point.min()), int(zero_point.max())),
        "" if point_role(point) is Role.BIAS else _method(config),
    )


def _shortest(*scales: np.floating[Any]) -> tuple[float, float]:
    """Return float32 numbers as the shortest decimals that read back to them, as plan.json does."""
    low, high = (float(str(scale)) for scale in scales)
    return low, high


def _method(config: TensorQuantConfig) -> str:
    return "fixed" if config.detail.get("fixed") else config.observer


def _ratio(first: QuantPoint, point: QuantPoint) -> float | None:
    """Return by what the scale is larger, or smaller, in the channel where it differs most."""
    params, other = first.config.dominator.params, point.config.dominator.params
    if params is None or other is None:
        return None
    one, two = (np.asarray(each.scale, np.float64) for each in (params, other))
    # One scale may be compared with one for each channel, but not two different numbers of
    # channels.
    if one.shape != two.shape and one.ndim and two.ndim:
        return None
    ratios = (two / one).reshape(-1)
    # Half and twice a scale differ alike; those of blocks may be negative.
    return float(ratios[np.argmax(np.abs(np.log(np.abs(ratios))))])


def _role(point: QuantPoint) -> str:
    role = point_role(point)
    if role in (Role.WEIGHT, Role.BIAS):
        return str(role.value)
    return "output" if point.end.direction is Direction.OUTPUT else "input"


def _weights(graphs: Sequence[Graph], each: Sequence[NodeReport | None]) -> tuple[int | None, ...]:
    """Number the sets of constants that a node reads in each float model, from 0."""
    known: list[ir.Node] = []
    found: list[int | None] = []
    for graph, report in zip(graphs, each, strict=True):
        if report is None:
            found.append(None)
            continue
        node = graph.node(report.node)
        same = (at for at, other in enumerate(known) if _same_constants(other, node))
        found.append(next(same, len(known)))
        if found[-1] == len(known):
            known.append(node)
    return tuple(found)


def _same_constants(first: ir.Node, second: ir.Node) -> bool:
    if len(first.inputs) != len(second.inputs):
        return False
    for one, other in zip(first.inputs, second.inputs, strict=True):
        if one is None or other is None:
            continue
        if is_constant(one) and is_constant(other):
            mine, theirs = one.const_value, other.const_value
            if mine is None or theirs is None or mine.shape != theirs.shape:
                return False
            if not np.array_equal(mine.numpy(), theirs.numpy()):
                return False
    return True


def widths(plan: QuantizedGraph) -> tuple[dict[int, int], dict[int, int]]:
    """Count the quantized weights, and the quantized activations, by width; widest first."""
    weights: Counter[int] = Counter()
    activations: Counter[int] = Counter()
    for point in quantization_points(plan):
        role = point_role(point)
        if role is Role.WEIGHT and point.is_constant:
            weights[point.config.bits] += 1
        elif not point.is_constant and not point.is_passed_on:
            activations[point.config.bits] += 1
    return dict(sorted(weights.items(), reverse=True)), dict(
        sorted(activations.items(), reverse=True)
    )
