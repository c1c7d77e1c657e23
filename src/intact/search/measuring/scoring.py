"""Adding up what chunks of samples gave, in their order, until a score is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from intact.errors import DataError
from intact.samples.batching import real_samples
from intact.samples.metric import OutputRecord
from intact.search.measuring.bench import Bench
from intact.search.measuring.chunks import Chunk, not_finite
from intact.search.measuring.kinds import Arrays, Rows, Seen, float_pairs
from intact.search.measuring.stopping import Tally, can_reach

_SLACK = 1.0 + 1e-9
"""Of a bound on noise, for what decibels and powers are rounded by."""


class Power(NamedTuple):
    """Of each output and sample, float64 ``[outputs, samples]``."""

    signal: Rows
    noise: Rows


@dataclass
class Scoring:
    """What the samples of a trial gave so far.

    Attributes:
        bench: What it runs on.
        population: Samples that the trial is to run.
        done: Samples added so far.
    """

    bench: Bench
    population: int
    done: int = 0
    _rows: list[Rows] = field(default_factory=list)
    _power: list[Power] = field(default_factory=list)
    _record: OutputRecord = field(default_factory=OutputRecord)
    _is_comparable: bool = True

    def add(self, chunk: Chunk, outputs: Arrays) -> None:
        """Add what a chunk gave; the samples beyond the population are left out.

        Raises:
            DataError: An output holds NaN or infinity, or has another shape than the float
                model's where it is compared with that.
        """
        count = min(chunk.count, self.population - self.done)
        have = real_samples(outputs, chunk.size, count)
        odd = not_finite(have)
        if odd:
            raise DataError(f"output {odd!r} holds NaN or infinity")
        labels = None if chunk.labels is None else chunk.labels[:count]
        want = real_samples(chunk.outputs, chunk.count, count)
        seen = Seen(want, have, count, labels, self.bench.is_probability)
        kind = self.bench.objective.row
        if self.bench.objective.needs_outputs:
            self._record.add(outputs, chunk.size, count)
        elif kind.rows is not None:
            _refuse_other_shape(seen)
            self._rows.append(kind.rows(seen))
        self._add_power(seen)
        self.done += count

    def _add_power(self, seen: Seen) -> None:
        try:
            self._power.append(_power(seen))
        except DataError:  # a metric may compare what has another shape each time
            if not self.bench.objective.needs_outputs:
                raise
            self._is_comparable = False

    @property
    def noise(self) -> float:
        """Error power over power, mean of the outputs; NaN where they cannot be compared."""
        if not self._is_comparable or not self._power:
            return math.nan
        return _noise(self._joined)

    @property
    def score(self) -> float:
        """Of the samples so far.

        Raises:
            DataError: The user's metric fails.
        """
        objective = self.bench.objective
        if objective.needs_outputs:
            references = {
                name: values[: self.done] for name, values in self.bench.references.items()
            }
            return objective.of_metric(self._record, references)
        if objective.kind == "sqnr":
            noise = self.noise
            return math.inf if noise == 0.0 else -10.0 * math.log10(noise)
        rows = np.concatenate(self._rows)
        if objective.row.is_count:
            return objective.row.highest * int(np.count_nonzero(rows)) / len(rows)
        return float(rows.mean())

    def can_reach(self, bar: float, signal: Rows, *, share: float) -> bool:
        """Tell whether the score of the whole population may still be ``bar`` or more.

        Args:
            bar: What has to be reached.
            signal: Power of each float output over the population, ``[outputs]``.
            share: Of the error allowed, for this look.
        """
        kind, error = self.bench.objective.row, self.bench.error
        if self.bench.objective.needs_outputs:
            return True
        if kind.rows is not None:
            rows = np.concatenate(self._rows)
            base = self.bench.float_hits[: self.population] if kind.is_count else None
            tally = Tally(rows, self.population, kind.highest, kind.is_count, base)
            return can_reach(tally, bar, share=share, error=error)
        if not signal.all():
            return True
        # SQNR >= bar is noise <= 10^(-bar / 10), and noise is a mean of what samples contribute,
        # once the power of the float outputs, which is known beforehand, is that of them all.
        rows = -(self._joined.noise / signal[:, None]).mean(axis=0) * self.population
        least = -math.inf if bar == -math.inf else -(10.0 ** (-bar / 10.0)) * _SLACK
        return can_reach(Tally(rows, self.population, 0.0), least, share=share, error=error)

    @property
    def _joined(self) -> Power:
        parts = zip(*self._power, strict=True)
        return Power(*(np.concatenate(part, axis=1) for part in parts))


def signal_power(bench: Bench, population: int) -> Rows:
    """Return the power of each float output over the first samples, ``[outputs]``."""
    scoring = Scoring(bench, population)
    for chunk in bench.chunks:
        if scoring.done < population:
            count = min(chunk.count, population - scoring.done)
            want = real_samples(chunk.outputs, chunk.count, count)
            scoring._power.append(_power(Seen(want, want, count, None)))
            scoring.done += count
    return np.asarray(scoring._joined.signal.sum(axis=1))


def _power(seen: Seen) -> Power:
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


def _refuse_other_shape(seen: Seen) -> None:
    want, have = seen.first
    if want.shape != have.shape:
        raise DataError(
            f"the first output has shape {list(have.shape)}, the float model's {list(want.shape)}"
        )
