"""Benches of small models for tests of the search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from intact.calibrate.assign import Method
from intact.calibrate.collect import collect
from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.graph import normalize
from intact.search.measuring.objective import Objective
from intact.search.measuring.trial_data import TrialData
from intact.search.plans import required
from intact.search.space import Space
from intact.targets import Target, load_target
from tests.models import random_inputs, residual_net

Arrays = dict[str, npt.NDArray[Any]]


def some_samples(model: onnx.ModelProto, count: int, *, seed: int = 5) -> Arrays:
    """Random samples with the float model's classes as labels, a tenth of them wrong."""
    feeds: Arrays = dict(random_inputs(model, batch=count, seed=seed))
    outputs = FloatModel(normalize(model), threads=1).run(feeds)
    labels = next(iter(outputs.values())).argmax(axis=1)
    return {**feeds, "labels": np.where(np.arange(count) % 10 == 0, 0, labels)}


def trial_data_of(
    model: onnx.ModelProto | None = None,
    target: Target | str = "onnxruntime",
    data: Mapping[str, Any] | list[Any] | None = None,
    objective: Objective | None = None,
    *,
    count: int = 100,
    **options: Any,
) -> TrialData:
    """A trial_data with statistics of eight random samples."""
    model = residual_net() if model is None else model
    graph = normalize(model)
    described = load_target(target) if isinstance(target, str) else target
    space = Space.of(graph, described)
    feeds = random_inputs(model, batch=8, seed=2)
    statistics = collect(graph, open_samples(feeds, graph), required(space), threads=1)
    samples = open_samples(some_samples(model, count) if data is None else data, graph)
    options.setdefault("chunk", 16)
    return TrialData.of(
        space, statistics, Method.of(described), samples, objective, threads=1, **options
    )
