"""What a space says about nodes and their tensors, for tables over a few groups.

A node stays float where one of its owning groups has the choice `FLOAT`. What follows from that for
other nodes (on some targets an Add behind a float convolution stays float too) is not in the
tables: it would tie the choices of distant groups together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import product

import numpy as np
import onnx_ir as ir

from intact.engines.session import Feeds, make_session, run_session
from intact.errors import DataError
from intact.graph import Graph
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph, TensorEnd, quantizes
from intact.search.cost.model import Choice, Term
from intact.search.space import FLOAT, Space

_LARGEST_TABLE = 1 << 14

"""Entries of a table; six choices of five groups are below it."""


class Structure:
    """Which groups decide about which nodes and ends.

    Args:
        space: The choices.
        packs: The deployed file stores codes of 4 bits two a byte.
    """

    def __init__(self, space: Space, *, packs: bool = True) -> None:
        self.space = space
        self.packs = packs

    @property
    def plan(self) -> QuantizedGraph:
        """The plan at the widest integers."""
        return self.space.plan

    @cached_property
    def group_of(self) -> dict[TensorEnd, int]:
        """The group of every end that has one."""
        groups = enumerate(self.space.groups)
        return {end: index for index, group in groups for end in group.ends}

    @cached_property
    def owners(self) -> dict[str, tuple[int, ...]]:
        """For each node, the groups that keep it float with their choice ``FLOAT``."""
        found: dict[str, list[int]] = {}
        for index, group in enumerate(self.space.groups):
            for name in group.owners if FLOAT in group.choices else ():
                found.setdefault(name, []).append(index)
        return {name: tuple(groups) for name, groups in found.items()}

    def is_float(self, node: ir.Node, choice: Choice) -> bool:
        """Tell whether a node computes in float."""
        name = str(node.name)
        chosen = any(choice[group] == FLOAT for group in self.owners.get(name, ()))
        return chosen or not self.plan.is_quantized(node)

    def is_floating(self, end: TensorEnd, choice: Choice) -> bool:
        """Tell whether the node of an end computes in float."""
        return self.is_float(self.plan.graph.node(end.node), choice)

    def bits(self, end: TensorEnd, choice: Choice) -> int:
        """Return the width of what a node reads or writes at an end; ``FLOAT`` if no integers.

        Of an end that no group has (an int32 bias), the width is the plan's.
        """
        config = self.plan.configs[end]
        if self.is_floating(end, choice):
            return FLOAT
        if end in self.group_of:
            group = self.group_of[end]
            bits = choice[group]
            return self.space.groups[group].default if bits == FLOAT else bits
        return config.bits if quantizes(config) else FLOAT

    def concerned(self, ends: Iterable[TensorEnd], nodes: Iterable[str] = ()) -> tuple[int, ...]:
        """Return the groups on which widths at ends, and the type of nodes, depend."""
        ends = list(ends)
        names = dict.fromkeys([*(end.node for end in ends), *nodes])
        groups = {self.group_of[end] for end in ends if end in self.group_of}
        groups.update(group for name in names for group in self.owners.get(name, ()))
        return tuple(sorted(groups))

    def table(self, groups: tuple[int, ...], function: Callable[[Choice], float]) -> Term:
        """Return a function of the choices of some groups as a term.

        Where its table would be very large (a constant that many nodes share), the groups that
        come last stay at their default.
        """
        choices = {group: self.space.groups[group].choices for group in groups}
        while math.prod(len(each) for each in choices.values()) > _LARGEST_TABLE:
            choices.popitem()
        defaults = {group: self.space.groups[group].default for group in groups}
        values = [
            function({**defaults, **dict(zip(choices, each, strict=True))})
            for each in product(*choices.values())
        ]
        shape = [len(each) for each in choices.values()]
        return Term(tuple(choices), np.array(values, np.float64).reshape(shape))


def is_signed(plan: QuantizedGraph, end: TensorEnd) -> bool:
    """Tell whether the codes at an end are signed integers."""
    return plan.configs[end].dominator.quant_min < 0


Shape = tuple[int, ...]


class Shapes:
    """The shape of every value of a graph, for one sample.

    Args:
        graph: A normalized graph.
        feeds: Inputs of one sample, by name, for models whose shapes depend on it; None takes what
            the model declares, with 1 for the size of the batch.
    """

    def __init__(self, graph: Graph, feeds: Feeds | None = None) -> None:
        self._graph = graph
        self._feeds = feeds

    def of(self, value: ir.Value | None) -> Shape:
        """Return the shape of a value.

        Raises:
            DataError: It depends on the sample, and there is none.
        """
        if value is None:
            return ()
        declared = self._declared(value)
        if declared is None:
            declared = self._observed.get(str(value.name))
        if declared is None:
            raise DataError(
                f"the shape of {value.name!r} depends on the sample",
                remedy="give a sample, so that operations can be counted",
            )
        return declared

    def _declared(self, value: ir.Value) -> Shape | None:
        if value.const_value is not None:
            return tuple(int(size) for size in value.const_value.shape.numpy())
        if value.shape is None or self._feeds is not None:
            return None
        sizes = [1 if str(size) in self._batch else size for size in value.shape]
        if not all(isinstance(size, int) for size in sizes):
            return None
        return tuple(int(str(size)) for size in sizes)

    @cached_property
    def _batch(self) -> frozenset[str]:
        """The names of the first dimensions of the inputs, where they have names."""
        shapes = [value.shape for value in self._graph.inputs if value.shape]
        firsts = [shape[0] for shape in shapes if len(shape)]
        return frozenset(str(size) for size in firsts if not isinstance(size, int))

    @cached_property
    def _observed(self) -> Mapping[str, Shape]:
        if self._feeds is None:
            return {}
        editor = Editor(self._graph.model)
        outputs = editor.model.graph.outputs
        names = [
            str(value.name)
            for node in self._graph.nodes
            for value in node.outputs
            if value.name and value.dtype is not None
        ]
        shown = {str(value.name) for value in outputs}
        outputs.extend(editor.value(name) for name in names if name not in shown)
        arrays = run_session(make_session(editor.finish()), self._feeds, names)
        found = {name: tuple(array.shape) for name, array in zip(names, arrays, strict=True)}
        return found | {name: tuple(array.shape) for name, array in self._feeds.items()}
