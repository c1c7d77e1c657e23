"""Reads the logs of a search or a training beside a result, for its report."""

from __future__ import annotations

from pathlib import Path

from intact._text import finite
from intact.analyze.report import figures
from intact.errors import IntactError, UsageError
from intact.improve.trained import LOG, read_epochs
from intact.results.result import Result
from intact.search.logs.line import read_log
from intact.search.logs.settings import LogSettings
from intact.search.loop import best as best_trial
from intact.search.loop import front
from intact.search.trial import Trial

_MOST_TRIALS = 4000
"""Trials that are shown, the front among them."""
SEARCH_LOG = ".search.jsonl"


def search_of(result: Result, log: Path | None) -> figures.Search | None:
    """Return how a plan was found; None where it was not searched.

    Args:
        result: The result.
        log: The log of its search; None looks beside its folder.

    Raises:
        UsageError: The log is named, and the plan was not found by a search of that target.
        DataError: The log is named, and damaged.
    """
    found = result.plan.provenance.search
    if not found:
        if log is not None:
            raise UsageError(f"--log {log}: this result was found by no search", remedy="leave out")
        return None
    path = _beside(result, SEARCH_LOG) if log is None else log
    if path is None or (log is None and not path.is_file()):
        return figures.Search(found)
    try:
        return _read(found, path, result, is_named=log is not None)
    # A log beside the folder was not asked for: where it is damaged, the report goes without.
    except IntactError:
        if log is not None:
            raise
        return figures.Search(found)


def training_of(result: Result) -> figures.Training | None:
    """Return how a plan was trained; None where it was not."""
    how = result.plan.provenance.trained
    if not how:
        return None
    trained = result.trained
    best: int | None
    if trained is not None:
        epochs, best = trained.epochs, trained.best
    else:
        path = _beside(result, LOG)
        epochs = [] if path is None or not path.is_file() else read_epochs(path)
        best = min(epochs, key=lambda each: each.held_out).number if epochs else None
    rows = (figures.Epoch(e.number, e.loss, e.held_out, e.accuracy) for e in epochs)
    return figures.Training(how, best, tuple(rows))


def _beside(result: Result, suffix: str) -> Path | None:
    if result.folder is None:
        return None
    folder = result.folder.resolve()
    return folder.with_name(folder.name + suffix)


def _read(found: str, path: Path, result: Result, *, is_named: bool) -> figures.Search | None:
    trials: list[Trial] = []
    settings: LogSettings | None = None
    best: int | None = None
    for entry in read_log(path):
        settings = entry.settings
        if entry.is_confirmation:
            best = entry.trial.number
        else:
            trials.append(entry.trial)
    # The folder may have been written again for another target, and the log of the earlier search
    # lie beside it.
    if settings is None or settings.target != result.plan.target.name:
        if is_named:
            raise UsageError(
                f"--log {path}: is of no search for {result.plan.target.name}",
                remedy="give the log of this result's search",
            )
        return figures.Search(found)
    if best is None:
        taken = best_trial(trials, settings.goal, settings.samples)
        best = None if taken is None else taken.number
    on_front = {trial.number for trial in front(trials, settings.samples)}
    always = on_front | ({best} if best is not None else set())
    step = -(-len(trials) // _MOST_TRIALS) if trials else 1
    # Thinned evenly, so that the course of the search stays to be seen.
    shown = [t for i, t in enumerate(trials) if not i % step or t.number in always]
    return figures.Search(
        found,
        path.name,
        settings.sampler,
        settings.objective,
        settings.minimize,
        settings.samples,
        settings.min_score,
        settings.max_cost,
        best,
        tuple(_trial(each, settings.samples, on_front) for each in shown),
        len(trials),
    )


def _trial(trial: Trial, samples: int, front: set[int]) -> figures.Trial:
    return figures.Trial(
        trial.number,
        _shown(trial.cost),
        _shown(trial.score),
        trial.counts(samples),
        trial.number in front,
    )


def _shown(value: float) -> float | None:
    """Round to six digits; None where the number is not finite."""
    rounded: float | None = finite(float(f"{value:.6g}"))
    return rounded
