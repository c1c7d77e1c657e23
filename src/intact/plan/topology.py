"""Decides which nodes are quantized, with a reason for every node.

Source: [tvm]. In topological order: an operator without an integer description stays float; one
that also has a float description is quantized only if one of its sources is; all others are
quantized. If the target asks for it, an operator with a float description whose consumers are all
float stays float, since quantizing it would only add an error. For the same reason operators that
only move or join values stay float where all that is computed around them is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from intact.graph import (
    Graph,
    OpKind,
    Role,
    bias_slot,
    constant_array,
    data_slots,
    facts,
    input_role,
    input_value,
    moves_values,
    op_spec,
    output_channels,
    weight_slot,
)
from intact.graph.metadata import FLOAT_KEY, PART_KEY, WHOLE_KEY
from intact.graph.traversal import bodies
from intact.ops.operators import Gemm, is_a
from intact.plan.overrides import Overrides
from intact.plan.quantized_graph import Decision
from intact.plan.stored_weights import CACHES_ONLY, stored_axes, why_not_stored
from intact.targets import DType, OpRule, Target

_ASKED = "kept float as asked (--keep-float "
_DECODED = "decoded in float, which loses less (--quantize-heads undoes it for "
_SPECTRUM = "computes a spectrum in float, which loses less (--quantize-heads undoes it for "
_HUGE = "in float beside a huge channel or token, which loses less (--quantize-heads undoes it for "
_KEPT = frozenset({FLOAT_KEY, WHOLE_KEY})
"""Metadata of nodes that compute in float."""
_WEIGHTS_ONLY = "weights only: "
_MOVED = "it moves values, and nothing around it computes with integers"


def decide(graph: Graph, target: Target, overrides: Overrides) -> dict[str, Decision]:
    """Decide for every node of the graph whether it is quantized.

    Returns:
        The decision by node name, in topological order.
    """
    shapes = graph.shape_or_index_values
    decisions: dict[str, Decision] = {}
    for node in graph.nodes:
        decisions[str(node.name)] = _decide_node(node, target, overrides, decisions, shapes)
    if target.topology.prune_without_consumer:
        _prune(graph, target, decisions)
    # Last, as what moves values depends on all that is around it.
    for moves in _moves(graph, decisions):
        around = {decisions[name].quantized for name in _around(graph, moves, shapes)}
        if around == {False}:
            decisions |= {str(node.name): Decision(False, _MOVED) for node in moves}
    return decisions


def outputs_float(
    node: ir.Node, graph: Graph, rule: OpRule, decisions: dict[str, Decision]
) -> bool:
    """Tell whether a quantized node outputs floats.

    It does if it has no integer output, or if it has both and no consumer reads integers.
    """
    if rule.outputs and all(dtype.is_float for dtype in rule.outputs):
        return True
    return rule.float_output and not _has_quantized_consumer(node, graph, decisions)


def kept_float_entry(decision: Decision) -> str | None:
    """Return the entry of ``Overrides.keep_float`` that keeps a node float; None if another reason
    does.

    >>> kept_float_entry(Decision(False, "kept float as asked (--keep-float conv(1))"))
    'conv(1)'
    """
    for reason in (_ASKED, _DECODED, _SPECTRUM, _HUGE):
        if not decision.quantized and decision.reason.startswith(reason):
            return decision.reason[len(reason) : -1]
    return None


def decoded(names: Iterable[str]) -> dict[str, Decision]:
    """Return the decisions about nodes that decode what a network says, and stay float for that."""
    return {name: Decision(False, f"{_DECODED}{name})") for name in names}


def spectral(names: Iterable[str]) -> dict[str, Decision]:
    """Return the decisions about nodes that compute spectra, and stay float for that."""
    return {name: Decision(False, f"{_SPECTRUM}{name})") for name in names}


def beside_huge(names: Iterable[str]) -> dict[str, Decision]:
    """Return the decisions about nodes around a huge channel or token, which stay float for it."""
    return {name: Decision(False, f"{_HUGE}{name})") for name in names}


def is_decoded(decision: Decision) -> bool:
    """Tell whether a node decodes what a network says, and stays float for that."""
    return not decision.quantized and decision.reason.startswith(_DECODED)


def loses_less_in_float(decision: Decision) -> bool:
    """Tell whether a node stays float because that was measured or known to lose less."""
    return not decision.quantized and decision.reason.startswith((_DECODED, _SPECTRUM, _HUGE))


def is_moved_in_float(decision: Decision) -> bool:
    """Tell whether a node only moves values, and does so in float as all around it is float."""
    return not decision.quantized and decision.reason == _MOVED


def has_weights_only(decision: Decision) -> bool:
    """Tell whether a node computes in float with weights that are stored as integers."""
    return not decision.quantized and decision.reason.startswith(_WEIGHTS_ONLY)


def has_caches_only(decision: Decision) -> bool:
    """Tell whether a node computes in float and keeps what it appends to caches as codes."""
    return not decision.quantized and decision.reason.startswith(CACHES_ONLY)


def only_weights(reason: str) -> Decision:
    """Return the decision about a node that computes in float with weights stored as integers."""
    return Decision(False, f"{_WEIGHTS_ONLY}{reason}")


def adds_to_products(node: ir.Node, slot: int) -> bool:
    """Tell whether a data input is a computed bias, for which 8 bits are too few."""
    spec = op_spec(node)
    return spec is not None and spec.role(slot) is Role.BIAS


def sole_reader(graph: Graph, node: ir.Node) -> tuple[ir.Node, int] | None:
    """Return the only reader of a node's result, as (node, slot); None if there are others."""
    readers = graph.consumers(node.outputs[0])
    if len(node.outputs) != 1 or len(readers) != 1 or node.outputs[0].is_graph_output():
        return None
    return readers[0]


def _decide_node(
    node: ir.Node,
    target: Target,
    overrides: Overrides,
    decisions: dict[str, Decision],
    shapes: frozenset[str],
) -> Decision:
    # What the user asks for and what cannot be comes before the target's rules: the reason should
    # be the one that the user can change.
    is_kept = not {str(node.name), node.op_type}.isdisjoint(overrides.keep_float)
    if target.cache is not None and target.cache.scheme is not None and not is_kept:
        from intact.plan.caches import decide_cache  # which few plans need

        if (decision := decide_cache(node, target, overrides)) is not None:
            return decision
    rule = target.rule_for(node)
    finds = finds_places(node, shapes, target)
    refusal = _refusal(node, overrides, shapes, finds=finds) or _whole_refusal(node, target)
    if refusal:
        return Decision(False, refusal)
    if rule is None:
        return Decision(False, f"target {target.name} describes no integer {node.op_type}")
    if not rule.quantize:
        return _decide_float(node, target, rule)
    if target.activation_scheme(rule).dynamic:
        return _decide_dynamic(node, target, rule)
    return _decide_integer(node, target, rule, decisions)


def _decide_integer(
    node: ir.Node, target: Target, rule: OpRule, decisions: dict[str, Decision]
) -> Decision:
    """Decide about a node whose scales calibration gives."""
    if _adds_computed_bias(node) and _adds_integers(target, rule):
        return Decision(
            False, f"the model computes its bias, and target {target.name} adds integers only"
        )
    if rule.float and not _has_quantized_source(node, decisions):
        return Decision(False, "none of its inputs comes from a quantized node")
    return Decision(True, f"target {target.name} computes {node.op_type} with integers")


def _decide_float(node: ir.Node, target: Target, rule: OpRule) -> Decision:
    """Decide about a node that computes in float: its weights may be stored as integers."""
    scheme = target.weight_scheme(rule)
    if rule.weights_only and stored_axes(node, scheme, target):
        return only_weights(rule.reason)
    missing = why_not_stored(node, scheme, target) if rule.weights_only else ""
    return Decision(False, missing or rule.reason)


def _decide_dynamic(node: ir.Node, target: Target, rule: OpRule) -> Decision:
    """Decide about a dense layer whose data is quantized while it runs: its kernels are plain."""
    scheme = target.weight_scheme(rule)
    if scheme.block is not None and not stored_axes(node, scheme, target):
        return Decision(False, why_not_stored(node, scheme, target))
    gemm = Gemm.of(node) if is_a(node, Gemm) else Gemm()
    slot = bias_slot(node)
    bias = None if slot is None else input_value(node, slot)
    if gemm.transA or gemm.alpha != 1.0 or (bias is not None and gemm.beta != 1.0):
        return Decision(False, "its left operand is transposed, or it has factors alpha and beta")
    if bias is not None and not _is_row(bias, output_channels(node)):
        return Decision(False, "its bias is not one constant number an output channel")
    return Decision(
        True,
        f"target {target.name} computes {node.op_type} with integers, and quantizes its input "
        "while it runs",
    )


def _is_row(bias: ir.Value, channels: int | None) -> bool:
    array = constant_array(bias)
    if array is None or array.size not in (1, channels):
        return False
    return array.size == 1 or array.shape[-1] == channels


def finds_places(node: ir.Node, shapes: frozenset[str], target: Target) -> bool:
    """Tell whether a target compares integers of data in a node that gives whole numbers.

    Args:
        node: The node, as ArgMax.
        shapes: Names of values that are shapes or indices.
        target: The hardware.
    """
    rule = target.rule_for(node)
    if rule is None or not rule.quantize or Graph.is_float(node.outputs[0]):
        return False
    reads = any(str(node.inputs[slot].name) not in shapes for slot in data_slots(node))  # type: ignore[union-attr]
    return reads and facts(node).decides


def _refusal(
    node: ir.Node, overrides: Overrides, shapes: frozenset[str], *, finds: bool = False
) -> str:
    """Return why a node is not for integers on any target, "" if it may be.

    Args:
        node: The node.
        overrides: The user's.
        shapes: Names of values that are shapes or indices.
        finds: Its results are whole numbers by type, and the target makes them of integers.
    """
    for name in (str(node.name), node.op_type):
        if name in overrides.keep_float:
            return f"{_ASKED}{name})"
    if op_spec(node) is None or not _KEPT.isdisjoint(node.metadata_props):
        return _why_float(node)
    if not finds and all(str(output.name) in shapes for output in node.outputs):
        return "computes shapes or indices only"
    weight = weight_slot(node)
    if weight is not None and _is_empty(node.inputs[weight]):
        return "its weight is empty"
    values = [node.inputs[slot] for slot in data_slots(node)]
    values += [] if finds else [node.outputs[0]]
    dtypes = {value.dtype for value in values if value is not None}
    # Doubles and integers that compute: their results are not those of float32, on which all scales
    # rest.
    if dtypes != {ir.DataType.FLOAT}:
        odd = next(dtype for dtype in dtypes if dtype is not ir.DataType.FLOAT)
        return f"its data is {odd.name.lower() if odd else 'of unknown type'}, not float32"
    is_endless = moves_values(node) and _is_endless(node.inputs[0])
    return "its table holds infinities, for which there are no codes" if is_endless else ""


def _is_endless(value: ir.Value | None) -> bool:
    """Tell whether a constant holds infinities, as a row of a table does that masks what is padded.

    One with NaN is none: it is refused, with what to do.
    """
    array = constant_array(value)
    if array is None or not array.size or array.dtype.kind != "f":
        return False
    # The ends alone: no copy of a large table is made.
    ends = np.array([array.min(), array.max()])
    return bool(np.isinf(ends).any() and not np.isnan(ends).any())


def _why_float(node: ir.Node) -> str:
    """Say why a node stays float: as it was added so, or its operator is not known or expanded."""
    if why := node.metadata_props.get(FLOAT_KEY):
        return why
    kept_whole = node.metadata_props.get(WHOLE_KEY, "")
    if next(bodies(node), None) is not None:
        why = f": {kept_whole}" if kept_whole else ""
        return f"what is inside of a {node.op_type} computes in float{why}"
    if kept_whole:
        return f"intact does not write this {node.op_type} as simpler operators: {kept_whole}"
    origin = f" of domain {node.domain!r}" if node.domain else ""
    return f"op {node.op_type}{origin} is not in the op table, so it stays float"


def _whole_refusal(node: ir.Node, target: Target) -> str:
    """Return why the target keeps the operator float that a node was expanded from."""
    whole = node.metadata_props.get(PART_KEY, "")
    reason = target.float_reason(whole) if whole else ""
    return f"a part of {whole}: {reason}" if reason else ""


def _adds_computed_bias(node: ir.Node) -> bool:
    """Tell whether a product adds a computed bias, which cannot be quantized beforehand."""
    return any(adds_to_products(node, slot) for slot in data_slots(node))


def _adds_integers(target: Target, rule: OpRule) -> bool:
    factors = (target.activation_scheme(rule), target.weight_scheme(rule))
    integers = (DType.INT32, DType.INT64)
    return target.bias.dtype in integers and not any(scheme.is_float for scheme in factors)


def _is_empty(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and value.const_value.size == 0


def _has_quantized_source(node: ir.Node, decisions: dict[str, Decision]) -> bool:
    return any(decisions[str(producer.name)].quantized for producer in _producers(node))


def _has_quantized_consumer(node: ir.Node, graph: Graph, decisions: dict[str, Decision]) -> bool:
    for output in node.outputs:
        for consumer, slot in graph.consumers(output):
            if decisions[str(consumer.name)].quantized and input_role(consumer, slot) in (
                Role.DATA,
                Role.WEIGHT,
            ):
                return True
    return False


def _prune(graph: Graph, target: Target, decisions: dict[str, Decision]) -> None:
    """Set nodes that no quantized node reads back to float, from the outputs upwards."""
    for node in reversed(graph.nodes):
        if not decisions[str(node.name)].quantized:
            continue
        rule = target.rule_for(node)
        if rule is None or not rule.float or _has_quantized_consumer(node, graph, decisions):
            continue
        if _follows_integer_only(node, graph, target, decisions):
            continue
        decisions[str(node.name)] = Decision(False, "nothing that reads it computes with integers")


def _moves(graph: Graph, decisions: dict[str, Decision]) -> Iterator[frozenset[ir.Node]]:
    """Yield the quantized nodes that only move or join values, those behind each other together."""
    groups: dict[ir.Node, set[ir.Node]] = {}
    for node in graph.nodes:
        if not decisions[str(node.name)].quantized or not _only_moves(node):
            continue
        group = groups[node] = {node}
        for before in _producers(node):
            # Groups are merged as they meet; the smaller part of each chain is renamed, which is
            # short.
            joined = groups.get(before, group)
            if joined is not group:
                group |= joined
                groups |= dict.fromkeys(joined, group)
    for group in {id(group): group for group in groups.values()}.values():
        yield frozenset(group)


def _only_moves(node: ir.Node) -> bool:
    spec = op_spec(node)
    return moves_values(node) or (spec is not None and spec.kind is OpKind.JOIN)


def _around(graph: Graph, nodes: Collection[ir.Node], shapes: frozenset[str]) -> Iterator[str]:
    """Yield the names of the nodes that give others data, or read theirs, but for their shapes."""
    for node in nodes:
        readers = (reader for value in node.outputs for reader, _ in graph.consumers(value))
        for other in (*_producers(node), *readers):
            computes = any(str(value.name) not in shapes for value in other.outputs)
            if other not in nodes and computes:
                yield str(other.name)


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that give a node its data."""
    for slot in data_slots(node):
        value = node.inputs[slot]
        producer = None if value is None else value.producer()
        if producer is not None:
            yield producer


def _follows_integer_only(
    node: ir.Node, graph: Graph, target: Target, decisions: dict[str, Decision]
) -> bool:
    """Tell whether a node is the fused activation of one that must output integers anyway."""
    spec = op_spec(node)
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if source is None or spec is None or spec.kind is not OpKind.ACTIVATION:
        return False
    if not decisions[str(source.name)].quantized or sole_reader(graph, source) is None:
        return False
    rule = target.rule_for(source)
    fused = any(
        source.op_type in first and node.op_type in second
        for fusion in target.fusions
        for first, second in zip(fusion.pattern, fusion.pattern[1:], strict=False)
    )
    return fused and rule is not None and not rule.float and not rule.float_output
