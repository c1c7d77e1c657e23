"""What is printed of a comparison of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from intact.analyze.compare import (
    KINDS,
    ComparedNode,
    ComparedResult,
    ComparedTensor,
    Comparison,
    Quantization,
)
from intact.analyze.layers import LayerErrors
from intact.cli.phases import with_phases
from intact.cli.printing import console, escape, first_names, new_table, print_json, say
from intact.flow.text import kilobytes

if TYPE_CHECKING:
    from intact.cli.tables import Table

_MOST_ROWS = 20
"""Rows of a table, where not all are asked for."""
_LEAST_CHANGE = 0.1
"""Decibels by which the error of a layer changes where it is listed."""


def as_json(found: Comparison) -> None:
    """Print all that was found."""
    print_json(with_phases(found.to_json()))


def comparison(found: Comparison, *, every: bool) -> None:
    """Print the figures of the results, then the decisions and layers that differ.

    Args:
        found: What was found.
        every: Print all rows, not those that matter most.
    """
    names = [escape(result.name) for result in found.results]
    table = new_table("results", ("",), numbers=names)
    for heading, cells in _figures(found):
        table.add_row(escape(heading), *map(escape, cells))
    console().print(table)
    for remark in found.remarks:
        say(f"[yellow]note[/] {escape(remark)}")
    _decisions(found, names, every=every)
    _layers(found, names, every=every)


_Row = tuple[str, Callable[[ComparedResult], str]]


def _figures(found: Comparison) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the first table: what at least one result has."""
    outputs = dict.fromkeys(
        output.name for result in found.results if result.errors for output in result.errors.outputs
    )
    rows: list[_Row] = [
        ("target", lambda result: result.target),
        ("format", lambda result: ", ".join(result.formats)),
        ("method", lambda result: result.made_with),
        ("integer nodes", lambda result: f"{result.quantized} of {result.nodes}"),
        ("weights", lambda result: _widths(result.weight_bits)),
        ("activations", lambda result: _widths(result.activation_bits)),
        ("size", lambda result: kilobytes(result.bytes)),
        ("parameters", lambda result: _cost(result, "bytes", kilobytes)),
        ("bit-operations", lambda result: _cost(result, "bitops", lambda cost: f"{cost:.4g}")),
        *((f"SQNR of {name}", lambda result, name=name: _output(result, name)) for name in outputs),
        ("agreement", _agreement),
        ("top-1", _accuracy),
        ("float top-1", _float_accuracy),
        (f"top-1 against {found.results[0].name}", _change),
        ("latency", _latency),
    ]
    for heading, cell in rows:
        cells = [cell(result) for result in found.results]
        if any(cells):
            yield heading, [each or "-" for each in cells]


def _widths(counts: Mapping[int, int]) -> str:
    if len(counts) == 1:
        return f"{next(iter(counts))} bits"
    return ", ".join(f"{count} of {bits} bits" for bits, count in counts.items())


def _cost(result: ComparedResult, name: str, write: Callable[[float], str]) -> str:
    return write(result.cost[name]) if name in result.cost else ""


def _output(result: ComparedResult, name: str) -> str:
    """Write the error of an output: of all data if it was run on data, else of the layers'."""
    if result.measured is not None and name in result.measured.sqnr_db:
        return _decibels(result.measured.sqnr_db[name])
    outputs = () if result.errors is None else result.errors.outputs
    return next((_decibels(each.error.sqnr_db) for each in outputs if each.name == name), "")


def _agreement(result: ComparedResult) -> str:
    measured = result.measured
    return "" if measured is None or measured.agreement is None else f"{measured.agreement:.2f} %"


def _accuracy(result: ComparedResult) -> str:
    measured = result.measured
    return "" if measured is None or measured.top1 is None else _percent(measured.top1[1])


def _float_accuracy(result: ComparedResult) -> str:
    measured = result.measured
    return "" if measured is None or measured.top1 is None else _percent(measured.top1[0])


def _percent(figure: float) -> str:
    return "" if math.isnan(figure) else f"{figure:.2f} %"


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


def _decibels(decibels: float) -> str:
    if math.isnan(decibels):
        return "-"
    return "identical" if decibels == math.inf else f"{decibels:.1f} dB"


def _decisions(found: Comparison, names: Sequence[str], *, every: bool) -> None:
    """Print which nodes differ in what: those that differ alike in one row, scales one by one."""
    differing = found.differing
    if not differing:
        say(f"decisions: the same in all {len(found.nodes)} nodes")
        return
    say(f"decisions: {len(differing)} of {len(found.nodes)} nodes differ")
    groups: dict[_Group, list[str]] = {}
    for node in differing:
        for group in _groups(node):
            groups.setdefault(group, []).append(node.name)
    rows = sorted(groups.items(), key=lambda item: _ORDER[item[0].kind])
    _table(
        new_table("decisions that differ", ("place", "differs in", *names, "nodes")),
        [(group.place, _word(group.kind), *group.cells, _named(of)) for group, of in rows],
        every=every,
    )
    scales = sorted(
        ((node, tensor) for node in differing for tensor in node.tensors if _has_scales(tensor)),
        key=lambda pair: -_change_of_scale(pair[1]),
    )
    _table(
        new_table(
            "scales and zero points, those that differ most first", ("node", "place", *names)
        ),
        [
            (node.name, tensor.role, *(_scale(tensor, at) for at in range(len(names))))
            for node, tensor in scales
        ],
        every=every,
    )


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


def _word(kind: str) -> str:
    return kind.replace("_", " ")


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
                cells = (_PARTS[kind](each) if each else "not quantized" for each in tensor.each)
                yield _Group(tensor.role, kind, tuple(cells))


def _decision(node: ComparedNode, kind: str, at: int) -> str:
    """Write what a result decides for a node itself."""
    report = node.each[at]
    if report is None:
        return "no such node"
    if kind == "weights":
        return "as in the first" if node.weights[at] == node.weights[0] else "others"
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


def _has_scales(tensor: ComparedTensor) -> bool:
    return any(kind in tensor.differs for kind in _NUMBERS)


def _change_of_scale(tensor: ComparedTensor) -> float:
    """Return how far the scales are apart, as the logarithm of their ratio."""
    return max((abs(math.log(ratio)) for ratio in tensor.ratios if ratio), default=0.0)


def _scale(tensor: ComparedTensor, at: int) -> str:
    """Write the scale and the zero point that a result has."""
    made, ratio = tensor.each[at], tensor.ratios[at]
    if made is None:
        return "not quantized"
    changed = "" if ratio in (None, 1.0) else f" ({ratio:.4g} x)"
    text = f"{_range(made.scale, '.4g')}{changed}"
    if "zero_point" in tensor.differs:
        text += f", zero point {_range(made.zero_point, 'd')}"
    return text


def _range(numbers: tuple[float, float] | tuple[int, int], form: str) -> str:
    low, high = (format(each, form) for each in numbers)
    return low if low == high else f"{low}..{high}"


def _named(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)}: {first_names(nodes)}"


def _table(table: Table, rows: Sequence[Sequence[str]], *, every: bool) -> None:
    """Print rows, if there are any; the first of many."""
    shown = rows if every else rows[:_MOST_ROWS]
    for row in shown:
        table.add_row(*map(escape, row))
    if shown:
        console().print(table)
    _more(len(rows) - len(shown), "rows")


def _layers(found: Comparison, names: Sequence[str], *, every: bool) -> None:
    """Print the layers whose errors differ, those that changed most first."""
    of = [_errors(result) for result in found.results]
    rows: list[tuple[float, LayerErrors, list[LayerErrors | None]]] = []
    for key in dict.fromkeys(key for layers in of for key in layers):
        each = [layers.get(key) for layers in of]
        there = [layer for layer in each if layer is not None]
        change = _spread([layer.own for layer in there])
        if len(there) > 1 and change >= _LEAST_CHANGE:
            rows.append((change, there[0], each))
    if not any(of):
        return
    if not rows:
        say("errors of layers by themselves: the same")
        return
    rows.sort(key=lambda row: -row[0])
    shown = rows if every else rows[:_MOST_ROWS]
    samples = next(result.errors.samples for result in found.results if result.errors)
    drawn = " drawn" if found.is_drawn else ""
    title = (
        f"SQNR of layers, dB, on {samples}{drawn} samples: by itself / accumulated; those that "
        "differ most"
    )
    table = new_table(title, ("layer", "op"), numbers=(*names, "by itself"))
    for change, first, each in shown:
        cells = (_pair(layer) for layer in each)
        table.add_row(escape(first.name), escape(first.op_type), *cells, _difference(change, each))
    console().print(table)
    _more(len(rows) - len(shown), "layers")


def _errors(result: ComparedResult) -> dict[tuple[str, str], LayerErrors]:
    layers = () if result.errors is None else result.errors.layers
    return {(layer.name, layer.op_type): layer for layer in layers}


def _spread(decibels: Sequence[float]) -> float:
    finite = [each for each in decibels if math.isfinite(each)]
    if len(finite) < len(decibels):
        return math.inf if finite else 0.0
    return max(finite) - min(finite) if finite else 0.0


def _pair(layer: LayerErrors | None) -> str:
    if layer is None:
        return "-"
    return f"{_number(layer.own)} / {_number(layer.accumulated.sqnr_db)}"


def _number(decibels: float) -> str:
    return _decibels(decibels).removesuffix(" dB")


def _difference(change: float, each: Sequence[LayerErrors | None]) -> str:
    """Write by how much the last differs from the first, where there are two; else the spread."""
    if not math.isfinite(change):
        return "-"
    first, last = each[0], each[-1]
    if len(each) == 2 and first is not None and last is not None:
        return f"{last.own - first.own:+.1f}"
    return f"{change:.1f}"


def _more(count: int, what: str) -> None:
    if count > 0:
        say(f"[dim]{count} more {what}: --all shows them, --json has everything[/]")
