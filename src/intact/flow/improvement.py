"""Runs the improvement passes, and rolls back each after which the outputs are not better."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
from threadpoolctl import threadpool_limits

from intact.calibrate.outputs import Errors, FloatRuns
from intact.data.progress import Progress, begin
from intact.data.stream import Samples
from intact.graph import Graph
from intact.improve.passes import PASSES, Request, Stage
from intact.limits import CHOSEN
from intact.plan import Note
from intact.plan.gains import Gain, Improvement
from intact.results.figures import TriedPass
from intact.results.job import Scaled

Recalibrate = Callable[[Graph], Scaled]
"""Calibrates a graph that a rewrite made, for the same target and samples."""


class Rewritten(NamedTuple):
    """What a rewrite made of a graph.

    Attributes:
        graph: The graph as it was.
        scaled: What was made of it.
        gains: What that gained in each block.
    """

    graph: Graph
    scaled: Scaled
    gains: Sequence[Gain]

    def told(self, notes: tuple[Note, ...]) -> Rewritten:
        """Return it with what was noted since."""
        plan, choice = self.scaled.plan.with_notes(notes), self.scaled.choice
        if choice is not None:
            choice = msgspec.structs.replace(choice, plan=plan)
        return self._replace(scaled=self.scaled._replace(plan=plan, choice=choice))


@dataclass(frozen=True)
class Improver:
    """Runs passes one after another.

    Attributes:
        requests: The passes.
        samples: Opens the samples anew.
        recalibrate: Gives the graph of a rewrite its scales.
        progress: Takes names of phases.
        threads: Threads inside one operator; 0 lets the runtime choose.
        rewritten: What rewrites made before, for the same planner, which is not made again; takes
            what they make.
    """

    requests: Sequence[Request]
    samples: Callable[[Graph], Samples]
    recalibrate: Recalibrate
    progress: Progress | None = None
    threads: int = 0
    rewritten: dict[Request, Rewritten] = field(default_factory=dict)

    def improve(self, scaled: Scaled, runs: FloatRuns) -> Scaled:
        """Run the passes on a plan with scales.

        Args:
            scaled: The plan with scales, and how they were chosen.
            runs: The samples that the outputs are compared on.
        """
        if scaled.choice is None or not self.requests:
            return scaled
        judges, choice = runs.first(CHOSEN), scaled.choice
        # Run anew only where it was chosen on fewer.
        choice = choice if len(choice.runs) == len(judges) else choice.on(judges)
        best = now = scaled._replace(choice=choice)
        tried: list[TriedPass] = []
        open_since = 0
        for number, request in enumerate(self.requests, 1):
            start = time.perf_counter()
            begin(self.progress, f"improving: {request.name}")
            gains: list[Gain] = []
            # Threads of NumPy's own would change the order of sums, and wait for each other.
            with threadpool_limits(1, "blas"):
                found = self._run(request, now, gains)
            before, after = _errors(now).mean, _errors(found).mean
            record = Improvement(str(request), before, after, found is not now, tuple(gains))
            tried.append(TriedPass(record, time.perf_counter() - start))
            now = found
            # A pass that prepares for another may lose by itself: both are judged together.
            if request.is_checked and PASSES[request.name].prepares and number < len(self.requests):
                continue
            if request.is_checked and not _helps(best, now):
                # With those that prepared for it.
                tried[open_since:] = [each.rolled_back for each in tried[open_since:]]
                now = best
            best, open_since = now, len(tried)
        records = [each.improvement for each in tried]
        plan = replace(best.plan, provenance=best.plan.provenance.improved(records))
        return best._replace(plan=plan, tried=tuple(tried))

    def _run(self, request: Request, best: Scaled, gains: list[Gain]) -> Scaled:
        """Run one pass; what it was given is returned where it changed nothing."""
        choice = best.choice
        if choice is None:
            return best
        known = PASSES[request.name]
        samples = self.samples(best.plan.graph)
        run = known.load()
        arguments = {"threads": self.threads, **request.arguments}
        if known.stage is Stage.REWRITE:
            graph = best.plan.graph
            done = self.rewritten.get(request)
            if done is None or done.graph is not graph:
                made = run(best.plan, samples, report=gains.append, **arguments)
                again = best if made is graph else self.recalibrate(made)
                done = Rewritten(graph, again, tuple(gains))
            else:
                gains += done.gains
            if done.scaled.plan.graph is graph or done.scaled.choice is None:
                return best
            # On the same samples, or errors before and after could not be compared.
            if len(done.scaled.choice.runs) != len(choice.runs):
                measured = done.scaled._replace(choice=done.scaled.choice.on(choice.runs))
                done = done._replace(scaled=measured)
            self.rewritten[request] = done
            return done.scaled
        plan = run(best.plan, samples, report=gains.append, **arguments)
        return best._replace(plan=plan, choice=choice.changed(plan))


def _errors(scaled: Scaled) -> Errors:
    return Errors({}) if scaled.choice is None else scaled.choice.errors


def _helps(before: Scaled, after: Scaled) -> bool:
    """Tell whether a detector finds more, or else the outputs are better and none loses."""
    if before.choice is not None and after.choice is not None:
        from intact.analyze.detected import finds_more  # few have boxes

        told = finds_more(after.choice, before.choice)
        if told is not None:
            return told
    was, has = _errors(before), _errors(after)
    return has.is_better(was) and not has.loses(was)
