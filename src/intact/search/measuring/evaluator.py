"""Measuring candidates: plan, run, score, and stop where it cannot matter any more."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from intact.errors import IntactError, PlanError, UsageError
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.run.integer import IntegerEngine
from intact.run.limits import limits_of_simulation, needs_integers
from intact.run.piecewise import PiecewiseSimulator
from intact.search.measuring.bench import Bench
from intact.search.measuring.chunks import Chunk
from intact.search.measuring.kinds import Arrays, Rows
from intact.search.measuring.scoring import Scoring, signal_power
from intact.search.plans import Planner
from intact.search.space import Candidate
from intact.search.trial import Ask, Executor, Measured, State

__all__ = ["Bench", "Evaluator"]

FIRST_ROUND = 32
"""Samples after which a trial is first held against its bar; then after twice as many."""

Run: TypeAlias = Callable[[int], Arrays]
"""Runs the chunk of a number and gives its outputs by name; safe for different ones at once."""


class Evaluator:
    """Measures candidates, one after the other.

    Args:
        bench: What on.
        threads: Chunks that run side by side; 0 takes all cores. Results do not depend on it.
    """

    def __init__(self, bench: Bench, *, threads: int = 0) -> None:
        self.bench = bench
        self.planner = Planner(bench.space, bench.statistics, bench.method)
        budgets = {"cache_bytes": bench.cache_bytes, "session_bytes": bench.session_bytes}
        given = {name: size for name, size in budgets.items() if size is not None}
        self._simulator = PiecewiseSimulator(bench.space.plan.graph, **given)
        self._threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None
        self._signals: dict[int, Rows] = {}

    def measure(self, ask: Ask) -> Measured:
        """Try a candidate: by simulation, or by the integer engine where float32 cannot follow.

        Returns:
            FAILED, with the reason, where there is no plan, the outputs are no numbers or the
            metric fails; STOPPED where it cannot reach the bar.

        Raises:
            UsageError: The candidate is none of the space, or the bar is NaN.
        """
        self.bench.space.check(ask.candidate)
        if ask.bar is not None and math.isnan(ask.bar):
            raise UsageError("a bar of NaN", remedy="give a score, or None")
        samples = self.bench.samples if ask.samples is None else ask.samples
        samples = max(1, min(samples, self.bench.samples))
        return self._timed(lambda: self._tried(ask, samples))

    def confirm(self, candidate: Candidate) -> Measured:
        """Measure a candidate on all samples, by the integer engine where float32 is not exact.

        Returns:
            COMPLETE; where there is no integer program and the simulation had to do, ``reason``
            says why. FAILED as in ``measure``.
        """
        self.bench.space.check(candidate)
        return self._timed(lambda: self._confirmed(candidate))

    @cached_property
    def float_score(self) -> float:
        """The float model's own score on all samples.

        Raises:
            DataError: The metric fails on it.
        """
        chunks = self.bench.chunks
        return self._scored(lambda index: chunks[index].float_outputs(), self.bench.samples).score

    def _tried(self, ask: Ask, samples: int) -> Measured:
        plan = self.planner.plan(ask.candidate)
        if not needs_integers(plan):
            return self._scored(self._simulation(plan), samples, ask.bar)
        return self._exact(plan, samples, ask.bar)

    def _confirmed(self, candidate: Candidate) -> Measured:
        plan = self.planner.plan(candidate)
        if not limits_of_simulation(plan):
            return self._scored(self._simulation(plan), self.bench.samples)
        return self._exact(plan, self.bench.samples)

    def _exact(self, plan: QuantizedGraph, samples: int, bar: float | None = None) -> Measured:
        """Run the integer engine; the simulation, and say so, where it cannot."""
        try:
            run = self._integers(plan)
        except PlanError as error:
            found = self._scored(self._simulation(plan), samples, bar)
            reason = found.reason or f"simulated, there is no integer program: {error}"
            return replace(found, reason=reason)
        return replace(self._scored(run, samples, bar), executor=Executor.INTEGER)

    def _simulation(self, plan: QuantizedGraph) -> Run:
        prepared, chunks = self._simulator.prepare(plan), self.bench.chunks
        return lambda index: self._simulator.run(prepared, index, dict(chunks[index].feeds))

    def _integers(self, plan: QuantizedGraph) -> Run:
        engine = IntegerEngine(lower(plan), threads=1)
        chunks = self.bench.chunks
        return lambda index: engine.run(chunks[index].feeds).outputs

    def _timed(self, measure: Callable[[], Measured]) -> Measured:
        started = time.perf_counter()
        try:
            found = measure()
        except UsageError:
            raise
        except IntactError as error:
            found = Measured(State.FAILED, math.nan, math.nan, 0, reason=str(error))
        return replace(found, seconds=time.perf_counter() - started)

    def _scored(self, run: Run, samples: int, bar: float | None = None) -> Measured:
        """Run rounds of chunks; nothing that is decided depends on which of them is done first."""
        scoring = Scoring(self.bench, samples)
        is_whole = bar is None or self.bench.objective.needs_outputs
        ends = [samples] if is_whole else list(_ends(self.bench.chunks, samples))
        done = 0
        for end in ends:
            first, done = done, _chunks_until(self.bench.chunks, end)
            numbers = range(first, done)
            for index, outputs in zip(numbers, self._outputs(run, numbers), strict=True):
                scoring.add(self.bench.chunks[index], outputs)
            if scoring.done < samples and bar is not None:
                share = scoring.done / sum(ends[:-1])
                if not scoring.can_reach(bar, self._signal(samples), share=share):
                    return _measured(State.STOPPED, scoring)
        return _measured(State.COMPLETE, scoring)

    def _outputs(self, run: Run, numbers: Sequence[int]) -> Iterator[Arrays]:
        if self._pool is None or len(numbers) < 2:
            return map(run, numbers)
        return self._pool.map(run, numbers)

    def _signal(self, samples: int) -> Rows:
        if samples not in self._signals:
            self._signals[samples] = signal_power(self.bench, samples)
        return self._signals[samples]


def _measured(state: State, scoring: Scoring) -> Measured:
    return Measured(state, scoring.score, scoring.noise, scoring.done)


def _ends(chunks: Sequence[Chunk], samples: int) -> Iterator[int]:
    """Yield how many samples are done after each round: about 32, 64, 128 ..., then all."""
    done, end = 0, FIRST_ROUND
    for chunk in chunks:
        done += chunk.count
        if done >= samples:
            break
        if done >= end:
            yield done
            while end <= done:
                end *= 2
    yield samples


def _chunks_until(chunks: Sequence[Chunk], samples: int) -> int:
    """Return how many chunks hold the first samples."""
    done = 0
    for number, chunk in enumerate(chunks, start=1):
        done += chunk.count
        if done >= samples:
            return number
    return len(chunks)
