"""Measures the candidates of a search: plan, run, score, and stop early.

`Evaluator`, the second half of this file, is what a search calls. It makes the plan of a candidate,
runs it on the trial data chunk by chunk, and gives the outputs to a `Scoring`, which holds the
score so far::

    evaluator = Evaluator(trial_data)
    evaluator.measure(Ask(candidate, samples=512, bar=0.74))
    # TrialResult(State.STOPPED, score=0.69, noise=0.021, samples=64)

The ``bar`` is the score that a candidate must reach. After 32, 64, 128, ... samples `Scoring` makes
a `Tally` of them, from which `stopping` tells whether the bar can still be reached.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from intact.data.batching import real_samples
from intact.data.metric import OutputRecord
from intact.engines.executor import integer_run
from intact.engines.limits import limits_of_simulation
from intact.engines.piecewise import PiecewisePlan, PiecewiseSimulator
from intact.errors import DataError, IntactError, PlanError, UsageError
from intact.plan import QuantizedGraph
from intact.search.measuring.objective import Arrays, OutputPair, Rows, float_pairs, margins_of
from intact.search.measuring.stopping import Tally, can_reach, foresee
from intact.search.measuring.trial_data import Chunk, TrialData, not_finite
from intact.search.space import Candidate
from intact.search.trial import Ask, Executor, State, TrialResult

_SLACK = 1.0 + 1e-9

"""Tolerance of a bound on noise, for the rounding of decibels and powers."""


class Power(NamedTuple):
    """Signal and noise power of each output and sample, float64 ``[outputs, samples]``."""

    signal: Rows
    noise: Rows


@dataclass
class Scoring:
    """The score of a trial, accumulated over its samples.

    Powers of signal and error are kept of each sample, for SQNR and ``noise``. What else is kept
    depends on the objective: the contribution of each sample (with margins, where it is 0 or 1 as
    in accuracy), or all outputs for a user's metric.

    Attributes:
        data: The trial data.
        population: Number of samples that the trial will run.
        done: Samples added so far.
    """

    data: TrialData
    population: int
    done: int = 0
    _rows: list[Rows] = field(default_factory=list)
    _margins: list[Rows] = field(default_factory=list)
    _power: list[Power] = field(default_factory=list)
    _record: OutputRecord = field(default_factory=OutputRecord)
    _float_record: OutputRecord = field(default_factory=OutputRecord)
    _is_comparable: bool = True

    def add(self, chunk: Chunk, outputs: Arrays) -> None:
        """Add the outputs of a chunk; samples beyond the population are left out.

        Raises:
            DataError: An output holds NaN or infinity, or its shape differs from that of the float
                model's output.
        """
        # A trial on few samples may end inside a chunk, which runs whole.
        count = min(chunk.count, self.population - self.done)
        have = real_samples(outputs, chunk.size, count)
        odd = not_finite(have)
        if odd:
            raise DataError(f"output {odd!r} holds NaN or infinity")
        labels = None if chunk.labels is None else chunk.labels[:count]
        want = real_samples(chunk.outputs, chunk.count, count)
        seen = OutputPair(want, have, count, labels, self.data.is_probability)
        kind = self.data.objective.row
        if self.data.objective.needs_outputs:
            # A metric may take outputs of any shape, so they are kept as the model gives them.
            self._record.add(outputs, chunk.size, count)
            if self.data.objective.needs_float:
                self._float_record.add(chunk.outputs, chunk.count, count)
        elif kind.rows is not None:
            _refuse_other_shape(seen)
            self._rows.append(kind.rows(seen))
            if kind.is_count:
                self._margins.append(margins_of(seen))
        self._add_power(seen)
        self.done += count

    def _add_power(self, seen: OutputPair) -> None:
        try:
            self._power.append(_power(seen))
        except DataError:  # a metric may compare outputs of variable shape
            if not self.data.objective.needs_outputs:
                raise
            self._is_comparable = False

    @property
    def noise(self) -> float:
        """Error power over signal power, mean of the outputs; NaN where they cannot be compared."""
        if not self._is_comparable or not self._power:
            return math.nan
        return _noise(self._joined)

    @property
    def score(self) -> float:
        """The score of the samples so far.

        Raises:
            DataError: The user's metric fails.
        """
        objective = self.data.objective
        if objective.needs_outputs:
            references = {
                name: values[: self.done] for name, values in self.data.references.items()
            }
            in_float = self._float_record if objective.needs_float else None
            return objective.of_metric(self._record, references, in_float)
        if objective.kind == "sqnr":
            noise = self.noise
            return math.inf if noise == 0.0 else -10.0 * math.log10(noise)
        rows = np.concatenate(self._rows)
        # Counted in integers: the same hits give the same score in any order of chunks.
        if objective.row.is_count:
            return objective.row.highest * int(np.count_nonzero(rows)) / len(rows)
        return float(rows.mean())

    def can_reach(self, bar: float, signal: Rows, *, share: float) -> bool:
        """Tell whether the score of the whole population can still reach ``bar``.

        Args:
            bar: The required score.
            signal: Power of each float output over the population, ``[outputs]``.
            share: The part of the allowed error that this check may use.
        """
        judged = self._tally(bar, signal)
        return judged is None or can_reach(*judged, share=share, error=self.data.error)

    def foresee(self, bar: float, signal: Rows) -> bool | None:
        """Foresee whether the score of the whole population reaches ``bar``; None if unclear.

        Arguments are those of `can_reach`.
        """
        judged = self._tally(bar, signal)
        return None if judged is None else foresee(*judged, error=self.data.error)

    def _tally(self, bar: float, signal: Rows) -> tuple[Tally, float] | None:
        """Return the samples so far and the mean that they need; None where no mean is the score.

        So it is for a user's metric, and for SQNR where a float output is 0 everywhere.
        """
        kind = self.data.objective.row
        if self.data.objective.needs_outputs:
            return None
        if kind.is_count:
            population = slice(self.population)
            known = self.data.float_margins[population], np.concatenate(self._margins)
            hits = self.data.float_hits[population]
            rows = np.concatenate(self._rows)
            return Tally(rows, self.population, kind.highest, True, hits, known), bar
        if kind.rows is not None:
            return Tally(np.concatenate(self._rows), self.population, kind.highest), bar
        if not signal.all():
            return None
        # SQNR >= bar is noise <= 10^(-bar / 10). With the power of the float outputs over all
        # samples, which is known beforehand, noise is a mean over the samples.
        rows = -(self._joined.noise / signal[:, None]).mean(axis=0) * self.population
        least = -math.inf if bar == -math.inf else -(10.0 ** (-bar / 10.0)) * _SLACK
        return Tally(rows, self.population, 0.0), least

    @property
    def _joined(self) -> Power:
        parts = zip(*self._power, strict=True)
        return Power(*(np.concatenate(part, axis=1) for part in parts))


def float_score(trial_data: TrialData) -> float:
    """Score the float model on all samples.

    Raises:
        DataError: The metric fails.
    """
    scoring = Scoring(trial_data, trial_data.samples)
    for chunk in trial_data.chunks:
        scoring.add(chunk, chunk.float_outputs())
    return scoring.score


def signal_power(trial_data: TrialData, population: int) -> Rows:
    """Compute the power of each float output over the first samples, ``[outputs]``."""
    scoring = Scoring(trial_data, population)
    for chunk in trial_data.chunks:
        if scoring.done < population:
            count = min(chunk.count, population - scoring.done)
            want = real_samples(chunk.outputs, chunk.count, count)
            scoring._power.append(_power(OutputPair(want, want, count, None)))
            scoring.done += count
    return np.asarray(scoring._joined.signal.sum(axis=1))


def _power(seen: OutputPair) -> Power:
    pairs = float_pairs(seen)
    signal = [(want**2).sum(axis=1) for want, _ in pairs]
    noise = [((want - have) ** 2).sum(axis=1) for want, have in pairs]
    empty = np.zeros((0, seen.count))
    return Power(np.stack(signal), np.stack(noise)) if pairs else Power(empty, empty)


def _noise(power: Power) -> float:
    signal, noise = power.signal.sum(axis=1), power.noise.sum(axis=1)
    if not signal.size:
        return 0.0
    with np.errstate(divide="ignore"):
        ratios = np.where(noise == 0.0, 0.0, noise / np.where(signal == 0.0, 1.0, signal))
    ratios[(signal == 0.0) & (noise > 0.0)] = np.inf
    return float(ratios.mean())


def _refuse_other_shape(seen: OutputPair) -> None:
    want, have = seen.first
    if want.shape != have.shape:
        raise DataError(
            f"the first output has shape {list(have.shape)}, the float model's {list(want.shape)}"
        )


__all__ = ["Evaluator", "TrialData"]

FIRST_ROUND = 32

"""Samples after which a trial is first compared with its bar; then after twice as many each
time.
"""

Run: TypeAlias = Callable[[int], Arrays]

"""Runs a chunk, given by its number, and returns its outputs by name; thread-safe."""


class Evaluator:
    """Measures candidates.

    A candidate is simulated in float32 where that is exact, and is run by the integer engine
    elsewhere.

    Args:
        trial_data: The samples in chunks, with the float model's outputs and the objective.
        threads: Chunks that run in parallel; 0 uses all cores. Results do not depend on it.
    """

    def __init__(self, trial_data: TrialData, *, threads: int = 0) -> None:
        self.data = trial_data
        self.planner = trial_data.planner
        budgets = {"cache_bytes": trial_data.cache_bytes, "session_bytes": trial_data.session_bytes}
        given = {name: size for name, size in budgets.items() if size is not None}
        self._simulator = PiecewiseSimulator(trial_data.space.plan.graph, **given)
        self._threads = threads or os.cpu_count() or 1
        # Chunks side by side and one thread in each: no kernel then divides its sums by the number
        # of cores.
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None
        self._signals: dict[int, Rows] = {}

    def measure(self, ask: Ask) -> TrialResult:
        """Measure a candidate: by simulation, or by the integer engine where float32 is too
        inexact.

        Returns:
            FAILED, with the reason, where there is no plan, the outputs are NaN or infinite or the
            metric fails; STOPPED where the trial cannot reach the bar.

        Raises:
            UsageError: The candidate does not belong to the space, or the bar is NaN.
        """
        self.data.space.check(ask.candidate)
        if ask.bar is not None and math.isnan(ask.bar):
            raise UsageError("a bar of NaN", remedy="give a score, or None")
        samples = self.data.samples if ask.samples is None else ask.samples
        samples = max(1, min(samples, self.data.samples))
        return self._time(lambda: self._measure(ask, samples))

    def confirm(self, candidate: Candidate) -> TrialResult:
        """Measure a candidate on all samples, by the integer engine where float32 is not exact.

        Returns:
            COMPLETE, with a ``reason`` where it was simulated because there is no integer program.
            FAILED as in ``measure``.
        """
        self.data.space.check(candidate)
        return self._time(lambda: self._confirm(candidate))

    def _measure(self, ask: Ask, samples: int) -> TrialResult:
        plan = self.planner.plan(ask.candidate)
        prepared = self._simulator.prepare(plan)
        if prepared.is_exact:
            return self._score_run(self._run(prepared), samples, ask)
        return self._measure_exactly(plan, samples, ask)

    def _confirm(self, candidate: Candidate) -> TrialResult:
        plan = self.planner.plan(candidate)
        if not limits_of_simulation(plan):
            return self._score_run(self._simulated_run(plan), self.data.samples)
        return self._measure_exactly(plan, self.data.samples)

    def _measure_exactly(
        self, plan: QuantizedGraph, samples: int, ask: Ask | None = None
    ) -> TrialResult:
        """Run the integer engine; where that is impossible the simulation, with a reason."""
        try:
            run = self._integer_run(plan)
        except PlanError as error:
            found = self._score_run(self._simulated_run(plan), samples, ask)
            reason = found.reason or f"simulated, there is no integer program: {error}"
            return replace(found, reason=reason)
        return replace(self._score_run(run, samples, ask), executor=Executor.INTEGER)

    def _simulated_run(self, plan: QuantizedGraph) -> Run:
        return self._run(self._simulator.prepare(plan))

    def _run(self, prepared: PiecewisePlan) -> Run:
        chunks = self.data.chunks
        return lambda index: self._simulator.run(prepared, index, dict(chunks[index].feeds))

    def _integer_run(self, plan: QuantizedGraph) -> Run:
        # One thread, as chunks run in parallel already.
        run = integer_run(plan, threads=1)
        chunks = self.data.chunks
        return lambda index: dict(run(dict(chunks[index].feeds)))

    def _time(self, measure: Callable[[], TrialResult]) -> TrialResult:
        started = time.perf_counter()
        try:
            found = measure()
        # The request is wrong, not the candidate.
        except UsageError:
            raise
        except IntactError as error:
            found = TrialResult(State.FAILED, math.nan, math.nan, 0, reason=str(error))
        return replace(found, seconds=time.perf_counter() - started)

    def _score_run(self, run: Run, samples: int, ask: Ask | None = None) -> TrialResult:
        """Run rounds of chunks; the result does not depend on the order in which they finish."""
        scoring, bar = Scoring(self.data, samples), None if ask is None else ask.bar
        is_whole = bar is None or self.data.objective.needs_outputs
        # A metric needs all outputs together, so it is never stopped early.
        ends = [samples] if is_whole else list(_ends(self.data.chunks, samples))
        done = 0
        for end in ends:
            first, done = done, _chunks_until(self.data.chunks, end)
            numbers = range(first, done)
            for index, outputs in zip(numbers, self._outputs(run, numbers), strict=True):
                scoring.add(self.data.chunks[index], outputs)
            if scoring.done < samples and bar is not None:
                # Shares of all checks add up to 1 (Bonferroni); the last round is no check.
                share, signal = scoring.done / sum(ends[:-1]), self._signal(samples)
                if not scoring.can_reach(bar, signal, share=share):
                    return _result(State.STOPPED, scoring)
                foreseen = scoring.foresee(bar, signal) if ask and ask.is_enough else None
                if foreseen is not None:
                    return _result(State.REACHED if foreseen else State.STOPPED, scoring)
        return _result(State.COMPLETE, scoring)

    def _outputs(self, run: Run, numbers: Sequence[int]) -> Iterator[Arrays]:
        if self._pool is None or len(numbers) < 2:
            return map(run, numbers)
        return self._pool.map(run, numbers)

    def _signal(self, samples: int) -> Rows:
        if samples not in self._signals:
            self._signals[samples] = signal_power(self.data, samples)
        return self._signals[samples]


def _result(state: State, scoring: Scoring) -> TrialResult:
    return TrialResult(state, scoring.score, scoring.noise, scoring.done)


def _ends(chunks: Sequence[Chunk], samples: int) -> Iterator[int]:
    """Yield the number of samples after each round: about 32, 64, 128 ..., then all.

    Rounds end with chunks: chunks of 20 samples give 40, 80, 140, ...
    """
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
    """Count the chunks that hold the first samples."""
    done = 0
    for number, chunk in enumerate(chunks, start=1):
        done += chunk.count
        if done >= samples:
            return number
    return len(chunks)
