"""Declares what is made for one target: a plan, how it gets its scales, what is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from intact.calibrate.choice import Choice
from intact.calibrate.method import Method
from intact.calibrate.statistics import Statistics
from intact.data.preprocess import Preprocess, preprocess_to_toml
from intact.errors import ExportError
from intact.formats.base.format import Exported, Io
from intact.formats.base.storage import storage_notes
from intact.formats.registry import FORMATS, export
from intact.graph import Graph
from intact.improve.passes import Request
from intact.plan import (
    Decision,
    Note,
    NoteKind,
    Overrides,
    QuantizedGraph,
    TensorEnd,
    build_plan,
)
from intact.plan.build import complete
from intact.plan.given_scales import ScaleTable
from intact.plan.provenance import CHANNELS_LAST
from intact.results.figures import TriedPass
from intact.results.result import Result
from intact.targets import Target

if TYPE_CHECKING:
    from intact.plan.caches import CacheRanges

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
        # Before the formats are written: some of them store the preprocessing in their files.
        plan = replace(plan, preprocessing=preprocess_to_toml(preprocess).decode())
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
        # The formats read the provenance: it has to say what is written before that happens.
        named = plan.provenance.written(formats, self.io.value, self.layout)
        plan = replace(plan, provenance=named)
        return plan, export(plan, formats, self.io)

    def ways(self) -> list[tuple[dict[str, str], Deployment]]:
        """Return how a plan may be written, with the options that a call needs for that."""
        found: list[tuple[dict[str, str], Deployment]] = [({}, self)]
        if self.io is not Io.FLOAT and any(FORMATS[name].writer.has_io for name in self.formats):
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
        statistics: What was observed; None where all scales were given.
        choice: What was measured; None where there are no samples.
        given: Scales that need no samples.
        tried: The passes.
    """

    plan: QuantizedGraph
    statistics: Statistics | None
    choice: Choice | None
    given: ScaleTable | None = None
    tried: tuple[TriedPass, ...] = ()


class KeptFloat(NamedTuple):
    """Nodes that a planner keeps in float beside those that are asked for.

    Attributes:
        names: The nodes' names.
        decide: Gives their decisions other reasons; None leaves them.
    """

    names: tuple[str, ...]
    decide: Decide | None = None


class Planner(msgspec.Struct, frozen=True):
    """Makes the plans of one target, each without scales.

    Attributes:
        source: What is planned on: a float graph, or a plan that is completed.
        target: The hardware.
        overrides: What the user decides.
        kept: What all plans keep in float, in the order in which that was found.
        apart: Inputs of joins that all plans requantize (see `intact.plan.untie`).
        caches: Largest magnitudes in the caches that hold codes, which give all plans their scales.
    """

    source: Graph | QuantizedGraph
    target: Target
    overrides: Overrides | None
    kept: tuple[KeptFloat, ...] = ()
    apart: frozenset[TensorEnd] = frozenset()
    caches: CacheRanges | None = None

    def plan(
        self,
        names: Sequence[str] = (),
        graph: Graph | None = None,
        apart: Collection[TensorEnd] = (),
    ) -> QuantizedGraph:
        """Make a plan.

        Args:
            names: Nodes to keep in float.
            graph: Another graph with the same nodes; None for the planner's own.
            apart: Further inputs of joins that are requantized.
        """
        source = self.source if graph is None else graph
        nodes = {str(node.name) for node in _graph_of(source).nodes}
        kept = [  # a rewrite may have left some out
            each._replace(names=tuple(name for name in each.names if name in nodes))
            for each in self.kept
        ]
        keep_float = (*(name for each in kept for name in each.names), *names)
        plan = self._build(source, keep_float, self.apart | frozenset(apart))
        # In the order in which they were found: the later reason for a node is the one that counts.
        decided = [each.decide(each.names) for each in kept if each.decide is not None]
        for decisions in decided:
            plan = replace(plan, decisions={**plan.decisions, **decisions})
        if self.caches is None:
            return plan
        from intact.plan.caches import with_cache_ranges  # which few plans need

        return with_cache_ranges(plan, self.caches)

    def _build(
        self, source: Graph | QuantizedGraph, names: Sequence[str], apart: frozenset[TensorEnd]
    ) -> QuantizedGraph:
        overrides = self.overrides
        if names or apart:
            base = overrides or Overrides()
            overrides = msgspec.structs.replace(
                base, keep_float=(*base.keep_float, *names), apart=base.apart | apart
            )
        if isinstance(source, Graph):
            return build_plan(source, self.target, overrides)
        return complete(source, self.target, overrides)


def _graph_of(source: Graph | QuantizedGraph) -> Graph:
    return source if isinstance(source, Graph) else source.graph


class Job(msgspec.Struct, frozen=True):
    """What is made for one target.

    Attributes:
        plan: Without scales.
        methods: How scales follow from statistics: the preferred method, and others to choose from.
        deployment: What is written.
        planner: Makes it again, with more nodes in float.
        requests: The improvement passes.
        unasked: What is said where these run though nobody asked for them.
        floats_ends: Whether decoding behind the last layers, and spectra before them, may stay
            float.
        adds_passes: Whether passes that nobody names may run where much is lost.
    """

    plan: QuantizedGraph
    methods: Sequence[Method]
    deployment: Deployment
    planner: Planner
    requests: Sequence[Request] = ()
    unasked: Note | None = None
    floats_ends: bool = False
    adds_passes: bool = False

    @staticmethod
    def of(
        planner: Planner,
        methods: Sequence[Method],
        deployment: Deployment,
        requests: Sequence[Request] = (),
    ) -> Job:
        """Return the job of what a planner plans first."""
        return Job(planner.plan(), methods, deployment, planner, requests)

    def keeping(
        self,
        names: Sequence[str],
        graph: Graph | None = None,
        apart: Collection[TensorEnd] = (),
    ) -> QuantizedGraph:
        """Make the plan again with these nodes in float too; see `Planner.plan`."""
        return self.planner.plan(names, graph, apart)

    def on(self, graph: Graph) -> Job:
        """Return the job for a graph that a rewrite made."""
        return self._replanned(msgspec.structs.replace(self.planner, source=graph))

    def apart(self, ends: Collection[TensorEnd]) -> QuantizedGraph:
        """Make the plan again with inputs of joins requantized."""
        return self.planner.plan(apart=ends)

    def requantizing(self, ends: Collection[TensorEnd]) -> Job:
        """Return the job that requantizes inputs of joins in all its plans."""
        apart = self.planner.apart | frozenset(ends)
        return self._replanned(msgspec.structs.replace(self.planner, apart=apart))

    def with_caches(self, ranges: CacheRanges) -> Job:
        """Return the job that gives caches their scales in all its plans."""
        return self._replanned(msgspec.structs.replace(self.planner, caches=ranges))

    def with_bits(self, places: Mapping[str, int]) -> Job:
        """Return the job that gives places these bit-widths in all its plans, beside those asked.

        Args:
            places: Bit-widths as in `Overrides.bits`, by node; those that the user gave stay, by
                pattern too.
        """
        base = self.planner.overrides or Overrides()
        asked = base.resolved(self.plan.graph).overrides.bits
        more = {place: bits for place, bits in places.items() if place not in asked}
        overrides = msgspec.structs.replace(base, bits={**more, **base.bits})
        return self._replanned(msgspec.structs.replace(self.planner, overrides=overrides))

    def in_float(
        self, names: Sequence[str], note: Note | None, decide: Decide | None = None
    ) -> Job:
        """Return the job that keeps nodes in float in all its plans.

        Args:
            names: The nodes' names.
            note: Says so; None where that is said later.
            decide: Gives their decisions other reasons; None leaves those of the planner.
        """
        kept = (*self.planner.kept, KeptFloat(tuple(names), decide))
        changed = self._replanned(msgspec.structs.replace(self.planner, kept=kept))
        notes = () if note is None else (note,)
        return msgspec.structs.replace(changed, plan=changed.plan.with_notes(notes))

    def _replanned(self, planner: Planner) -> Job:
        """Return the job with other plans; what was noted beside planning stays noted."""
        plan = planner.plan()
        # Planning again gives its own notes again, and would double them.
        notes = tuple(note for note in self.plan.notes if note not in plan.notes)
        return msgspec.structs.replace(self, plan=plan.with_notes(notes), planner=planner)
