"""The float model as the source of states: what it gives for one sample, the next one takes."""

from __future__ import annotations

from functools import cache

import onnxruntime as ort

from intact.calibrate.observe.observer import model_of_outputs
from intact.data.batching import Batch
from intact.data.feeding import Arrays, Feeding, Step
from intact.engines.session import make_session, run_session
from intact.graph import Graph


def state_step(graph: Graph, feeding: Feeding) -> Step | None:
    """Return what runs the float model for its states alone; None where it has none.

    One thread, so that the states do not depend on how many there are.

    Raises:
        UsageError: The model has no such input or output.
    """
    outputs = list(feeding.of_graph(graph).states)
    if not outputs:
        return None

    @cache
    def session() -> ort.InferenceSession:
        return make_session(model_of_outputs(graph, outputs), threads=1)

    takes = {str(value.name) for value in graph.inputs}

    def step(feed: Batch) -> Arrays:
        fed = {name: array for name, array in feed.items() if name in takes}
        return dict(zip(outputs, run_session(session(), fed, outputs), strict=True))

    return step
