"""Holds what checks look at, and measures what several of them need, each once.

A check gets an `Evidence`: samples, statistics, the plan, the runtime, as far as there are. Costly
measurements, such as the noise of each layer, are properties that are computed when first asked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from intact.analyze.diagnose.runtime import Runtime
from intact.calibrate.choice import elements_of
from intact.calibrate.outputs import Errors, FloatRuns, Powers
from intact.calibrate.statistics import Statistics
from intact.data.preprocess import Preprocess
from intact.data.stream import Samples
from intact.engines.simulate import Simulator
from intact.errors import PlanError
from intact.limits import MOST_DB, WELL_DB
from intact.plan import QuantizedGraph

if TYPE_CHECKING:
    from intact.analyze.diagnose.arithmetic import SumFindings
    from intact.analyze.layer_costs import LayerCosts

MOST_ELEMENTS = 1 << 25
"""Most elements of activations of the samples that `quantize` looks for causes on: some 15 seconds
of a processor.
"""

DIAGNOSED = 8
"""Samples at least on which causes are looked for."""

Replan: TypeAlias = Callable[[str | None, Statistics | None], QuantizedGraph]
"""Makes the plan again, with the method of activations and the statistics that are named; None
leaves each as it was. With a method, scales that were given are left out."""


class Calibrated(msgspec.Struct, frozen=True):
    """Facts about the samples of a calibration, which only its pass over them knows.

    Attributes:
        inputs: Names of the inputs.
        different: How many samples are not the same as another; None where they are many.
        is_masked: Whether parts of them are left out.
        classes: How many their labels name; None where they have no labels.
    """

    inputs: tuple[str, ...]
    different: int | None = None
    is_masked: bool = False
    classes: int | None = None


@dataclass(frozen=True)
class Evidence:
    """The samples, plan and runtime that checks look at, and measurements of them.

    Attributes:
        runs: The samples that are tried, and what the float model computes for them.
        preprocess: The steps that prepared them.
        statistics: What calibration saw; None where that is not known.
        calibrated: Set where the samples are those of the calibration.
        samples: Other samples, which can be read again; None where there are none.
        more: Opens more of them, where these are too few; None where there are no others.
        is_drawn: Whether samples were drawn.
        planned: The plan with scales; None before there are any.
        tried: The samples of these that plans are tried on; None for all.
        known: Errors of the plan on them, where they were measured before.
        replan: Makes plans to compare with.
        is_lost: Whether an output of the plan loses too much, by what it is for.
        runtime: What was written; None before.
        spent: Seconds that making the result took; None where that is not known.
        threads: Number of threads of the runtime; 0 takes all cores.
    """

    runs: FloatRuns
    preprocess: Preprocess = field(default_factory=Preprocess)
    statistics: Statistics | None = None
    calibrated: Calibrated | None = None
    samples: Samples | None = None
    more: Callable[[], Samples] | None = None
    is_drawn: bool = False
    planned: QuantizedGraph | None = None
    tried: FloatRuns | None = None
    known: Errors | None = None
    replan: Replan | None = None
    is_lost: bool = False
    runtime: Runtime | None = None
    spent: float | None = None
    threads: int = 0

    @property
    def plan(self) -> QuantizedGraph:
        """The plan.

        Raises:
            PlanError: There is none yet.
        """
        if self.planned is None:
            raise PlanError("there is no plan yet")
        return self.planned

    def written(
        self,
        plan: QuantizedGraph | None = None,
        *,
        runtime: Runtime | None = None,
        spent: float | None = None,
    ) -> Evidence:
        """Return the evidence after writing: with the runtime, without simulators of the plan."""
        return replace(
            self, planned=plan or self.plan, known=self.errors, runtime=runtime, spent=spent
        )

    @property
    def plan_runs(self) -> FloatRuns:
        """The samples that plans are tried on."""
        return self.runs if self.tried is None else self.tried

    @cached_property
    def few(self) -> FloatRuns:
        """The samples on which quantizers and layers are tried; `quantize` takes fewer large ones.

        Some 60 plans are run on each of them, and all activations of them are kept.
        """
        samples = DIAGNOSED
        if self.calibrated is not None and self.statistics is not None:
            # `calibrated` is set in `quantize`, which has little time.
            samples = min(samples, MOST_ELEMENTS // max(elements_of(self.statistics), 1))
        return self.plan_runs.first(max(samples, 1))

    @cached_property
    def simulator(self) -> Simulator:
        """The plan with exact sums; its quantizers can be switched off."""
        # With exact sums, so that what sums lose is not blamed on quantizers; the check of sums has
        # its own engine.
        return Simulator(self.plan.with_exact_sums(), threads=1, switched=True)

    @cached_property
    def errors(self) -> Errors:
        """What the plan loses, simulated with exact sums; an output without numbers is lost."""
        return finite(self.known or self._measure(self.plan_runs))

    @cached_property
    def few_errors(self) -> Errors:
        """The same on the samples on which quantizers and layers are tried."""
        return finite(self._measure(self.few))

    def _measure(self, runs: FloatRuns) -> Errors:
        (errors,) = runs.errors(lambda feeds: self.simulator.run(feeds)[0])
        return errors

    @property
    def is_well(self) -> bool:
        """Whether every output is good enough not to look for causes."""
        return min(self.errors.decibels.values(), default=WELL_DB) >= WELL_DB

    @cached_property
    def costs(self) -> LayerCosts:
        """What each layer alone costs the outputs: the measurement by which layers are named."""
        from intact.analyze.layer_costs import layer_costs  # with much else

        # `quantize` has little time: a batch tells which layer costs most.
        runs = self.few if self.calibrated is None else self.few.first(1)
        return layer_costs(self.plan, runs, threads=self.threads)

    @property
    def measured_costs(self) -> LayerCosts | None:
        """The same, if a check has asked for it."""
        # Where a cached property keeps its value; asking for `costs` would measure it.
        return self.__dict__.get("costs")

    @cached_property
    def sums(self) -> SumFindings:
        """What sums of products lose on the target; of other samples on this processor too."""
        from intact.analyze.diagnose import arithmetic  # with much else

        if self.calibrated is not None:
            found = arithmetic.target_findings(self.plan, self.few, self.few_errors, well=WELL_DB)
            return found or arithmetic.SumFindings()
        runtime = self.runtime
        return arithmetic.sum_findings(
            self.plan,
            self.plan_runs,
            self.errors,
            well=WELL_DB,
            in_float=() if runtime is None else runtime.held_in_floats(self.plan),
            deployed=None if runtime is None else runtime.run,
        )


def finite(errors: Errors) -> Errors:
    """Count outputs that are NaN or infinite, where the float model's are not, as lost: -100 dB."""
    most = float(10 ** (MOST_DB / 10))

    def bound_noise(each: Powers) -> Powers:
        # A huge number and not infinity, with which sums and decibels could not go on.
        lost = most * max(float(each.signal.sum()), float(np.finfo(np.float32).tiny))
        noise = np.where(np.isinf(each.noise), lost, each.noise)
        return Powers(each.signal, noise, each.agrees)

    powers = {name: bound_noise(each) for name, each in errors.outputs.items()}
    return Errors(powers, errors.choices)
