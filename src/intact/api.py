"""The public functions: each does one job of the command line, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt
import onnx
import onnx_ir as ir

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import Progress, collect
from intact.calibrate.synthetic import synthetic_samples
from intact.errors import PlanError
from intact.evaluation import Evaluation, evaluate_result
from intact.formats.onnx_qdq.write import write_qdq
from intact.graph import normalize
from intact.plan import Overrides, QuantizedGraph, build_plan
from intact.plan.inspection import Inspection, inspect_graph
from intact.result import Result, check_output
from intact.samples.preprocess import Preprocess
from intact.samples.stream import Batch, Samples, open_samples
from intact.targets import Target, load_target
from intact.verification import Verification, verify_qdq

ModelSource: TypeAlias = str | Path | onnx.ModelProto | ir.Model
DataSource: TypeAlias = (
    str | Path | npt.NDArray[Any] | Mapping[str, npt.ArrayLike] | Iterable[Batch]
)

DEFAULT_SAMPLES = 512
_VERIFY_BATCH = 16  # every activation of a batch is held, twice


def quantize(
    model: ModelSource,
    data: DataSource,
    *,
    target: str | Path | Target = "onnxruntime",
    output: str | Path | None = None,
    method: str | None = None,
    weight_method: str | None = None,
    method_options: Mapping[str, float] | None = None,
    overrides: Overrides | None = None,
    preprocess: Preprocess | None = None,
    samples: int | None = DEFAULT_SAMPLES,
    threads: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Quantise a model: load, plan, calibrate, write.

    Args:
        model: A path or a loaded model; never changed.
        data: Calibration samples (see ``open_samples``).
        target: A shipped target's name, a TOML file or a ``Target``.
        output: Folder for the result; None keeps it in memory.
        method: Threshold method for activations; None takes the target's.
        weight_method: Threshold method for weights; None takes the target's.
        method_options: Options of the activations' method, e.g. ``{"percentile": 99.9}``.
        overrides: Nodes kept float, other bit-widths.
        preprocess: Mean and scale of the data.
        samples: Use at most so many samples; None uses all.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: One of its children, naming what is wrong and how to mend it.
    """
    if output is not None:
        check_output(Path(output))
    described = _target(target)
    chosen = Method.of(described, method, weight_method, method_options)
    graph = normalize(model)
    plan = build_plan(graph, described, overrides)
    _refuse_nothing_to_do(plan)
    opened = open_samples(data, graph, preprocess=preprocess, limit=samples)
    # The inputs too, quantised or not: `verify` draws new ones from their distributions.
    tensors = tuple(dict.fromkeys((*opened.specs, *required_tensors(plan))))
    statistics = collect(graph, opened, tensors, threads=threads, progress=progress)
    plan = assign(plan, statistics, chosen)
    plan.provenance |= _described(opened.preprocess, method_options or {})
    exported = write_qdq(plan)
    plan = plan.with_notes(tuple(exported.notes))
    result = Result(plan, statistics, exported)
    if output is not None:
        result.save(output)
    return result


def inspect(
    model: ModelSource,
    *,
    target: str | Path | Target = "onnxruntime",
    overrides: Overrides | None = None,
) -> Inspection:
    """Report which nodes will be quantised and why (not), without data.

    Raises:
        IntactError: The model, the target or an override is wrong.
    """
    return inspect_graph(normalize(model), _target(target), overrides)


def evaluate(
    result: Result | str | Path,
    data: DataSource,
    *,
    preprocess: Preprocess | None = None,
    samples: int | None = None,
    batch: int = 100,
    threads: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Run float and quantised model over data: accuracy, error, size, latency.

    Args:
        result: A result or its folder.
        data: Samples, with ``labels`` for accuracies.
        preprocess: Mean and scale; None takes those of the calibration.
        samples: Use at most so many samples; None uses all.
        batch: Samples in one run.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    loaded = load_result(result)
    opened = replace(_open(loaded, data, preprocess, samples), progress=progress)
    return evaluate_result(loaded, opened, batch=batch, threads=threads)


def verify(
    result: Result | str | Path,
    data: DataSource | None = None,
    *,
    preprocess: Preprocess | None = None,
    samples: int = 64,
    threads: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Compare the deployed model with the simulation of its plan, layer by layer.

    Args:
        result: A result or its folder.
        data: Samples; None draws inputs from the distribution that calibration saw.
        preprocess: Mean and scale; None takes those of the calibration.
        samples: Use at most so many samples.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    loaded = load_result(result)
    if data is None:
        opened = synthetic_samples(loaded.plan.graph, loaded.statistics, samples)
    else:
        opened = _open(loaded, data, preprocess, samples)
    feeds = _feeds(replace(opened, progress=progress))
    return verify_qdq(loaded.plan, loaded.exported, feeds, threads=threads)


def load_result(result: Result | str | Path) -> Result:
    """Read a result's folder; a ``Result`` is returned as it is.

    Raises:
        PlanError: The folder is not one that ``quantize`` wrote.
    """
    return result if isinstance(result, Result) else Result.load(result)


def _target(target: str | Path | Target) -> Target:
    return target if isinstance(target, Target) else load_target(target)


def _open(
    result: Result, data: DataSource, preprocess: Preprocess | None, samples: int | None
) -> Samples:
    kept = preprocess or result.preprocess
    return open_samples(data, result.plan.graph, preprocess=kept, limit=samples)


def _feeds(samples: Samples) -> Iterator[Batch]:
    size = samples.batch_size(_VERIFY_BATCH)
    whole = samples.fixed_batch is not None  # such a model cannot run fewer
    for batch, count in samples.batches(size):
        yield batch if whole else {name: array[:count] for name, array in batch.items()}


def _described(preprocess: Preprocess, options: Mapping[str, float]) -> dict[str, str]:
    """Return numbers as text for the plan; Python's floats read back to the same numbers."""
    numbers = {"mean": preprocess.mean, "scale": preprocess.scale}
    described = {name: ",".join(map(repr, values)) for name, values in numbers.items() if values}
    if options:
        described["method_options"] = ", ".join(f"{k}={v!r}" for k, v in sorted(options.items()))
    return described


def _refuse_nothing_to_do(plan: QuantizedGraph) -> None:
    if any(decision.quantized for decision in plan.decisions.values()):
        return
    reasons = sorted({decision.reason for decision in plan.decisions.values()})
    raise PlanError(
        f"target {plan.target.name} quantises no node of this model: {'; '.join(reasons[:3])}",
        remedy="see `intact inspect`, or choose another target",
    )
