"""Writes a comparison of results as tables of text, for terminal, page and notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from intact._text import Figures, first_names, kilobytes, level, widths

if TYPE_CHECKING:
    from intact.analyze.comparison import (
        ComparedNode,
        ComparedResult,
        ComparedTensor,
        Comparison,
        Quantization,
    )
    from intact.analyze.layers import LayerErrors

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "node": "there is no such node in all results",
        "computes": "integers in one, float in another",
        "bits": "the width",
        "granularity": "one scale for the tensor, or one for each channel",
        "quantized": "quantized at this place in one, and not in another",
        "codes": "the range of the codes",
        "scale": "the scale",
        "zero_point": "the zero point",
        "method": "the method that chose the scale",
        "fused": "the node that it is fused into",
        "reason": "why it computes in float",
        "weights": "the weights of the float model",
    }
)
"""What may differ, in the order in which it matters."""

LEAST_CHANGE = 0.1
"""Decibels by which the error of a layer differs where it is listed."""


def figures(found: Comparison) -> Figures:
    """Write the figures of each result: a column each, and a row for what at least one has."""
    outputs = dict.fromkeys(name for result in found.results for name in _outputs(result))
    rows: list[tuple[str, Callable[[ComparedResult], str]]] = [
        ("target", lambda result: result.target),
        ("format", lambda result: ", ".join(result.formats)),
        ("method", lambda result: result.made_with),
        ("integer nodes", lambda result: f"{result.quantized} of {result.nodes}"),
        ("weights", lambda result: widths(result.weight_bits)),
        ("activations", lambda result: widths(result.activation_bits)),
        ("size", lambda result: kilobytes(result.bytes)),
        ("parameters", lambda result: _cost(result, "bytes", kilobytes)),
        ("bit-operations", lambda result: _cost(result, "bitops", lambda cost: f"{cost:.4g}")),
        *((f"SQNR of {name}", _output(name)) for name in outputs),
        ("agreement", _agreement),
        ("top-1", lambda result: _top1(result, 1)),
        ("float top-1", lambda result: _top1(result, 0)),
        (f"top-1 against {found.results[0].name}", _change),
        ("latency", _latency),
    ]
    written = []
    for heading, cell in rows:
        cells = [cell(result) for result in found.results]
        if any(cells):
            written.append((heading, *(each or "-" for each in cells)))
    return Figures("results", ("", *_names(found)), written, found.remarks)


def decisions(found: Comparison) -> Figures:
    """Write what differs but for scales and zero points: nodes that differ alike in one row.

    The last column names the nodes, the last but one counts them.
    """
    groups: dict[_Group, list[str]] = {}
    for node in found.differing:
        for group in _groups(node):
            groups.setdefault(group, []).append(node.name)
    # The sort is stable: within a kind rows stay in the order of the graph.
    rows = sorted(groups.items(), key=lambda item: _ORDER[item[0].kind])
    written = [
        (
            group.place,
            group.kind.replace("_", " "),
            *group.cells,
            str(len(nodes)),
            first_names(nodes),
        )
        for group, nodes in rows
    ]
    headings = ("place", "differs in", *_names(found), "count", "nodes")
    differing = len(found.differing)
    same = f"the same in all {len(found.nodes)} nodes"
    line = f"{differing} of {len(found.nodes)} nodes differ" if differing else same
    return Figures("decisions that differ", headings, written, (f"decisions: {line}",))


def scales(found: Comparison) -> Figures:
    """Write the scales and zero points that differ, those that differ most first."""
    pairs = [
        (node, tensor)
        for node in found.nodes
        for tensor in node.tensors
        if any(kind in tensor.differs for kind in _NUMBERS)
    ]
    pairs.sort(key=lambda pair: -_change_of_scale(pair[1]))
    results = range(len(found.results))
    written = [
        (node.name, tensor.role, *(_scale(node, tensor, at) for at in results))
        for node, tensor in pairs
    ]
    title = "scales and zero points, those that differ most first"
    return Figures(title, ("node", "place", *_names(found)), written, ())


def layers(found: Comparison) -> Figures:
    """Write the errors of layers that differ: by itself and accumulated, dB, in each result."""
    of = [_errors(result) for result in found.results]
    rows: list[tuple[float, LayerErrors, list[LayerErrors | None]]] = []
    shared = 0
    for key in dict.fromkeys(key for errors in of for key in errors):
        each = [errors.get(key) for errors in of]
        there = [layer for layer in each if layer is not None]
        shared += len(there) > 1
        change = _spread([layer.own for layer in there])
        if change >= LEAST_CHANGE:
            rows.append((change, there[0], each))
    rows.sort(key=lambda row: -row[0])
    written = [
        (first.name, first.op_type, *map(_pair, each), _difference(change, each))
        for change, first, each in rows
    ]
    measured = [result.errors.samples for result in found.results if result.errors]
    drawn = "drawn " if found.is_drawn else ""
    title = (
        f"SQNR of layers, dB, on {max(measured, default=0)} {drawn}samples: by itself / "
        "accumulated; those that differ most first"
    )
    same = "the same" if shared else "no layer is in two of the results"
    lines = () if written or not measured else (f"errors of layers by themselves: {same}",)
    return Figures(title, ("layer", "op", *_names(found), "by itself"), written, lines)


def _names(found: Comparison) -> list[str]:
    return [result.name for result in found.results]


def _cost(result: ComparedResult, name: str, write: Callable[[float], str]) -> str:
    return write(result.cost[name]) if name in result.cost else ""


def _outputs(result: ComparedResult) -> Iterator[str]:
    """Yield the outputs whose error is known."""
    if result.errors is not None:
        yield from (each.name for each in result.errors.outputs)
    if result.measured is not None:
        yield from result.measured.sqnr_db


def _output(name: str) -> Callable[[ComparedResult], str]:
    """Write the error of an output: of all data if it was run on data, else of the layers'."""

    def write(result: ComparedResult) -> str:
        if result.measured is not None and name in result.measured.sqnr_db:
            return level(result.measured.sqnr_db[name])
        outputs = () if result.errors is None else result.errors.outputs
        return next((level(each.error.sqnr_db) for each in outputs if each.name == name), "")

    return write


def _agreement(result: ComparedResult) -> str:
    measured = result.measured
    return "" if measured is None or measured.agreement is None else f"{measured.agreement:.2f} %"


def _top1(result: ComparedResult, which: int) -> str:
    """Write the accuracy of the float (0) or the quantized model (1)."""
    measured = result.measured
    if measured is None or measured.top1 is None or math.isnan(measured.top1[which]):
        return ""
    return f"{measured.top1[which]:.2f} %"


def _change(result: ComparedResult) -> str:
    change = None if result.measured is None else result.measured.change
    if change is None:
        return ""
    return f"{change.difference:+.2f} [{change.low:+.2f}, {change.high:+.2f}]"


def _latency(result: ComparedResult) -> str:
    measured = result.measured
    if measured is None or measured.latency_ms is None:
        return ""
    return f"{measured.latency_ms[1]:.2f} ms for {measured.latency_batch}"


# ---- decisions -------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Nodes that differ alike.

    Attributes:
        place: A tensor's role, or ``node``.
        kind: What differs, of `KINDS`.
        cells: What each result has.
    """

    place: str
    kind: str
    cells: tuple[str, ...]


_ORDER = {kind: place for place, kind in enumerate(KINDS)}
_NUMBERS = ("scale", "zero_point")


def _groups(node: ComparedNode) -> Iterator[_Group]:
    """Yield what differs of a node and its tensors, but for scales and zero points."""
    results = range(len(node.each))
    for kind in node.own:
        yield _Group("node", kind, tuple(_decision(node, kind, at) for at in results))
    if "node" in node.own or "computes" in node.own:
        return  # where its tensors are quantized follows from that
    for tensor in node.tensors:
        for kind in tensor.differs:
            if kind not in _NUMBERS:
                cells = (_PARTS[kind](made) if made else "not quantized" for made in tensor.each)
                yield _Group(tensor.role, kind, tuple(cells))


def _decision(node: ComparedNode, kind: str, at: int) -> str:
    """Write what a result decides for a node itself."""
    report = node.each[at]
    if report is None:
        return "no such node"
    if kind == "weights":
        return "as in the first" if node.weights[at] == 0 else "others"
    if kind == "fused":
        return f"into {report.fused_into}" if report.fused_into else "not fused"
    if not report.quantized:
        return f"float: {report.reason}"
    return f"int{report.activation_bits}" if report.activation_bits else "integers"


_PARTS: Mapping[str, Callable[[Quantization], str]] = {
    "quantized": lambda made: f"{made.bits} bits",
    "bits": lambda made: f"{made.bits} bits",
    "granularity": lambda made: "per tensor" if made.axis is None else "per channel",
    "codes": lambda made: f"{made.codes[0]}..{made.codes[1]}",
    "method": lambda made: made.method or "derived",
}


def _change_of_scale(tensor: ComparedTensor) -> float:
    """Return how far the scales are apart, as the logarithm of their ratio."""
    return max((abs(math.log(ratio)) for ratio in tensor.ratios if ratio), default=0.0)


def _scale(node: ComparedNode, tensor: ComparedTensor, at: int) -> str:
    """Write the scale and the zero point that a result has."""
    made, ratio = tensor.each[at], tensor.ratios[at]
    if made is None:
        return "not quantized" if node.each[at] else "no such node"
    changed = "" if ratio in (None, 1.0) else f" ({ratio:.4g} x)"
    text = f"{_range(made.scale, '.4g')}{changed}"
    if "zero_point" in tensor.differs:
        text += f", zero point {_range(made.zero_point, 'd')}"
    return text


def _range(numbers: tuple[float, float] | tuple[int, int], form: str) -> str:
    low, high = (format(each, form) for each in numbers)
    return low if low == high else f"{low}..{high}"


# ---- layers ----------------------------------------------------------------------------------


def _errors(result: ComparedResult) -> dict[tuple[str, str], LayerErrors]:
    errors = () if result.errors is None else result.errors.layers
    return {(layer.name, layer.op_type): layer for layer in errors}


def _spread(decibels: Sequence[float]) -> float:
    finite = [each for each in decibels if math.isfinite(each)]
    # A layer that is exact in one result and not in another differs without bound.
    if len(finite) < len(decibels):
        return math.inf if finite else 0.0
    return max(finite) - min(finite)


def _pair(layer: LayerErrors | None) -> str:
    return "-" if layer is None else f"{_level(layer.own)} / {_level(layer.accumulated.sqnr_db)}"


def _level(decibels: float) -> str:
    return level(decibels).removesuffix(" dB")


def _difference(change: float, each: Sequence[LayerErrors | None]) -> str:
    """Write by how much the second differs from the first, where there are two; else the spread."""
    if not math.isfinite(change):
        return "-"
    first, last = each[0], each[-1]
    if len(each) == 2 and first is not None and last is not None:
        return f"{last.own - first.own:+.1f}"
    return f"{change:.1f}"
