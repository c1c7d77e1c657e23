"""Measuring what candidates of a search cost on this machine."""

from __future__ import annotations

from collections.abc import Callable

from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.flow.evaluation import latencies
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.write import write_qdq
from intact.search.plans import Planner
from intact.search.space import Candidate

_BATCH = 32


def latency_of(planner: Planner, samples: Samples, *, threads: int) -> Callable[[Candidate], float]:
    """Return what measures the milliseconds of a candidate in ONNX Runtime, for 32 samples.

    Each is timed in turn with the float model and its share of that is taken, so that a machine
    that grows slower or faster meanwhile favours none.
    """
    feeds = next(iter(samples.batches(samples.batch_size(_BATCH))))[0]
    float_model = FloatModel(planner.space.plan.graph, threads=threads)

    def plain() -> object:
        return float_model.run(feeds)

    (unit, _), _ = latencies(plain, plain)

    def measure(candidate: Candidate) -> float:
        runtime = QdqRuntime(write_qdq(planner.plan(candidate)).model, threads=threads)
        _, speedup = latencies(plain, lambda: runtime.run(feeds))
        return unit / speedup

    return measure
