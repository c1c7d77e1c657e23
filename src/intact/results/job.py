"""What is made for one target: a plan, how it gets its scales, what is written of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from intact.calibrate.choice import Choice
from intact.calibrate.method import Method
from intact.calibrate.statistics import Statistics
from intact.data.preprocess import Preprocess
from intact.errors import ExportError
from intact.formats.base.format import Exported, Io
from intact.formats.base.storage import storage_notes
from intact.formats.registry import FORMATS, export
from intact.graph import Graph
from intact.improve.passes import Request
from intact.plan import Decision, Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.given_scales import ScaleTable
from intact.plan.provenance import CHANNELS_LAST
from intact.results.result import Result, Tried

Decide: TypeAlias = Callable[[Iterable[str]], dict[str, Decision]]
"""From names of nodes to their decisions."""


class Deployment(msgspec.Struct, frozen=True):
    """What is written of a plan.

    Attributes:
        formats: At least one.
        io: What the ends of a file hold, where the format leaves a choice.
        layout: In which order images are taken and given, where the format leaves a choice.
        integer_format: Is written in their place if it can hold the plan; "" for none.
    """

    formats: tuple[str, ...]
    io: Io = Io.INT8
    layout: str = CHANNELS_LAST
    integer_format: str = ""

    def result(
        self,
        plan: QuantizedGraph,
        statistics: Statistics | None,
        preprocess: Preprocess,
        notes: tuple[Note, ...] = (),
    ) -> Result:
        """Write a calibrated plan, and say in it as what."""
        plan, exports = self._written(plan)
        notes += tuple(note for exported in exports.values() for note in exported.notes)
        notes += storage_notes(plan, {name: FORMATS[name] for name in exports})
        return Result(plan.with_notes(notes), statistics, exports, preprocess)

    def _written(self, plan: QuantizedGraph) -> tuple[QuantizedGraph, dict[str, Exported]]:
        """Write a plan, as integers alone where it has nothing else and nobody asks otherwise."""
        if self.integer_format:
            with contextlib.suppress(ExportError):  # it has float nodes, or codes of 16 bits
                return self._in_formats(plan, (self.integer_format,))
        return self._in_formats(plan, self.formats)

    def _in_formats(
        self, plan: QuantizedGraph, formats: tuple[str, ...]
    ) -> tuple[QuantizedGraph, dict[str, Exported]]:
        named = plan.provenance.written(formats, self.io.value, self.layout)
        plan = replace(plan, provenance=named)
        return plan, export(plan, formats, self.io)

    def ways(self) -> list[tuple[dict[str, str], Deployment]]:
        """Return how a plan may be written, with the options that a call needs for that."""
        found: list[tuple[dict[str, str], Deployment]] = [({}, self)]
        if self.io is not Io.FLOAT and any(FORMATS[name].has_io for name in self.formats):
            found.append(({"io": Io.FLOAT.value}, msgspec.structs.replace(self, io=Io.FLOAT)))
        return found

    def again(self, result: Result) -> Result:
        """Write the plan of a result anew; what was noted of its formats is left behind."""
        plan = result.plan
        notes = tuple(note for note in plan.notes if note.kind is not NoteKind.EXPORT)
        return self.result(replace(plan, notes=notes), result.statistics, result.preprocess)


class Scaled(NamedTuple):
    """A plan with scales.

    Attributes:
        plan: The plan.
        statistics: Of the graph's tensors; None where all scales were given.
        choice: What was measured; None where there are no samples.
        given: Scales that need no samples.
        tried: The passes.
    """

    plan: QuantizedGraph
    statistics: Statistics | None
    choice: Choice | None
    given: ScaleTable | None = None
    tried: tuple[Tried, ...] = ()


class Keeping(Protocol):
    """Makes a plan without scales that keeps nodes in float."""

    def __call__(
        self,
        names: Sequence[str],
        graph: Graph | None = None,
        apart: Collection[TensorEnd] = (),
    ) -> QuantizedGraph:
        """Make it.

        Args:
            names: Of nodes to keep in float.
            graph: Another graph with the same nodes; None for the one that was given.
            apart: Inputs of joins that are requantized (see `intact.plan.untie`).
        """


class Job(msgspec.Struct, frozen=True):
    """What is made for one target.

    Attributes:
        plan: Without scales.
        methods: How scales follow from statistics: the preferred method, and others to choose from.
        deployment: What is written.
        keeping: Makes the plan again with these nodes in float too.
        requests: The improvement passes.
        floats_ends: Whether decoding behind the last layers, and spectra before them, may stay
            float.
    """

    plan: QuantizedGraph
    methods: Sequence[Method]
    deployment: Deployment
    keeping: Keeping
    requests: Sequence[Request] = ()
    floats_ends: bool = False

    def on(self, graph: Graph) -> Job:
        """Return the job for a graph that a rewrite made."""

        own = graph

        def keeping(
            names: Sequence[str], graph: Graph | None = None, apart: Collection[TensorEnd] = ()
        ) -> QuantizedGraph:
            return self.keeping(names, own if graph is None else graph, apart)

        return self._replanned(keeping)

    def apart(self, ends: Collection[TensorEnd]) -> QuantizedGraph:
        """Make the plan again with inputs of joins requantized."""
        return self.keeping((), None, ends)

    def requantizing(self, ends: Collection[TensorEnd]) -> Job:
        """Return the job that requantizes inputs of joins in all its plans."""
        always = ends

        def keeping(
            names: Sequence[str], graph: Graph | None = None, apart: Collection[TensorEnd] = ()
        ) -> QuantizedGraph:
            return self.keeping(names, graph, {*always, *apart})

        return self._replanned(keeping)

    def in_float(self, names: Sequence[str], note: Note, decide: Decide | None = None) -> Job:
        """Return the job that keeps nodes in float in all its plans.

        Args:
            names: Of the nodes.
            note: Says so.
            decide: Gives their decisions other reasons; None leaves that of `keeping`.
        """
        always = names

        def keeping(
            names: Sequence[str], graph: Graph | None = None, apart: Collection[TensorEnd] = ()
        ) -> QuantizedGraph:
            nodes = {str(node.name) for node in (graph or self.plan.graph).nodes}
            own = [name for name in always if name in nodes]  # a rewrite may have left some out
            plan = self.keeping((*own, *names), graph, apart)
            decisions = {**plan.decisions, **(decide(own) if decide else {})}
            return replace(plan, decisions=decisions)

        changed = self._replanned(keeping)
        return msgspec.structs.replace(changed, plan=changed.plan.with_notes((note,)))

    def _replanned(self, keeping: Keeping) -> Job:
        """Return the job with other plans; what was noted beside planning stays noted."""
        plan = keeping(())
        notes = tuple(note for note in self.plan.notes if note not in plan.notes)
        return msgspec.structs.replace(self, plan=plan.with_notes(notes), keeping=keeping)
