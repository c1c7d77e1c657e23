"""Counts the nodes of a model with its functions written out and its loops run.

Thirty functions that call one another ten times each are 2 kB, and 10^30 nodes for whoever writes
them out: ONNX's shape inference and ONNX Runtime do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import onnx
from onnx import numpy_helper

from intact.errors import ModelError
from intact.graph.files.limits import (
    FUNCTIONS,
    NODE_RUNS,
    NODES,
    TENSORS,
    limit_of,
    remedy,
)

_DECLARED = {
    "initializer": "initializers",
    "sparse_initializer": "sparse initializers",
    "input": "inputs",
    "output": "outputs",
    "value_info": "declared types of tensors (value_info)",
    "quantization_annotation": "quantization annotations",
}
"""The fields of a graph that hold one message a tensor, and what messages call them."""

_STANDARD = ("", "ai.onnx")
# Without these a copy of the constant would hide how often a loop turns.
_COPIES = ("Identity", "Cast")
_COUNTING = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
# More than any limit: a loop without end is refused like one that turns too often.
_ENDLESS = 1 << 63
_DEEPEST = 100
"""Calls within calls. Exporters have some ten; libraries follow them by recursion."""
FunctionKey = tuple[str, str, str]
"""What nodes call a function by: domain, name, overload."""


class _Length(NamedTuple):
    """How many nodes there are, and how many are run."""

    nodes: int
    runs: int


def refuse_crowded(proto: onnx.ModelProto, where: str) -> None:
    """Check how many tensors and functions a model declares: each costs all that follows some time.

    Args:
        proto: The parsed model, which nothing else was checked of.
        where: Name of the model for messages.

    Raises:
        ModelError: There are too many.
    """
    # Only counted, never looked into: nothing has bounded the file yet.
    counts = Counter({"functions": len(proto.functions)})
    for graph in _graphs(proto):
        counts.update({what: len(getattr(graph, field, ())) for field, what in _DECLARED.items()})
    for what, count in counts.items():
        allowed = limit_of(FUNCTIONS if what == "functions" else TENSORS)
        if count > allowed:
            raise ModelError(
                f"{where} has {count} {what}, {allowed} are allowed",
                remedy=remedy(count, allowed, "divide it into smaller models"),
            )


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield what declares tensors: the graph, its bodies, the functions and theirs."""
    ahead: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph]
    ahead += itertools.islice(proto.functions, limit_of(FUNCTIONS))
    while ahead:
        graph = ahead.pop()
        yield graph
        if len(graph.node) <= limit_of(NODES):  # more are refused anyway
            ahead += (body for node in graph.node if node.attribute for body in _bodies(node))


def refuse_endless(proto: onnx.ModelProto, where: str) -> None:
    """Check how many nodes a model has with its functions written out, and how many it runs.

    A loop counts with its number of turns where that is constant and nothing in it ends it before.

    Args:
        proto: The parsed model, which nothing else was checked of.
        where: Name of the model for messages.

    Raises:
        ModelError: There are too many, or a function calls itself.
    """
    lengths = _Lengths(proto, where)
    found = lengths.add_up(proto.graph.node, _constants(proto.graph))
    long, mend_long = "nodes", "divide it into smaller models"
    if proto.functions:
        long, mend_long = (
            f"{long} where its functions are written out",
            "export it without functions",
        )
    for count, usual, what, mend in (
        (found.nodes, NODES, long, mend_long),
        (found.runs, NODE_RUNS, "nodes to run, as often as its loops turn", "shorten its loops"),
    ):
        if count > limit_of(usual):
            # Thirty functions that nest have a number of nodes that fills a line.
            shown = str(count) if count < 10**15 else f"about 10^{len(str(count)) - 1}"
            raise ModelError(
                f"{where} has {shown} {what}, {limit_of(usual)} are allowed",
                remedy=remedy(count, limit_of(usual), mend),
            )


class _Lengths:
    """The lengths of a model's functions, each computed once."""

    def __init__(self, proto: onnx.ModelProto, where: str) -> None:
        self._functions = {function_key(each): each for each in proto.functions}
        self._known: dict[FunctionKey, _Length | None] = {}
        self._where = where
        self._depth = 0

    def add_up(self, nodes: Iterable[onnx.NodeProto], constants: Mapping[str, int]) -> _Length:
        """Add up nodes, their bodies and the functions that they call."""
        nodes = list(nodes)
        # Nearly every model ends here; what follows looks at all attributes twice.
        if not self._functions and not any(_bodies(node) for node in nodes):
            return _Length(len(nodes), len(nodes))
        constants = _with_copies(nodes, {**constants, **dict(_single_integers(nodes))})
        count = runs = 0
        for node in nodes:
            called = self._add_function(node)
            inside = [
                self.add_up(body.node, {**constants, **_constants(body)}) for body in _bodies(node)
            ]
            turns = _turns(node, constants)
            count += 1 + called.nodes + sum(each.nodes for each in inside)
            # Integers of Python: nested loops multiply to what no fixed width holds.
            runs += 1 + called.runs + turns * sum(each.runs for each in inside)
        return _Length(count, runs)

    def _add_function(self, node: onnx.NodeProto) -> _Length:
        key = called_key(node)
        function = self._functions.get(key)
        if function is None:
            return _Length(0, 0)
        if key not in self._known:
            if self._depth >= _DEEPEST:
                raise ModelError(
                    f"{self._where}: its functions call each other more than {_DEEPEST} deep",
                    remedy="export it without functions",
                )
            self._known[key] = None  # begun
            self._depth += 1
            # Without constants: names of the caller mean nothing in a function.
            self._known[key] = self.add_up(function.node, {})
            self._depth -= 1
        found = self._known[key]
        if found is None:
            raise ModelError(
                f"{self._where}: function {node.op_type!r} calls itself",
                remedy="export the model again",
            )
        return found


def function_key(function: onnx.FunctionProto) -> FunctionKey:
    """Return what nodes call a function by."""
    return function.domain, function.name, function.overload


def called_key(node: onnx.NodeProto) -> FunctionKey:
    """Return what a node calls, if it is a function of the model."""
    return node.domain, node.op_type, node.overload


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [
        body
        for attribute in node.attribute
        for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)
    ]


def _turns(node: onnx.NodeProto, constants: Mapping[str, int]) -> int:
    """Return how often the bodies of a node run for certain; 1 where that is not known.

    A loop without a number of turns goes on until its condition ends it.
    """
    if node.op_type != "Loop" or node.domain not in _STANDARD or not node.input:
        return 1
    if any(_may_end(body) for body in _bodies(node)):
        return 1
    turns, condition = (*node.input, "")[:2]
    if turns:
        # At least 1, or a negative number of turns would make up for other loops.
        return max(1, constants.get(turns, 1))
    return _ENDLESS if constants.get(condition, not condition) else 1


def _with_copies(
    nodes: Iterable[onnx.NodeProto], constants: Mapping[str, int]
) -> Mapping[str, int]:
    """Add what is only a copy of a constant, where nodes are in order."""
    found = dict(constants)
    for node in nodes:
        if node.op_type in _COPIES and node.domain in _STANDARD and node.input and node.output:
            value = found.get(node.input[0])
            if value is not None:
                found[node.output[0]] = value
    return found


def _may_end(body: onnx.GraphProto) -> bool:
    """Tell whether a condition that is computed may end the loop."""
    producers = {name: each for each in body.node for name in each.output}
    condition = body.output[0].name if body.output else ""
    while condition in producers and producers[condition].op_type in _COPIES:
        condition = next(iter(producers[condition].input), "")
    node = producers.get(condition)
    return node is not None and node.op_type != "Constant"


def _constants(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the initializers that are one integer or truth value, by name."""
    found = {each.name: _integer(each) for each in graph.initializer if _is_single(each)}
    return {name: value for name, value in found.items() if value is not None}


def _single_integers(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if node.op_type != "Constant" or len(node.output) != 1:
            continue
        for attribute in node.attribute:
            read = _VALUES.get(attribute.name)
            value = None if read is None else read(attribute)
            if value is not None:
                yield node.output[0], value


def _is_single(tensor: onnx.TensorProto) -> bool:
    sizes = list(tensor.dims)
    return tensor.data_type in _COUNTING and sizes in ([], [1])


def _integer(tensor: onnx.TensorProto) -> int | None:
    # No file is opened here: where it lies is checked only afterwards.
    if not _is_single(tensor) or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return int(numpy_helper.to_array(tensor).reshape(-1)[0])
    except (ValueError, IndexError):  # data do not fit the type: reported elsewhere
        return None


_VALUES: Mapping[str, Callable[[onnx.AttributeProto], int | None]] = {
    "value": lambda each: _integer(each.t),
    "value_int": lambda each: each.i,
    "value_ints": lambda each: each.ints[0] if len(each.ints) == 1 else None,
}
