"""Trials with their strategies, into a log or into memory alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from intact.errors import IntactError
from intact.search.logs.log import Log
from intact.search.plans import Planner
from intact.search.space import Candidate
from intact.search.strategy import Strategy
from intact.search.trial import Trial


@dataclass
class Recorded:
    """Writes trials into a log, each with the strategy that its candidate stands for.

    Attributes:
        log: None keeps nothing.
        planner: Makes the plans that strategies are of.
    """

    log: Log | None
    planner: Planner

    @property
    def trials(self) -> Sequence[Trial]:
        """Those of the run that is resumed."""
        return () if self.log is None else self.log.trials

    @property
    def confirmed(self) -> Mapping[int, Trial]:
        """Those that were run again already, by number."""
        return {} if self.log is None else self.log.confirmed

    def append(self, trial: Trial) -> None:
        """Write one trial; it is durable when this returns."""
        if self.log is not None:
            self.log.append(trial, self._strategy(trial.candidate))

    def confirm(self, trial: Trial) -> None:
        """Write that a trial was run again, to give what the hardware computes."""
        if self.log is not None:
            self.log.confirm(trial, self._strategy(trial.candidate))

    def _strategy(self, candidate: Candidate) -> Strategy | None:
        """Return the strategy of a candidate; None where no plan can be made, as the trial says."""
        try:
            return Strategy.of(self.planner.plan(candidate))
        except IntactError:
            return None
