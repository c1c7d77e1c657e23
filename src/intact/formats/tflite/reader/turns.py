"""Gives each WHILE its turn, as a Loop of ONNX has it.

TFLite asks before each turn whether there is one, in a graph of its own; ONNX is told before the
first, and by each turn of the next. So the graph that tells is put in front of the loop, and a copy
of it behind what a turn computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from intact.formats.base.foreign import BinaryFile
from intact.formats.tflite.reader.file import FileTensor, Operator, Subgraph

WHILE = "WHILE"
_CALLS = {
    "CALL_ONCE": ("init_subgraph_index",),
    WHILE: ("cond_subgraph_index", "body_subgraph_index"),
}
"""Options that are the number of a subgraph, by operator."""

_DEEPEST = 8
"""Loops in loops that are read."""

_COPIED = 32
"""Bytes that each tensor and operator of a copy counts for, which bounds loops in loops."""


def called_graphs(op: Operator) -> list[int]:
    """Return the numbers of the subgraphs that an operator runs."""
    return [int(op.options[name]) for name in _CALLS.get(op.name, ())]


def with_turns(graph: Subgraph, others: Mapping[int, Subgraph], file: BinaryFile) -> Subgraph:
    """Return a graph whose every WHILE has its turn, and reads first whether there is one.

    Args:
        graph: What may have some.
        others: The subgraphs that are called, by number.
        file: What they are read from; copies are charged.

    Raises:
        ModelError: A loop does not fit what it runs, or runs itself.
    """
    if not any(op.name == WHILE for op in graph.operators):
        return graph
    return _Joined(list(graph.tensors), [], others, file).with_turns(graph, ())


@dataclass
class _Joined:
    """A graph that grows by others.

    Attributes:
        tensors: By number.
        operators: In the order of execution.
        others: The subgraphs of the file, by number.
        file: What they are read from.
    """

    tensors: list[FileTensor]
    operators: list[Operator]
    others: Mapping[int, Subgraph]
    file: BinaryFile

    def with_turns(self, graph: Subgraph, above: tuple[int, ...]) -> Subgraph:
        """Add the operators of the graph whose tensors these are; ``above`` is what runs it."""
        for op in graph.operators:
            self._add(op, above)
        return replace(graph, tensors=tuple(self.tensors), operators=tuple(self.operators))

    def _add(self, op: Operator, above: tuple[int, ...]) -> None:
        if op.name != WHILE or op.turn is not None:
            self.operators.append(op)
            return
        numbers = called_graphs(op)
        condition, body = (self.others[number] for number in numbers)
        self._check(op, condition, body, above)
        inside = (*above, *numbers)
        (begins,) = self._include(condition, op.inputs, op.index, inside)
        turn = _Joined(list(body.tensors), [], self.others, self.file)
        found = turn.with_turns(body, inside)
        (goes_on,) = turn._include(condition, body.outputs, op.index, inside)
        found = Subgraph(
            tuple(turn.tensors), tuple(turn.operators), body.inputs, (goes_on, *body.outputs)
        )
        self.operators.append(replace(op, inputs=(begins, *op.inputs), turn=found))

    def _include(
        self, graph: Subgraph, given: Sequence[int], index: int, above: tuple[int, ...]
    ) -> list[int]:
        """Add a copy of a graph; return where its outputs are.

        Args:
            graph: The graph.
            given: What takes the place of its inputs.
            index: The position of the operator that runs it.
            above: What runs it.
        """
        self.file.charge(_COPIED * (len(graph.tensors) + len(graph.operators)))
        first = len(self.tensors)
        places = {place: first + place for place in range(len(graph.tensors))} | {-1: -1}
        places |= dict(zip(graph.inputs, given, strict=True))
        self.tensors += [replace(each, index=first + each.index) for each in graph.tensors]
        for op in graph.operators:
            inputs, outputs = (tuple(map(places.__getitem__, p)) for p in (op.inputs, op.outputs))
            self._add(replace(op, index=index, inputs=inputs, outputs=outputs), above)
        return [places[place] for place in graph.outputs]

    def _check(
        self, op: Operator, condition: Subgraph, body: Subgraph, above: tuple[int, ...]
    ) -> None:
        counts = {len(op.inputs), len(op.outputs), len(condition.inputs), len(body.inputs)}
        fits = counts == {len(body.outputs)} and len(condition.outputs) == 1
        is_plain = all(len({*graph.inputs}) == len(graph.inputs) for graph in (condition, body))
        if not (fits and is_plain) or -1 in op.inputs:
            raise self.file.damaged(f"loop {op.index} does not fit what it runs")
        if not {*above}.isdisjoint(called_graphs(op)):
            raise self.file.damaged(f"loop {op.index} runs itself")
        if len(above) >= _DEEPEST * len(_CALLS[WHILE]):
            raise self.file.damaged(f"loops lie more than {_DEEPEST} deep in loops")
