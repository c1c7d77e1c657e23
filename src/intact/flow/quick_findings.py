"""What is looked for at the end of every quantization, because it costs little.

Signs of wrong preprocessing, on the few samples that methods were tried on: one class for all of
them, first layers far from what BatchNormalizations remember, or steps that leave numbers far from
one, as a mean for 0..1 does where pixels are 0..255. Only where there is such a sign,
the samples are prepared in other ways, as `intact diagnose` does. Then, where an output has less
than 30 dB, what plan and statistics tell without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.calibrate.choice import Choice, FloatRuns
from intact.calibrate.method import Method
from intact.calibrate.observe.observer import model_of_outputs
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch, real_samples, sample_count
from intact.data.preprocess import Preprocess
from intact.engines.session import make_session, run_session
from intact.graph import Graph
from intact.numerics.answers import CLASSES
from intact.plan import QuantizedGraph

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding

_FEW = 8
"""Samples that show the first signs."""
_MANY = 32
"""Samples that decide."""
_OFF = 1.0
"""Mismatch with BatchNormalizations, in their deviations, from which on it is a sign."""
_USUAL = (0.1, 10.0)
"""Root mean square of numbers that a mean and a scale are meant to make: about one."""
_WELL_DB = 30.0
"""Signal to noise of every output from which on nothing is looked for in a plan."""


def preprocessing_signs(
    graph: Graph, runs: FloatRuns, preprocess: Preprocess, *, threads: int = 0
) -> list[Finding]:
    """Find wrong preprocessing, where the first samples have a sign of it.

    Args:
        graph: The float model.
        runs: Some samples, prepared.
        preprocess: The steps that prepared them.
        threads: Of the runtime; 0 takes all cores.
    """
    few = runs.first(_FEW)
    is_odd = preprocess != Preprocess() and _is_far_from_one(few)
    if not is_odd and not _is_one_class(few) and _mismatch(graph, few) <= _OFF:
        return []
    arrays = _joined(runs.first(_MANY).batches)
    if arrays is None:
        return []
    from intact.analyze.diagnose.preprocessing import preprocessing_findings  # with much else
    from intact.data.sources import open_samples

    samples = open_samples(arrays, graph)
    return preprocessing_findings(graph, samples, preprocess=preprocess, threads=threads)


def plan_signs(
    choice: Choice, statistics: Statistics, replan: Callable[[Method | None], QuantizedGraph]
) -> list[Finding]:
    """Find what plan and statistics tell of an output that has less than 30 dB.

    Args:
        choice: The plan, with the errors of its outputs.
        statistics: What calibration saw.
        replan: From a method, without scales that were given, to the plan that it gives; None
            makes it again.
    """
    if min(choice.errors.decibels.values(), default=_WELL_DB) >= _WELL_DB:
        return []
    from intact.analyze.diagnose.static import static_findings  # with much else

    def by(name: str | None) -> QuantizedGraph:
        if name is None:
            return replan(None)
        return replan(msgspec.structs.replace(choice.method, activations=name, options={}))

    return static_findings(choice.plan, statistics, choice.runs, by)


def _is_one_class(runs: FloatRuns) -> bool:
    """Tell whether the first output is one of classes, and has the same best one every time."""
    chosen: set[int] = set()
    count = 0
    for outputs, (feeds, real) in zip(runs.outputs(), runs.batches, strict=True):
        scores = next(iter(outputs.values()))
        if scores.ndim != 2 or len(scores) != sample_count(feeds) or scores.shape[1] < CLASSES:
            return False
        chosen.update(scores[:real].argmax(axis=1).tolist())
        count += real
    return len(chosen) == 1 and count >= _FEW


def _is_far_from_one(runs: FloatRuns) -> bool:
    """Tell whether inputs of floats are much smaller or larger than normalized ones."""
    low, high = _USUAL
    floats = [a for feeds, _ in runs.batches for a in feeds.values() if a.dtype == np.float32]
    sizes = [float(np.sqrt(np.mean(np.square(each, dtype=np.float64)))) for each in floats]
    return any(0 < size < low or size > high for size in sizes)


def _mismatch(graph: Graph, runs: FloatRuns) -> float:
    """Return by how much the first layers are off what BatchNormalizations remember.

    The root mean square in deviations, as `Remembered.mismatch`; 0 where nothing is remembered.
    """
    if not graph.batch_norms and not graph.input_batch_norms:
        return 0.0
    from intact.calibrate.remembered import FIRST, SampleMoments, memories_of

    memories = dict(list(memories_of(graph).items())[:FIRST])
    inputs = {str(value.name) for value in graph.inputs}
    computed = [name for name in memories if name not in inputs]
    session = make_session(model_of_outputs(graph, computed), threads=1) if computed else None
    moments: dict[str, list[SampleMoments]] = {name: [] for name in memories}
    for feeds, real in runs.batches:
        ran = [] if session is None else run_session(session, feeds, computed)
        tensors = {**feeds, **dict(zip(computed, ran, strict=True))}
        for name, parts in moments.items():
            parts.append(SampleMoments.of(tensors[name], real))
    found = [SampleMoments.joined(moments[name]).mismatch(each) for name, each in memories.items()]
    return float(np.mean(found)) if found else 0.0


def _joined(batches: Sequence[tuple[Batch, int]]) -> Batch | None:
    """Join the real samples of some batches; None where they have no common axis or shape."""
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for feeds, count in batches:
        size = sample_count(feeds)
        if any(not array.ndim or len(array) != size for array in feeds.values()):
            return None
        for name, array in real_samples(feeds, size, count).items():
            parts.setdefault(name, []).append(array)
    if any(len({each.shape[1:] for each in arrays}) > 1 for arrays in parts.values()):
        return None
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}
