"""Searches for the best strategy, and makes the result of one from a log."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from intact.analyze.doubts import doubts_of
from intact.calibrate.method import Method
from intact.data.preprocess import Preprocess
from intact.data.progress import begin
from intact.data.stream import AGAIN
from intact.errors import SearchError, UsageError
from intact.flow.calibration import Calibration
from intact.flow.shapes import (
    Shapes,
    logged_shapes,
    logged_values,
    shape_model,
    shape_options,
    value_options,
    with_shapes,
)
from intact.flow.torch_modules import with_onnx_model
from intact.graph import Graph
from intact.graph.files.tensors import weight_bytes
from intact.limits import SEARCH_CACHE_BYTES, SEARCH_SESSION_BYTES, SEARCH_SESSION_MODELS
from intact.plan import Overrides
from intact.recipe.kinds import Budget
from intact.recipe.options import ReplayOptions, SearchOptions
from intact.results.first_run import draw_sample, run_once
from intact.results.folder import check_output
from intact.results.recipes import (
    overrides_of,
    preprocess_of,
    recipe_of,
    target_named,
)
from intact.results.result import Result
from intact.results.sources import (
    default_target,
    deployment_of,
    float_model,
    original_of,
    target_of,
)
from intact.results.values import values_in_samples
from intact.search.cost import CostModel
from intact.search.logs.log import Log, LogSettings, TrialRecorder, choose, read_log
from intact.search.logs.settings import BlockSettings
from intact.search.loop import Search, SearchProgress, warning_lines
from intact.search.measuring.evaluator import float_score
from intact.search.measuring.objective import Objective
from intact.search.measuring.trial_data import TrialData
from intact.search.pool import make_pool
from intact.search.roundings import Roundings, beside
from intact.search.samplers import make_sampler
from intact.search.setup import (
    Setup,
    choices,
    float_graph,
    log_path,
    objective_of,
    objective_options,
    refuse_unknown,
)
from intact.search.space import Candidate, Space
from intact.search.strategy import Strategy
from intact.search.trial import Goal, Trial, goal_of


@dataclass(frozen=True, repr=False)
class FoundStrategy:
    """What a search found.

    Attributes:
        result: The best strategy, realized and written: as `intact.quantize` returns it.
        strategy: That strategy as the document has it: topology, bits, thresholds.
        best: Its trial; the score is that of the hardware's integers on all samples. In trials
            higher is better: what counts mistakes is turned around.
        float_score: Score of the float model, as the objective has it.
        standing: All trials, the Pareto front, the time taken.
        space: What candidates mean.
        objective: What the score is.
        cost: What the cost is.
        log: Where every trial was written down.
        was_stopped: Ctrl-C ended the search before its time.
        remarks: What may surprise, one line each.
    """

    result: Result
    strategy: Strategy
    best: Trial
    float_score: float
    standing: SearchProgress
    space: Space
    objective: Objective
    cost: CostModel
    log: Path | None
    was_stopped: bool = False
    remarks: tuple[str, ...] = ()

    def worries(self) -> list[str]:
        """Tell what may surprise, and what the strategy loses."""
        return [*self.remarks, *self.result.worries()]

    def __repr__(self) -> str:
        """Name the best trial, its score and its cost."""
        score, cost = self.objective.format(self.best.score), f"{self.best.cost:.6g}"
        return (
            f"FoundStrategy(trial {self.best.number}: {self.objective.name} {score}, "
            f"{self.cost.name} {cost}; {self.result!r})"
        )

    @property
    def base(self) -> Trial | None:
        """The trial of the widest integers everywhere; None if there was none."""
        return _trial_of(self.standing, self.space.default)

    @property
    def score(self) -> float:
        """The score of the best strategy, as the objective has it."""
        return self.objective.shown(self.best.score)


def search(options: SearchOptions) -> FoundStrategy:
    """Find the best strategy.

    Raises:
        SearchError: Nothing holds the limits, or the log is not one of this search.
        IntactError: The model, the data or an option is wrong.
    """
    begin(options.progress, "reading the model")
    options = with_onnx_model(options)
    target = default_target(options.model) if options.target is None else options.target
    blocks = BlockSettings(options.block, options.zero_points)
    described = blocks.target(target_of(target))
    deployment = deployment_of(described, options.formats, options.io, options.layout)
    method = Method.of(described, options.method, options.weight_method, options.method_options)
    scored = objective_of(
        options.objective,
        figure=options.figure,
        lower_is_better=options.lower_is_better,
        outputs=(options.boxes, options.scores, options.classes),
    )
    refuse_unknown(options.sampler, options.minimize)
    budget, path = _budget(options.budget), _path(options)
    # With any numbers: contradictions of the limits show without measuring.
    _Course(options, budget, path).limits(0.0, 1.0)
    if isinstance(options.data, Iterator):
        raise UsageError("samples are read twice, and an iterator gives them once", remedy=AGAIN)
    preprocess = preprocess_of(options) or Preprocess()
    models = shape_model(
        float_model(options.model, options.input_value),
        options,
        options.input_shape,
        options.data,
        preprocess,
        [deployment.formats],
    )
    graph = float_graph(models.graphs[0], described, options.expand, options.improve)
    spaced = partial(
        choices,
        graph,
        described,
        models.overrides(overrides_of(options), graph),
        deployment,
        options.widths,
        allow_float=options.allow_float,
        # A width that the runtime computes in float would be timed as such, and win or lose by
        # that.
        in_integers=options.minimize == "latency" and options.widths is None,
        look=partial(values_in_samples, graph=graph, options=options, data=options.data),
    )
    begin(options.progress, "calibrating")
    calibration = Calibration(options, preprocess, data=options.data)
    observe = partial(calibration.observe, methods=[method])
    setup = Setup.of(spaced, method, options, deployment, preprocess, observe)
    course = _Course(options, budget, path, models.shapes)
    # Before the weights are rounded, which takes minutes.
    course.refuse_unaffordable(setup)
    setup = setup.round_weights(options, path)
    begin(options.progress, "searching")
    found = course.run(setup, scored)
    begin(options.progress, "quantizing")
    result = setup.result(found.best.candidate, course.provenance_text(found), options.mask)
    result.recipe = recipe_of("search", options, result, target=target_named(target))
    begin(options.progress, "running what was made")
    run_once(result, setup.first, threads=options.threads)
    if options.output is not None:
        begin(options.progress, "writing")
        result.save(options.output)
    return FoundStrategy(
        result,
        setup.planner.strategy(result.plan),
        found.best,
        found.objective.shown(found.float_score),
        found.progress,
        setup.space,
        found.objective,
        setup.cost,
        course.path,
        found.was_stopped,
        tuple(course.remarks(found, setup)),
    )


def replay(options: ReplayOptions) -> Result:
    """Realize a strategy of a log.

    Raises:
        SearchError: The log is of another model or target.
        IntactError: The log is damaged, or has no such trial.
    """
    log = options.log
    if options.output is not None:
        check_output(Path(options.output))
    entry = choose(read_log(log), options.trial)
    target = entry.settings.target if options.target is None else options.target
    blocks = BlockSettings.read(entry.settings.options)
    described = blocks.target(target_of(target))
    deployment = deployment_of(described, options.formats, options.io, options.layout)
    shapes = options.input_shape or logged_shapes(entry.settings.options)
    values = options.input_value or logged_values(entry.settings.options)
    normalized = with_shapes(float_model(options.model, values), shapes)
    graph = float_graph(normalized, described, options.expand, options.improve)
    # With the shapes and values of the log, as the hash is of the model that has them.
    entry.settings.refuse_other(graph, described, str(log))
    if entry.strategy is None:
        raise SearchError(
            f"{log}: trial {options.trial} has no strategy", remedy="choose another trial"
        )
    roundings = Roundings.load(beside(Path(log))) if entry.strategy.rounded else None
    overrides = Overrides(blocks=blocks.of_nodes)
    plan = entry.strategy.plan(graph, described, overrides, roundings)
    found_by = f"trial {entry.search.trial} of {Path(log).name}"
    plan.provenance = plan.provenance.searched(found_by)
    sample = draw_sample(plan, None)
    compared = original_of(options.model).compare(graph, sample)
    preprocess = preprocess_of(options) or Preprocess()
    result = deployment.result(plan, None, preprocess, compared.notes)
    run_once(result, sample, compared.outputs)
    result.recipe = recipe_of(
        "search", options, result, target=target_named(target), replay=log, trial=options.trial
    )
    if options.output is not None:
        result.save(options.output)
    return result


def _budget(budget: str | int | float | Budget) -> Budget:
    return budget if isinstance(budget, Budget) else Budget.parse(str(budget))


def _path(options: SearchOptions) -> Path | None:
    return log_path(options.output, options.log, resume=options.resume)


@dataclass(frozen=True)
class _Outcome:
    """The end of a search; scores are those of trials: higher is better."""

    best: Trial
    float_score: float
    progress: SearchProgress
    objective: Objective
    was_stopped: bool
    doubts: tuple[str, ...]


def _doubts(data: TrialData) -> tuple[str, ...]:
    """Look at the float model's first output, if it has classes."""
    outputs = [next(iter(chunk.outputs.values())) for chunk in data.chunks]
    if any(each.ndim != 2 or each.shape[1] < 2 for each in outputs):
        return ()
    labels = [chunk.labels for chunk in data.chunks if chunk.labels is not None]
    known = np.concatenate(labels) if len(labels) == len(outputs) else None
    return doubts_of(np.concatenate(outputs), known)


@dataclass(frozen=True)
class _Course:
    """How a search is to go.

    Attributes:
        options: The options of the call.
        budget: When it ends.
        path: Where trials are written; None for nowhere.
        shapes: Shapes of the model's inputs, where they were given or follow from the samples.
    """

    options: SearchOptions
    budget: Budget
    path: Path | None
    shapes: Shapes = field(default_factory=dict)

    def run(self, setup: Setup, scored: Objective | None) -> _Outcome:
        """Search, and confirm the best."""
        space, cost = setup.space, setup.cost
        workers, cluster = self.options.workers, self.options.cluster
        threads = self.options.threads
        trial_data = TrialData.of(
            space,
            setup.statistics,
            setup.method,
            setup.samples,
            scored,
            threads=threads,
            # A budget for the machine, and not for each worker.
            cache_bytes=SEARCH_CACHE_BYTES // workers,
            session_bytes=_session_bytes(space.plan.graph, workers),
            roundings=setup.rounding.roundings,
        )
        pool = make_pool(
            trial_data,
            workers,
            distributed=cluster is not None,
            address=None if cluster == "local" else cluster,
            threads=threads,
        )
        with pool:
            # In this process: the limits follow from it before any worker starts.
            score = float_score(trial_data)
            goal = self._goal(trial_data.objective, score, setup)
            settings = self._settings(trial_data, goal)
            with _open_log(self.path, settings, resume=self.options.resume) as log:
                if log is not None and setup.rounding.roundings.found:
                    setup.rounding.roundings.save(beside(log.path))
                if log is not None:  # what was timed then holds: the search goes on as it began
                    cost.known.update({each.candidate: each.cost for each in log.trials})
                search = Search(
                    make_sampler(self.options.sampler, space, goal, cost, self.options.seed),
                    pool,
                    cost,
                    TrialRecorder(log, trial_data.planner),
                    SearchProgress(
                        goal, trial_data.samples, self.budget, shown=trial_data.objective.shown
                    ),
                    self.options.report,
                )
                best, was_stopped = _outcome(search, self.path)
            doubts = _doubts(trial_data)
            return _Outcome(best, score, search.progress, trial_data.objective, was_stopped, doubts)

    def remarks(self, found: _Outcome, setup: Setup) -> Iterator[str]:
        """Yield what may surprise."""
        base = _trial_of(found.progress, setup.space.default)
        if setup.rounding.remark:
            yield setup.rounding.remark
        yield from found.doubts
        yield from warning_lines(
            found.progress, found.best, base, found.objective.kind, self.options.max_drop
        )

    def limits(self, float_score: float, base_cost: float, **known: Any) -> Goal:
        """Read the limits of score and cost.

        Raises:
            UsageError: They are impossible, or contradict each other.
        """
        limits = {"min_score": self.options.min_score, **known}
        options = self.options
        return goal_of(
            float_score, base_cost, max_drop=options.max_drop, max_cost=options.max_cost, **limits
        )

    def refuse_unaffordable(self, setup: Setup) -> None:
        """Refuse a limit of the cost that no candidate holds, before weights are rounded.

        Raises:
            UsageError: There is none so cheap.
        """
        self.limits(0.0, setup.cost.of(setup.space.default), least_cost=_least_cost(setup.cost))

    def provenance_text(self, found: _Outcome) -> str:
        """Return what the plan says of where it comes from."""
        score = found.objective.shown(found.best.score)
        return (
            f"{self.options.sampler}, seed {self.options.seed}, trial {found.best.number}: "
            f"{found.objective.name} {score!r}, {self.options.minimize} {found.best.cost!r}"
        )

    def _goal(self, objective: Objective, float_score: float, setup: Setup) -> Goal:
        cost, least = setup.cost, self.options.min_score
        return self.limits(
            float_score,
            cost.of(setup.space.default),
            min_score=None if least is None else objective.shown(least),
            least_cost=_least_cost(cost),
            # A metric of the user's has no bound that is known here.
            highest_score=math.inf if objective.row.rows is None else objective.row.highest,
        )

    def _blocks(self, space: Space) -> BlockSettings:
        options = self.options
        return BlockSettings(options.block, options.zero_points, dict(space.overrides.blocks))

    def _settings(self, trial_data: TrialData, goal: Goal) -> LogSettings:
        return LogSettings.of(
            trial_data.space,
            sampler=self.options.sampler,
            seed=self.options.seed,
            objective=trial_data.objective.name,
            minimize=self.options.minimize,
            goal=goal,
            samples=trial_data.samples,
            samples_hash=trial_data.samples_hash,
            method=repr(trial_data.method),
            options=objective_options(trial_data.objective)
            | shape_options(self.shapes)
            | value_options(self.options.input_value)
            | self._blocks(trial_data.space).options
            | ({"rounding": rounded[:12]} if (rounded := trial_data.roundings.hash) else {}),
        )


def _session_bytes(graph: Graph, workers: int) -> int:
    """Return how many bytes of compiled pieces each worker keeps."""
    least = int(SEARCH_SESSION_MODELS * weight_bytes(graph.model))
    return max(SEARCH_SESSION_BYTES // workers, least)


def _least_cost(cost: CostModel) -> float:
    """Return what no candidate undercuts."""
    return 0.0 if cost.measure is not None else cost.lowest()


def _trial_of(progress: SearchProgress, candidate: Candidate) -> Trial | None:
    """Return the whole trial of a candidate; None if there was none."""
    whole = (trial for trial in progress.trials if trial.counts(progress.samples))
    return next((trial for trial in whole if trial.candidate == candidate), None)


@contextmanager
def _open_log(path: Path | None, settings: LogSettings, *, resume: bool) -> Iterator[Log | None]:
    if path is None:
        yield None
        return
    with Log.resume(path, settings) if resume else Log.create(path, settings) as log:
        yield log


def _outcome(search: Search, path: Path | None) -> tuple[Trial, bool]:
    """Search until the end, or until Ctrl-C; return the best, and whether that ended it.

    Raises:
        KeyboardInterrupt: It came before anything was found, or again before that was confirmed;
            what it says is where the trials are.
    """
    was_stopped = False
    try:
        try:
            search.run()
        except KeyboardInterrupt:
            if search.progress.best is None:
                raise
            # The best so far is confirmed and written nevertheless: that is what who stops a search
            # wants.
            was_stopped = True
        return search.confirm_best(), was_stopped
    except KeyboardInterrupt as interrupt:
        trials = len(search.progress.trials)
        if path is None or not trials:
            raise
        raise KeyboardInterrupt(
            f"stopped before a strategy was found; {trials} trial(s) are in {path}: --resume goes "
            "on with them"
        ) from interrupt
