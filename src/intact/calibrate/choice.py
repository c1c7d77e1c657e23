"""Chooses among threshold methods by what each does to the model's outputs.

No method is best for every model: clipping rare values gains resolution for all others, and loses
everything where the rare values are what the model looks for. So each method's plan is simulated
on a few of the calibration samples, and its outputs are compared with the float model's. The
samples are among those that the ranges follow from. A range is two numbers, which many samples
decide, so nothing is fitted to single samples but the extremes of ``minmax``; and that it looks a
little better than on new samples is on the safe side, because it is what the others are held to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from intact._memo import Memo
from intact.calibrate.assign import Points, assign_own
from intact.calibrate.method import Method
from intact.calibrate.outputs import Errors, FloatRuns
from intact.calibrate.statistics import Statistics
from intact.engines.executor import Run
from intact.engines.simulate import Simulator
from intact.graph.files.tensors import weight_bytes
from intact.limits import CHANCE_DB, CHOSEN, ENOUGH_DB, MOST_DB
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.given_scales import ScaleTable

_SAFE = "minmax"
"""The method that no other may lose against: it clips nothing."""

_FEWEST = 8
"""Samples that methods are tried on first, if there are so many."""
_MORE = 2
"""How many times as many are tried next: fewer would tell little more."""
_ELEMENTS = 1 << 22
"""Elements of activations that a plan is simulated on where more samples are needed: 30 ms."""
_SMALL = 1 << 26
"""Bytes of weights of which another copy in memory does not matter."""


def sample_count(statistics: Statistics) -> int:
    """Return how many samples to try methods on at most: as many as cost little time.

    It is counted and not measured, so that the same samples are taken whatever the machine.
    """
    return min(max(_ELEMENTS // max(elements_of(statistics), 1), _FEWEST), CHOSEN)


def elements_of(statistics: Statistics) -> int:
    """Count the elements of the observed tensors for one sample."""
    each = statistics.tensors.values()
    return sum(int(tensor.counts.sum()) // max(tensor.samples, 1) for tensor in each)


class Choice(msgspec.Struct, frozen=True):
    """A plan with scales, and what it loses.

    Attributes:
        plan: The plan.
        method: The chosen method.
        errors: The errors of its outputs, simulated; none where there was nothing to compare.
        runs: The samples that it was chosen on.
        simulator: The simulated plan, to look further; None where it is made again for that, as it
            has a copy of the weights.
    """

    plan: QuantizedGraph
    method: Method
    errors: Errors
    runs: FloatRuns
    simulator: Simulator | None = None

    def on(self, runs: FloatRuns) -> Choice:
        """Measure the plan on other samples."""
        simulator = self.simulator or Simulator(self.plan, threads=1)
        (errors,) = runs.errors(lambda feeds: simulator.run(feeds, plan=self.plan)[0])
        return msgspec.structs.replace(self, errors=errors, runs=runs)

    def is_worse_than(self, other: Choice) -> bool:
        """Tell whether another plan for the same model gains on these samples, and loses nothing.

        The outputs of both are compared on the samples that both were chosen on.
        """
        if len(self.runs) != len(other.runs):
            runs = min(self.runs, other.runs, key=len)
            return self.on(runs).is_worse_than(other.on(runs))
        gain = other.errors.mean - self.errors.mean
        return gain > CHANCE_DB and not other.errors.loses(self.errors)

    def changed(self, plan: QuantizedGraph) -> Choice:
        """Measure another plan for the same model on the same samples."""
        return msgspec.structs.replace(self, plan=plan, simulator=None).on(self.runs)


def choose(
    plan: QuantizedGraph,
    statistics: Statistics,
    methods: Sequence[Method],
    runs: FloatRuns,
    given: ScaleTable | None = None,
) -> Choice:
    """Give a plan its scales by the method that loses least on some samples.

    No output may lose more than 0.3 dB, and more than by chance, against min-max (against the
    preferred method, if min-max is not among them). Among what is left, the mean of the outputs'
    decibels decides; a method must gain 0.2 dB on those before it.

    The preferred method and min-max are tried on eight samples, and on more where those leave open
    which of them loses. Others are tried where neither is good.

    Args:
        plan: A plan without scales; not changed.
        statistics: The same as for `assign`.
        methods: At least one, the preferred one first.
        runs: The samples.
        given: The same as for `assign`.
    """
    used = runs.first(_FEWEST)
    trials = _Trials(plan, statistics, methods, given)
    safe = next((at for at, each in enumerate(methods) if each.activations == _SAFE), 0)
    found = trials.errors(dict.fromkeys((0, safe)), used)
    most = sample_count(statistics) if safe else 0
    # Twice as many each time, of which only the new ones are run.
    while _MORE * len(used) <= most and found[0].is_unsure(found[safe]):
        few, used = used, runs.first(_MORE * len(used))
        if len(used) == len(few):
            break
        more = trials.errors(found, used, few)
        found = {at: errors.joined(more[at]) for at, errors in found.items()}
    best = _best(found, found[safe])
    # Where the output is good already no method can gain much, and each costs a simulation.
    if min(found[best].decibels.values(), default=MOST_DB) < ENOUGH_DB:
        found |= trials.errors([at for at in range(len(methods)) if at not in found], used)
        best = _best(found, found[safe])
    is_small = weight_bytes(plan.graph.model) <= _SMALL
    simulator = trials.simulator if is_small else None
    return Choice(trials.plan(best), methods[best], found[best], used, simulator)


class _Trials:
    """Plans with the scales of each method, made when they are needed, in one simulator."""

    def __init__(
        self,
        plan: QuantizedGraph,
        statistics: Statistics,
        methods: Sequence[Method],
        given: ScaleTable | None,
    ) -> None:
        self._plan, self._statistics, self._given = plan, statistics, given
        self._methods, self._memo = methods, Memo()
        self._plans: dict[int, QuantizedGraph] = {}
        # One session for all methods: their plans differ in scales, which are inputs of it.
        self.simulator = Simulator(self.plan(0), threads=1)

    def plan(self, at: int) -> QuantizedGraph:
        """Return the plan of a method."""
        if at not in self._plans:
            own = self._plan.copy()
            points = Points.of(quantization_points(own))
            method = self._methods[at]
            self._plans[at] = assign_own(
                own, points, self._statistics, method, self._given, self._memo
            )
        return self._plans[at]

    def errors(
        self, chosen: Iterable[int], runs: FloatRuns, beyond: FloatRuns | None = None
    ) -> dict[int, Errors]:
        """Simulate the plans of some methods on samples."""
        runners = {at: self._runner(at) for at in chosen}
        return dict(zip(runners, runs.errors(*runners.values(), beyond=beyond), strict=True))

    def _runner(self, at: int) -> Run:
        plan = self.plan(at)
        return lambda feeds: self.simulator.run(feeds, plan=plan)[0]


def _best(found: Mapping[int, Errors], safe: Errors) -> int:
    """Return the key of the best method; the first is the preferred one."""
    allowed = [at for at, errors in found.items() if not errors.loses(safe)]
    best = allowed[0]
    for at in allowed[1:]:
        if found[at].mean > found[best].mean + CHANCE_DB:
            best = at
    return best
