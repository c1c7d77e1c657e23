"""Tells how the choices of groups decide about nodes and tensors, for cost tables.

A node stays float where one of its owning groups has the choice `FLOAT`. The effect on other nodes
(on some targets an Add behind a float convolution stays float too) is not in the tables: it would
make the choices of distant groups depend on each other.
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
from intact.plan.stored_weights import is_stored
from intact.search.cost.model import Choice, Term
from intact.search.space import FLOAT, Space

_LARGEST_TABLE = 1 << 14

"""Maximum number of entries of a table; six choices of five groups are below it."""


class Structure:
    """The groups that decide about each node and end.

    Args:
        space: The search space.
        packs: The deployed file stores 4-bit codes two per byte.
    """

    def __init__(self, space: Space, *, packs: bool = True) -> None:
        self.space = space
        self.packs = packs

    @property
    def plan(self) -> QuantizedGraph:
        """The plan with the widest integers."""
        return self.space.plan

    @cached_property
    def group_of(self) -> dict[TensorEnd, int]:
        """The group index of every end that belongs to a group."""
        groups = enumerate(self.space.groups)
        return {end: index for index, group in groups for end in group.ends}

    @cached_property
    def owners(self) -> dict[str, tuple[int, ...]]:
        """The groups of each node that leave it float with the choice ``FLOAT``."""
        found: dict[str, list[int]] = {}
        for index, group in enumerate(self.space.groups):
            for name in group.owners if FLOAT in group.choices else ():
                found.setdefault(name, []).append(index)
        return {name: tuple(groups) for name, groups in found.items()}

    def is_float(self, node: ir.Node, choice: Choice) -> bool:
        """Tell whether a node computes in float for given choices."""
        name = str(node.name)
        # A group may own several nodes and a node belong to several groups; one choice of float is
        # enough.
        chosen = any(choice[group] == FLOAT for group in self.owners.get(name, ()))
        return chosen or not self.plan.is_quantized(node)

    def is_floating(self, end: TensorEnd, choice: Choice) -> bool:
        """Tell whether the node of an end computes in float for given choices."""
        return self.is_float(self.plan.graph.node(end.node), choice)

    def holds_floats(self, end: TensorEnd, choice: Choice) -> bool:
        """Tell whether what an end reads is a float: its node is, and it is not stored as codes."""
        return self.is_floating(end, choice) and not is_stored(self.plan.configs[end])

    def bits(self, end: TensorEnd, choice: Choice) -> int:
        """Return the width at an end for given choices; ``FLOAT`` for floats.

        An end that belongs to no group (an int32 bias) has the width in the plan. A weight that is
        stored as integers for a float node has its own.
        """
        config = self.plan.configs[end]
        if is_stored(config):
            group = self.group_of.get(end)
            return config.bits if group is None else choice.get(group, config.bits)
        if self.is_floating(end, choice):
            return FLOAT
        if end in self.group_of:
            group = self.group_of[end]
            bits = choice[group]
            # The group is float, this end's node is not: another node of the group stays float and
            # this end is quantized as widely as it can be.
            return self.space.groups[group].default if bits == FLOAT else bits
        return config.bits if quantizes(config) else FLOAT

    def concerned(self, ends: Iterable[TensorEnd], nodes: Iterable[str] = ()) -> tuple[int, ...]:
        """List the groups on which the widths of ends, and the data types of nodes, depend."""
        ends = list(ends)
        names = dict.fromkeys([*(end.node for end in ends), *nodes])
        groups = {self.group_of[end] for end in ends if end in self.group_of}
        groups.update(group for name in names for group in self.owners.get(name, ()))
        return tuple(sorted(groups))

    def table(self, groups: tuple[int, ...], function: Callable[[Choice], float]) -> Term:
        """Tabulate a function of the choices of some groups.

        Where the table would be very large (a constant that many nodes share), the last groups
        stay at their default.
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
        feeds: Inputs of one sample by name, for models whose shapes depend on it. None uses the
            declared shapes, with a batch size of 1.
    """

    def __init__(self, graph: Graph, feeds: Feeds | None = None) -> None:
        self._graph = graph
        self._feeds = feeds

    def of(self, value: ir.Value | None) -> Shape:
        """Return the shape of a value; ``()`` for a missing input.

        Raises:
            DataError: It depends on the sample, and ``feeds`` is missing.
        """
        if value is None:
            return ()
        declared = self._declared_shape(value)
        if declared is None:
            declared = self._observed_shapes.get(str(value.name))
        if declared is None:
            raise DataError(
                f"the shape of {value.name!r} depends on the sample",
                remedy="give a sample to count operations",
            )
        return declared

    def _declared_shape(self, value: ir.Value) -> Shape | None:
        if value.const_value is not None:
            return tuple(int(size) for size in value.const_value.shape.numpy())
        # With a sample, what was observed is right, also where a declared shape is wrong.
        if value.shape is None or self._feeds is not None:
            return None
        # A name that the inputs have in front is the batch wherever it stands.
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
    def _observed_shapes(self) -> Mapping[str, Shape]:
        if self._feeds is None:
            return {}
        editor = Editor(self._graph.model)
        outputs = editor.model.graph.outputs
        names = [
            str(value.name)
            for node in self._graph.nodes
            for value in node.outputs
            # Without a type, ONNX Runtime refuses a value as an output.
            if value.name and value.dtype is not None
        ]
        shown = {str(value.name) for value in outputs}
        outputs.extend(editor.value(name) for name in names if name not in shown)
        arrays = run_session(make_session(editor.finish()), self._feeds, names)
        found = {name: tuple(array.shape) for name, array in zip(names, arrays, strict=True)}
        return found | {name: tuple(array.shape) for name, array in self._feeds.items()}
