"""One line of a search's log: the TVM document's format, strict, and what a search needs besides.

Source: the TVM document (HAGO), "Log Format": ``version``, ``strategy`` and ``results`` are its;
``search`` is added, so that a search can be continued. ``log.schema.json`` says the same.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import msgspec

from intact.search.logs.settings import Count, LogSettings
from intact.search.strategy import Strategy
from intact.search.trial import Executor, Measured, State, Trial

LOG_VERSION = 1

Choice: TypeAlias = Annotated[int, msgspec.Meta(ge=2, le=32)]


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a trial gave.

    Attributes:
        sim_acc: The score, higher is better; None if it is no finite number.
        cost: Lower is better.
        noise: Power of the error of the outputs over their power.
        samples: Samples run.
        state: How it ended.
        seconds: It took.
        executor: What computed it.
        reason: Of a failure, or why a simulation had to do where integers were wanted.
        not_finite: Which of the numbers that are None stand for ``inf`` or ``-inf``; a None that
            is not named here is NaN.
    """

    sim_acc: float | None
    cost: float | None
    noise: float | None
    samples: Count
    state: State
    seconds: float | None
    executor: Executor
    reason: str = ""
    not_finite: dict[str, Literal["inf", "-inf"]] = {}


class SearchPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where in which search a line belongs.

    Attributes:
        trial: Number of the trial, from 0.
        candidate: Bits, one for each group of the choice space; 32 is float.
        settings: Of the search; the same in every line.
        confirms: The line is no trial of its own: an earlier one was run again on all samples,
            to give what the hardware computes.
    """

    trial: Count
    candidate: tuple[Choice, ...]
    settings: LogSettings
    confirms: bool = False


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line.

    Attributes:
        version: Of the format.
        strategy: None if no plan could be made of the candidate.
        results: What it gave.
        search: Where it belongs.
    """

    version: int
    strategy: Strategy | None
    results: Results
    search: SearchPart

    @staticmethod
    def of(
        trial: Trial, strategy: Strategy | None, settings: LogSettings, *, confirms: bool = False
    ) -> Entry:
        """Return the line of a trial."""
        measured = trial.measured
        numbers = {
            "sim_acc": float(measured.score),
            "cost": float(trial.cost),
            "noise": float(measured.noise),
            "seconds": float(measured.seconds),
        }
        finite = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
        infinite = {name: str(x) for name, x in numbers.items() if math.isinf(x)}
        results = Results(
            **finite,
            samples=int(measured.samples),
            state=measured.state,
            executor=measured.executor,
            reason=measured.reason,
            not_finite=infinite,  # type: ignore[arg-type]  # str(inf) is "inf"
        )
        candidate = tuple(int(bits) for bits in trial.candidate)
        part = SearchPart(trial.number, candidate, settings, confirms)
        return Entry(LOG_VERSION, strategy, results, part)

    @property
    def trial(self) -> Trial:
        """The trial as it was told to the sampler."""
        return trial_of(self.results, self.search)

    @property
    def settings(self) -> LogSettings:
        """Of the search."""
        return self.search.settings

    @property
    def is_confirmation(self) -> bool:
        """Whether an earlier trial was run again, to give what the hardware computes."""
        return self.search.confirms


class Skimmed(msgspec.Struct, forbid_unknown_fields=True):
    """An `Entry` whose strategy is not looked at."""

    version: int
    strategy: msgspec.Raw
    results: Results
    search: SearchPart


class Head(msgspec.Struct):
    """What every version of the format begins with."""

    version: int


def trial_of(results: Results, search: SearchPart) -> Trial:
    """Return the trial that a line tells of."""
    named = results.not_finite

    def number(name: str, value: float | None) -> float:
        return float(named.get(name, "nan")) if value is None else value

    measured = Measured(
        results.state,
        number("sim_acc", results.sim_acc),
        number("noise", results.noise),
        results.samples,
        number("seconds", results.seconds),
        results.reason,
        results.executor,
    )
    return Trial(search.trial, search.candidate, number("cost", results.cost), measured)
