"""Predicts the result of a command without running it: if it works, and with which errors.

A result holds the normalized model and the statistics of its calibration. So another call of
`quantize` can be planned, written and simulated from it without its samples and passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import msgspec

from intact.calibrate.assign import assign, required_tensors
from intact.calibrate.method import Method
from intact.calibrate.statistics import Statistics
from intact.errors import IntactError
from intact.graph import Graph
from intact.plan import QuantizedGraph
from intact.plan.float16 import with_float32_of
from intact.plan.given_scales import ScaleTable
from intact.plan.untie import RequantizeReason, requantized
from intact.recipe.options import QuantizeOptions
from intact.results.first_run import run_once
from intact.results.job import Job
from intact.results.result import Result

SIMULATED = frozenset(
    [
        "activation_bits",
        "bits",
        "io",
        "keep_float",
        "method",
        "method_options",
        "scales",
        "target",
        "weight_bits",
        "weight_method",
    ]
)
"""Options of `quantize` whose effect follows from the plan and the statistics of a result."""
_OF_METHODS = frozenset(["method", "method_options", "weight_method"])
_OF_WIDTHS = frozenset(["activation_bits", "bits", "weight_bits"])
_SCALES_ALONE = _OF_METHODS | {"scales"}
"""Options that change scales only: what is written is of the same kind."""


class Trial(Protocol):
    """The samples at hand, on which plans are simulated."""

    def decibels(self, plan: QuantizedGraph) -> float:
        """Simulate a plan with scales, and return the decibels of its worst output."""

    def observe(self, graph: Graph, tensors: Sequence[str]) -> Statistics:
        """Observe tensors of the float model that calibration did not."""


class Rehearsal:
    """Plans calls of `quantize` that differ from the one that made a result.

    Args:
        result: The result.
        made_by: The options that made it; None where they are not known.
        trial: Simulates plans; None where nothing is measured.
        is_sure: Gains are over the result itself, which is less than passes would make of them.
    """

    def __init__(
        self,
        result: Result,
        made_by: Mapping[str, Any] | None,
        trial: Trial | None = None,
        *,
        is_sure: bool = False,
    ) -> None:
        self._result, self._made_by, self._trial = result, made_by, trial
        self._is_sure = is_sure
        self._planned: dict[str, tuple[Job, QuantizedGraph | None]] = {}

    def takes(self, values: Mapping[str, Any]) -> bool:
        """Tell whether a call would make a result that runs, as far as that can be told here.

        Args:
            values: All its options by name.
        """
        if self._before is None:
            return True
        try:
            # Nothing but numbers differ, so a run would show what the present result shows.
            if self._changed_options(values) <= _SCALES_ALONE:
                self._job(values)
                return True
            # Another target or format may refuse a plan only when it is written or first run.
            job, scaled = self._plan(values)
        except IntactError:
            return False
        if scaled is None:
            return True
        try:
            made = self._result
            run_once(job.deployment.result(scaled, made.statistics, made.preprocess))
        except IntactError:
            return False
        return True

    def gain(self, values: Mapping[str, Any]) -> float | None:
        """Return what the worst output of a call would have more, dB; None where nothing tells.

        The call is simulated without improvement passes. Where it is better than the result even
        so, that is the gain. Else it is compared with a plan of the result without its passes.

        Args:
            values: All its options by name.
        """
        if self._trial is None or not self._changed_options(values) <= SIMULATED:
            return None
        if self._level is None or self.decibels is None:
            return None
        with contextlib.suppress(IntactError):
            _, scaled = self._plan(values)
            if scaled is not None:
                found = self._trial.decibels(scaled)
                is_better = self._is_sure or found > self._level
                return found - (self._level if is_better else self.decibels)
        return None

    @cached_property
    def _before(self) -> QuantizedGraph | None:
        """The plan of the result, planned again; None where that cannot be done from it."""
        if self._made_by is None:
            return None
        with contextlib.suppress(IntactError):
            return self._plan(self._made_by)[1]
        return None

    @cached_property
    def decibels(self) -> float | None:
        """What the worst output has where the result is planned again, without passes."""
        if self._trial is None or self._before is None:
            return None
        with contextlib.suppress(IntactError):
            return self._trial.decibels(self._before)
        return None

    def _changed_options(self, values: Mapping[str, Any]) -> set[str]:
        made_by = self._made_by or {}
        names = (values.keys() | made_by.keys()) - {"output"}
        return {name for name in names if values.get(name) != made_by.get(name)}

    def _plan(self, values: Mapping[str, Any]) -> tuple[Job, QuantizedGraph | None]:
        """Plan a call and give it scales, once; what is written and simulated is the same plan."""
        # As text: values may be lists, which have no hash.
        key = repr(sorted(values.items(), key=lambda item: item[0]))
        if key not in self._planned:
            job = self._job(values)
            self._planned[key] = job, self._give_scales(job, values)
        return self._planned[key]

    def _job(self, values: Mapping[str, Any]) -> Job:
        """Plan a call on the model of the result."""
        from intact.results.request import rehearsed

        target = values.get("target") or self._result.plan.target
        known = {name: value for name, value in values.items() if name != "output"}
        options = QuantizeOptions(**{**known, "target": target})
        job = rehearsed(options, self._result.plan.graph, target)
        # Decisions for one target say nothing of another.
        if job.plan.target.name != self._result.plan.target.name:
            return job
        return self._keep_decisions(job)

    def _keep_decisions(self, job: Job) -> Job:
        """Keep what was decided when the result was made: nodes in float, broken ties."""
        plan = self._result.plan
        asked = job.plan.decisions
        kept = [
            name
            for name, each in plan.decisions.items()
            if not each.quantized and name in asked and asked[name].quantized
        ]
        apart = [
            end
            for end, each in plan.configs.items()
            if requantized(each) is RequantizeReason.UNLIKE
        ]
        if not kept and not apart:
            return job
        return msgspec.structs.replace(job, plan=job.keeping(kept, None, apart))

    def _give_scales(self, job: Job, values: Mapping[str, Any]) -> QuantizedGraph | None:
        """Give a plan its scales; None where statistics of its tensors are missing."""
        from intact.results.recipes import given_scales  # with much else

        statistics, graph = self._result.statistics, job.plan.graph
        scales = values.get("scales")
        given: ScaleTable | None = given_scales(scales, graph.model, graph) if scales else None
        known = {} if statistics is None else statistics.tensors
        # Nodes that were float before have inputs that were not observed.
        missing = [name for name in required_tensors(job.plan, given) if name not in known]
        if missing:
            if self._trial is None or statistics is None:
                return None
            more = self._trial.observe(graph, missing)
            statistics = Statistics(more.model_hash, {**known, **more.tensors})
        plan = with_float32_of(job.plan, self._result.plan)
        methods = self._methods(job, values)
        plans = [assign(plan, statistics, method, given) for method in methods]
        trial = self._trial
        best = plans[0] if trial is None or len(plans) < 2 else max(plans, key=trial.decibels)
        return replace(best, provenance=self._result.plan.provenance)

    def _methods(self, job: Job, values: Mapping[str, Any]) -> Sequence[Method]:
        """Return the method that a call names, or else that of the result.

        Where none is named and widths change, `quantize` chooses anew: then all that it tries.
        """
        is_free = not values.get("method") and self._trial is not None
        if is_free and self._changed_options(values) & _OF_WIDTHS:
            return job.methods
        return [self._method(job, values)]

    def _method(self, job: Job, values: Mapping[str, Any]) -> Method:
        made = self._result.plan.provenance
        is_other = bool(self._changed_options(values) & (_OF_METHODS | {"target"}))
        if is_other or made.method in ("", "given"):
            return job.methods[0]
        return Method.of(
            job.plan.target, made.method, made.weight_method or None, dict(made.method_options)
        )

    @cached_property
    def _level(self) -> float | None:
        """What the worst output of the result has."""
        plan = self._result.plan
        if self._trial is None or not plan.provenance.improve:
            return self.decibels
        with contextlib.suppress(IntactError):
            return self._trial.decibels(plan)
        return None
