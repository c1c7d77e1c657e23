"""Measures whether a rewritten float model loses less when it is quantized.

A rewrite does not change what a model computes, but what is lost when it is quantized. That is
measured: the nodes that a rewrite touches are cut out of the graph as it was and as it is, both are
quantized for the target on half of the samples, and compared with the float block on the others.
What does not gain is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.outputs import FloatRuns
from intact.data.batching import Batch
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.engines.integer.islands import model_of_nodes
from intact.engines.session import make_session, run_session
from intact.errors import IntactError
from intact.graph import Graph, is_constant
from intact.graph.graph import values_read_inside
from intact.graph.passes.library import remove_unused
from intact.improve.channels import Channels, observe_channels
from intact.improve.rewrite.absorb import absorb, absorptions
from intact.improve.rewrite.equalize import Equalization, tensors_of
from intact.improve.rewrite.smooth import Widths
from intact.improve.rewrite.ties import Ties
from intact.limits import CHANCE_DB, GATED_DB, HELD_AT_ONCE
from intact.plan import Overrides, QuantizedGraph, build_plan
from intact.plan.gains import Gain, Report, unreported
from intact.program.operations import FloatNodes

Array = npt.NDArray[np.float32]
Planned = Callable[[Graph], QuantizedGraph]
"""Makes a plan without scales of a graph, or of a part of it."""

MOST_SAMPLES = 32
STRENGTHS = (1.0, 0.5)
"""How far a block is equalized: wholly, or by the root of the factors."""


@dataclass(frozen=True)
class Gate:
    """Measures blocks of a graph, quantized for a target.

    Attributes:
        graph: The graph as it was.
        planned: Makes plans for the target.
        method: How scales are chosen.
        feeds: Some samples, each input with the samples first, or batches of the model's own size.
        threads: Threads inside one operator; 0 lets the runtime choose.
    """

    graph: Graph
    planned: Planned
    method: Method
    feeds: Sequence[Mapping[str, Array]]
    threads: int = 0

    @staticmethod
    def of(plan: QuantizedGraph, samples: Samples, most: int, threads: int) -> Gate:
        """Measure as a plan quantizes, on the first samples."""
        widths = Widths.of(plan)
        bits = Overrides(weight_bits=widths.weight_bits, activation_bits=widths.activation_bits)
        planned = partial(build_plan, target=plan.target, overrides=bits)
        limited = samples.first(most)
        feeds = [feed for feed, _ in limited.real_batches(limited.batch_size(HELD_AT_ONCE))]
        return Gate(plan.graph, planned, Method.of(plan.target), feeds, threads)

    def decibels(self, nodes: Collection[str], *graphs: Graph) -> list[float]:
        """Return what a block computes in each graph, dB, against the float block as it was.

        Args:
            nodes: Names of the block's nodes.
            graphs: Rewritten graphs with these nodes, whose block has the same outside.

        Returns:
            Mean over the block's outputs; NaN where there is nothing to compare.
        """
        whole = _Part.of(self.graph, nodes)
        inputs = self._inputs([str(value.name) for value in whole.inputs])
        # In turn and not one half behind the other: samples are often sorted by class.
        fit, held_out = inputs[::2], inputs[1::2]
        if not held_out:
            return [np.nan] * len(graphs)
        original = whole.graph()
        # One thread each, so that what is kept does not depend on how many there are.
        runs = FloatRuns(original, [(feeds, _count(feeds)) for feeds in held_out], threads=1)
        found, before = [], _names(self.graph)
        for each in graphs:
            # What a rewrite adds, it adds to its block.
            own = {*nodes, *(_names(each) - before)}
            plan = self._plan(_Part.of(each, own).graph(), fit)
            errors = runs.simulated(plan)
            found.append(errors.mean if errors.decibels else np.nan)
        return found

    def _plan(self, graph: Graph, feeds: Sequence[Mapping[str, Array]]) -> QuantizedGraph:
        plan = self.planned(graph)
        joined = {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}
        samples = open_samples(joined, graph)
        names = required_tensors(plan)
        return assign(plan, collect(graph, samples, names, threads=self.threads), self.method)

    def _inputs(self, names: Sequence[str]) -> list[dict[str, Array]]:
        """Compute what reaches a block."""
        copy = self.graph.clone()
        computed = [copy.value(name) for name in names if name not in self.feeds[0]]
        if computed:  # the rest of the model is not run
            copy.model.graph.outputs[:] = computed
            remove_unused(copy.model)
        session = make_session(copy.model, threads=self.threads)
        found = []
        for feeds in self.feeds:
            wanted = [str(value.name) for value in computed]
            arrays = run_session(session, dict(feeds), wanted) if wanted else []
            made = dict(zip(wanted, arrays, strict=True))
            found.append({name: made[name] if name in made else feeds[name] for name in names})
        return found


def equalize_blocks(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> Graph:
    """Equalize the blocks of a plan's graph that lose less so.

    Args:
        plan: A plan of the graph, which is not changed.
        samples: The data; with one batch nothing changes.
        most: Maximum number of samples that blocks are measured on.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes the gain of each block.
    """
    seen = observe_channels(plan.graph, samples, tensors_of(Ties.of(plan.graph)), threads=threads)
    gate = Gate.of(plan, samples, most, threads)
    per_channel = Widths.of(plan).per_channel
    return equalize_measured(
        gate, seen, per_channel=per_channel, expanded=plan.target.expand, report=report
    )


def absorb_biases(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> Graph:
    """Absorb the high biases of those layers of a plan's graph that lose less so.

    Args:
        plan: A plan of the graph, which is not changed.
        samples: The data; with one batch nothing changes.
        most: Maximum number of samples that layers are measured on.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes the gain of each layer.
    """
    graph = plan.graph
    tensors = [each.tensor for each in absorptions(graph)]
    if not tensors:
        return graph
    seen = observe_channels(graph, samples, tensors, threads=threads)
    return absorb_measured(Gate.of(plan, samples, most, threads), seen, report=report)


def equalize_measured(
    gate: Gate,
    seen: Mapping[str, Channels],
    *,
    per_channel: bool = False,
    expanded: Collection[str] = (),
    report: Report = unreported,
) -> Graph:
    """Equalize the blocks of a graph that lose less so.

    Args:
        gate: Measures them.
        seen: What `equalize` takes.
        per_channel: What `equalize` takes.
        expanded: What `Equalization` takes.
        report: Takes the gain of each block.
    """
    graph = gate.graph
    equalization = Equalization(graph, seen, per_channel=per_channel, expanded=expanded)
    ties = equalization.ties
    found: dict[int, float] = {}
    for block in sorted(set(ties.blocks[ties.blocks >= 0].tolist())):
        if not equalization.moves(block):
            continue
        nodes = [str(node.name) for node in ties.nodes_of(graph, block)]
        tried = [equalization.graph({block: strength}) for strength in STRENGTHS]
        try:
            before, *after = gate.decibels(nodes, graph, *tried)
        except IntactError:
            continue  # a part of the model that cannot be quantized alone
        # NaN, where nothing could be compared, would count as the largest.
        best = int(np.argmax(np.nan_to_num(after, nan=-np.inf)))
        # An operator in front of a gate is to be worth its time.
        least = GATED_DB if equalization.is_gated(block) else CHANCE_DB
        kept = bool(after[best] > before + least)
        report(Gain(nodes[-1], before, after[best], kept))
        if kept:
            found[block] = STRENGTHS[best]
    return equalization.graph(found) if found else graph


@dataclass(frozen=True)
class _Part:
    """Some nodes of a graph, as a model of their own."""

    whole: Graph
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]

    @staticmethod
    def of(graph: Graph, names: Collection[str]) -> _Part:
        chosen = set(names)
        nodes = tuple(node for node in graph.nodes if node.name in chosen)
        made = {value for node in nodes for value in node.outputs}
        read = dict.fromkeys(
            value
            for node in nodes
            for value in (*node.inputs, *values_read_inside(node))
            if value is not None and not is_constant(value) and value not in made
        )
        return _Part(graph, nodes, tuple(read))

    def graph(self) -> Graph:
        own = set(self.nodes)
        outputs = tuple(
            value
            for node in self.nodes
            for value in node.outputs
            if value.name
            and (
                value.is_graph_output()
                or not self.whole.consumers(value)
                or any(reader not in own for reader, _ in self.whole.consumers(value))
            )
        )
        functions = tuple(self.whole.model.functions.values())
        operation = FloatNodes(self.nodes, self.inputs, outputs, functions)
        model = model_of_nodes("block", operation)
        sources = (*self.inputs, *(value for node in self.nodes for value in node.outputs))
        sizes = {str(value.name): value.shape for value in sources}
        for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
            shape = sizes.get(str(value.name))
            # Nothing infers shapes here, and a plan goes by them.
            value.shape = None if shape is None else shape.copy()
        return Graph(model)


def _names(graph: Graph) -> set[str]:
    return {str(node.name) for node in graph.nodes}


def _first(feeds: Batch, count: int) -> Batch:
    return {name: array[:count] for name, array in feeds.items()}


def _count(feeds: Mapping[str, Array]) -> int:
    return len(next(iter(feeds.values())))


def absorb_measured(
    gate: Gate, seen: Mapping[str, Channels], *, report: Report = unreported
) -> Graph:
    """Absorb the high biases of those layers that lose less so.

    Args:
        gate: Measures them.
        seen: What `absorb` takes.
        report: Takes the gain of each layer.
    """
    chosen = set()
    for each in absorptions(gate.graph):
        if not each.shift(seen).any():
            continue
        name = str(each.layer.node.name)
        try:
            before, after = gate.decibels(each.nodes, gate.graph, absorb(gate.graph, seen, [name]))
        except IntactError:
            continue  # a part of the model that cannot be quantized alone
        kept = after > before + CHANCE_DB
        report(Gain(each.nodes[-1], before, after, kept))
        if kept:
            chosen.add(name)
    return absorb(gate.graph, seen, chosen) if chosen else gate.graph
