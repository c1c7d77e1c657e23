"""Trials, settings and logs for the tests of search logs."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from intact.search.logs.log import Log, LogSettings
from intact.search.space import Space
from intact.search.strategy import Strategy
from intact.search.trial import Goal, State, Trial, TrialResult
from tests.models import residual_net
from tests.plans import calibrated

PLAN = calibrated(residual_net())
STRATEGY = Strategy.of(PLAN)
SPACE = Space.of(PLAN.graph, PLAN.target)
SCHEMA = json.loads((files("intact.search.logs") / "log.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def settings(**changes: Any) -> LogSettings:
    given: dict[str, Any] = {
        "sampler": "greedy",
        "seed": 3,
        "objective": "top1",
        "minimize": "bytes",
        "goal": Goal(min_score=0.5),
        "samples": 64,
        "samples_hash": "5" * 64,
        "method": "mse",
    }
    return LogSettings.of(SPACE, **(given | changes))


def trial(number: int, score: float = 0.75, cost: float = 100.0, **measured: Any) -> Trial:
    given: dict[str, Any] = {
        "state": State.COMPLETE,
        "noise": 0.1,
        "samples": 64,
        "seconds": 0.25,
    }
    return Trial(number, SPACE.uniform(8), cost, TrialResult(score=score, **(given | measured)))


def written(path: Path, *trials: Trial, options: LogSettings | None = None) -> bytes:
    with Log.create(path, options or settings()) as log:
        for each in trials:
            log.append(each, STRATEGY)
    return path.read_bytes()


def resumed(path: Path, options: LogSettings | None = None) -> list[Trial]:
    with Log.resume(path, options or settings()) as log:
        return log.trials
