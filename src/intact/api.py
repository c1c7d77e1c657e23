"""The public functions: each does one job of the command line, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeGuard

import numpy.typing as npt
import onnx
import onnx_ir as ir

from intact.calibrate.assign import Method
from intact.calibrate.collect import Progress
from intact.comparing import Subject, compare, compare_observed
from intact.errors import UsageError
from intact.evaluation import Evaluation, evaluate_result
from intact.execution import Executor, Run, run_float, run_integer, run_simulated, with_codes
from intact.exporting import chosen_formats
from intact.formats.onnx_qdq.read import is_quantized, read_qdq
from intact.formats.tflite.read import is_tflite, read_tflite
from intact.formats.tflite.write import Io
from intact.graph import Graph, load_model, normalize
from intact.graph.expand import expand as expand_operators
from intact.graph.join_gelu import join_gelu
from intact.numerics.conversion import Quantization
from intact.pipeline import (
    Calibration,
    DataSource,
    Deployment,
    ScaleSource,
    given_scales,
    refuse_nothing_to_do,
)
from intact.plan import Overrides, QuantizedGraph, build_plan
from intact.plan.complete import complete
from intact.plan.inspection import Inspection, inspect_plan
from intact.program.lower import lower
from intact.result import PLAN, Result, check_output
from intact.samples.metric import Metric, MetricFunction
from intact.samples.opening import open_samples
from intact.samples.preprocess import Preprocess
from intact.targets import Target, full_range, load_target
from intact.verification import Verification

ModelSource: TypeAlias = str | Path | onnx.ModelProto | ir.Model
DEFAULT_SAMPLES = 512
_VERIFIED = 64


def quantize(
    model: ModelSource,
    data: DataSource | None = None,
    *,
    target: str | Path | Target = "onnxruntime",
    output: str | Path | None = None,
    formats: Sequence[str] | None = None,
    io: str = "int8",
    method: str | None = None,
    weight_method: str | None = None,
    method_options: Mapping[str, float] | None = None,
    scales: ScaleSource | Sequence[ScaleSource] | None = None,
    overrides: Overrides | None = None,
    expand: Sequence[str] = (),
    preprocess: Preprocess | None = None,
    samples: int | None = DEFAULT_SAMPLES,
    skip_bad: bool = False,
    mask: str | None = None,
    max_memory: int | None = None,
    allow_empty: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Quantise a float model: load, plan, calibrate, write.

    Args:
        model: A path or a loaded model; never changed.
        data: Calibration samples (see ``open_samples``); None where every scale is given.
        target: A shipped target's name, a TOML file or a ``Target``.
        output: Folder for the result; None keeps it in memory.
        formats: What to write: ``onnx_qdq``, ``tflite``, ``c``, ``encodings``; None takes the
            target's.
        io: What a ``.tflite`` takes and gives: ``int8`` codes or ``float`` numbers.
        method: Threshold method for activations; None takes the target's.
        weight_method: Threshold method for weights; None takes the target's.
        method_options: Options of the activations' method, e.g. ``{"percentile": 99.9}``.
        scales: Scales that are taken as they are: a Tengine table, encodings (JSON) or a
            ``ScaleTable``, or several of these. None takes those that the model carries as
            annotations, if it does; an empty list takes none.
        overrides: Nodes kept float, other bit-widths.
        expand: Operator types that are taken apart into simpler operators first, so that these
            can be integers: ``LayerNormalization``.
        preprocess: Mean and scale of the data, and the steps for images.
        samples: Use at most so many samples; None uses all.
        skip_bad: Leave out images that cannot be read; a note of the plan says which.
        mask: Name of the array that is 0 where a sequence is padded: an input of the model, or a
            further array of the data. What is padded does not count.
        max_memory: Bytes for observed activations and their counts; None for no limit.
        allow_empty: Accept a model of which the target computes nothing with integers.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: One of its children, naming what is wrong and how to mend it.
    """
    if output is not None:
        check_output(Path(output))
    described = _target(target)
    deployment = _deployment(described, formats, io)
    chosen = Method.of(described, method, weight_method, method_options)
    loaded = load_model(model)
    if is_quantized(loaded):
        raise UsageError(
            "the model is quantised already", remedy="`intact import` reads it, and completes it"
        )
    graph = expand_operators(normalize(loaded), expand)
    if described.describes("Gelu"):
        graph = join_gelu(graph)
    given = given_scales(scales, loaded, graph)
    del loaded
    plan = build_plan(graph, described, overrides)
    if not allow_empty:
        refuse_nothing_to_do(plan)
    calibration = Calibration(
        chosen,
        method_options or {},
        preprocess or Preprocess(),
        samples,
        skip_bad,
        mask,
        max_memory,
        threads,
        progress,
        deployment,
    )
    result = calibration.run(plan, data, given)
    if output is not None:
        result.save(output)
    return result


def read_quantized(
    model: ModelSource,
    data: DataSource | None = None,
    *,
    target: str | Path | Target | None = None,
    output: str | Path | None = None,
    formats: Sequence[str] | None = None,
    io: str = "int8",
    method: str | None = None,
    weight_method: str | None = None,
    method_options: Mapping[str, float] | None = None,
    overrides: Overrides | None = None,
    preprocess: Preprocess | None = None,
    samples: int | None = DEFAULT_SAMPLES,
    skip_bad: bool = False,
    mask: str | None = None,
    max_memory: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Read a model that others quantised; its scales stay as they are.

    Args:
        model: QDQ or QOperator ONNX, a path or loaded, or the path of an int8 ``.tflite``; never
            changed.
        data: Samples to complete it with: what the model left float, and the target computes with
            integers, is calibrated too. None reads and adds nothing.
        target: The hardware that it is for; None takes ``tflite`` for such a file, else
            ``onnxruntime``.
        output: Folder for the result; None keeps it in memory.
        formats: What to write: ``onnx_qdq``, ``tflite``, ``c``, ``encodings``; None takes the
            target's.
        io: What a ``.tflite`` takes and gives: ``int8`` codes or ``float`` numbers.
        method: Threshold method for the activations that are added.
        weight_method: Threshold method for the weights that are added.
        method_options: Options of the activations' method.
        overrides: Nodes kept float, other bit-widths, of what is added.
        preprocess: Mean and scale of the data, kept for ``evaluate`` and ``verify``.
        samples: Use at most so many samples; None uses all.
        skip_bad: As for ``quantize``.
        mask: As for ``quantize``.
        max_memory: As for ``quantize``.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: One of its children, naming what is wrong and how to mend it.
    """
    if data is None:
        _refuse_without_samples(
            {
                "--method": method,
                "--weight-method": weight_method,
                "--method-option": method_options,
                "--keep-float": overrides is not None and overrides != Overrides(),
                "--mask": mask,
                "--max-memory": max_memory is not None,
                "--skip-bad": skip_bad,
            }
        )
    if output is not None:
        check_output(Path(output))
    described = _target(_target_for(model) if target is None else target)
    deployment = _deployment(described, formats, io)
    plan = _read_plan(model, described)
    if data is None:
        result = deployment.result(plan, None, preprocess or Preprocess())
    else:
        calibration = Calibration(
            Method.of(described, method, weight_method, method_options),
            method_options or {},
            preprocess or Preprocess(),
            samples,
            skip_bad,
            mask,
            max_memory,
            threads,
            progress,
            deployment,
        )
        result = calibration.run(complete(plan, described, overrides), data)
    if output is not None:
        result.save(output)
    return result


def export(
    result: Result | str | Path,
    *,
    formats: Sequence[str] | None = None,
    io: str = "int8",
    output: str | Path | None = None,
) -> Result:
    """Write the plan of a result in other formats; nothing is calibrated again.

    Args:
        result: A result or its folder; not changed.
        formats: ``onnx_qdq``, ``tflite``, ``c``; None takes the best of the target.
        io: What a ``.tflite`` takes and gives: ``int8`` codes or ``float`` numbers.
        output: Folder for the new result; None keeps it in memory.

    Raises:
        IntactError: The folder is wrong, or a format cannot express the plan.
    """
    if output is not None:
        check_output(Path(output))
    loaded = load_result(result)
    deployment = _deployment(loaded.plan.target, formats, io)
    found = deployment.again(loaded)
    if output is not None:
        found.save(output)
    return found


def convert_ranges(
    *,
    scale: float | None = None,
    zero_point: int = 0,
    low: float | None = None,
    high: float | None = None,
    bits: int = 8,
    signed: bool = True,
    narrow: bool = False,
    symmetric: bool = False,
) -> Quantization:
    """Turn a scale and zero point into the range that the codes hold, or a range into those.

    Args:
        scale: What one step stands for; or give ``low`` and ``high``.
        zero_point: The code of 0, beside ``scale``.
        low: What the smallest code stands for.
        high: What the largest code stands for.
        bits: Width of the codes.
        signed: Codes of both signs, or from 0.
        narrow: Leave out the lowest signed code.
        symmetric: Of a range: the zero point is 0.

    Raises:
        UsageError: Both forms are given, or neither; or numbers that are impossible.
        ConfigError: An end of the range is not finite, or the ends are crossed.
    """
    codes = full_range(bits, signed=signed, narrow=narrow)
    if scale is not None and low is None and high is None:
        if symmetric and zero_point:
            raise UsageError(
                f"--symmetric and a zero point of {zero_point}", remedy="leave one of them out"
            )
        return Quantization.of_scale(scale, zero_point, *codes)
    if scale is None and low is not None and high is not None:
        return Quantization.of_range(low, high, *codes, symmetric=symmetric)
    raise UsageError(
        "a scale, or both ends of a range, are needed",
        remedy="give --scale (and --zero-point), or --low and --high",
    )


def inspect(
    model: ModelSource,
    *,
    target: str | Path | Target | None = None,
    overrides: Overrides | None = None,
) -> Inspection:
    """Report which nodes will be quantised and why (not), without data.

    Of a model that is quantised already, what it says of itself is reported; of a result's folder,
    its plan. Without a target a ``.tflite`` is taken for ``tflite``, a model for ``onnxruntime``.

    Raises:
        IntactError: The model, the target or an override is wrong.
    """
    described = _target(_target_for(model) if target is None else target)
    if _is_result(model):
        plan = load_result(model).plan
    elif _is_tflite(model):
        plan = _read_plan(model, described)
    else:
        loaded = load_model(model)
        if not is_quantized(loaded):
            return inspect_plan(build_plan(normalize(loaded), described, overrides))
        plan = read_qdq(loaded, described)
    if overrides is not None and overrides != Overrides():
        raise UsageError(
            "the model is quantised already, its widths and float nodes are given",
            remedy="leave them out here, or inspect the float model",
        )
    return inspect_plan(plan)


def evaluate(
    result: Result | str | Path,
    data: DataSource,
    *,
    preprocess: Preprocess | None = None,
    labels: str | Path | None = None,
    metric: str | MetricFunction | Metric | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    top_k: int = 5,
    batch: int = 100,
    threads: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Run float and quantised model over data: accuracy, error, size, latency.

    Args:
        result: A result or its folder.
        data: Samples, with ``labels`` for accuracies.
        preprocess: What to do with the data; None takes what calibration did.
        labels: A CSV file of labels, for a folder of images.
        metric: A function that scores outputs, or its ``module:function``: see
            ``intact.samples.metric``.
        samples: Use at most so many samples; None uses all.
        skip_bad: Leave out images that cannot be read, and list them.
        top_k: Also report how often the right class is among so many best ones.
        batch: Samples in one run.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    scored_by = None if metric is None else Metric.of(metric)
    loaded = load_result(result)
    opened = open_samples(
        data,
        loaded.plan.graph,
        preprocess=preprocess or loaded.preprocess,
        limit=samples,
        labels=labels,
        skip_bad=skip_bad,
        unread=_mask(loaded),
    )
    opened = replace(opened, progress=progress)
    return evaluate_result(
        loaded, opened, batch=batch, threads=threads, metric=scored_by, top_k=top_k
    )


def execute(
    model: Result | ModelSource,
    data: DataSource,
    *,
    executor: Executor | str = Executor.INTEGER,
    target: str | Path | Target | None = None,
    preprocess: Preprocess | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    batch: int = 16,
    observe: Sequence[str] | None = (),
    threads: int = 0,
    progress: Progress | None = None,
) -> Run:
    """Run a model or a plan on data, by any executor.

    Args:
        model: A result or its folder, a quantised ``.onnx`` or ``.tflite``, or a float model
            (which can only be run in float).
        data: Samples. What is already in the integer type of an input is taken as its codes, and
            then the outputs are codes too.
        executor: ``integer`` (the bits of the target), ``simulate`` or ``float``.
        target: The hardware of a quantised model that is no result.
        preprocess: What to do with the data; None takes what calibration did.
        samples: Use at most so many samples; None uses all.
        skip_bad: Leave out images that cannot be read.
        batch: Samples in one run.
        observe: Names of tensors that the integer engine hands out too; None for all.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The model or the data is wrong, or has no plan to be run by.
    """
    if executor not in set(Executor):
        raise UsageError(f"executor {executor!r}", remedy="integer, simulate or float")
    if executor != Executor.INTEGER and observe != ():
        raise UsageError(
            f"--{executor} hands out no intermediate tensors", remedy="take the integer engine"
        )
    graph, plan, steps = _runnable(model, target)
    if plan is None and executor != Executor.FLOAT:
        raise UsageError(
            f"--{executor}: the model is float, there is no plan to run",
            remedy="give the folder that `intact quantize` made of it, or --float",
        )
    opened = open_samples(
        data, graph, preprocess=preprocess or steps, limit=samples, skip_bad=skip_bad
    )
    opened = replace(opened, progress=progress)
    if plan is None or executor == Executor.FLOAT:
        return run_float(graph, opened, batch=batch, threads=threads)
    if executor == Executor.SIMULATE:
        return run_simulated(plan, opened, batch=batch, threads=threads)
    return run_integer(plan, opened, batch=batch, threads=threads, observe=observe)


def _runnable(
    model: Result | ModelSource, target: str | Path | Target | None
) -> tuple[Graph, QuantizedGraph | None, Preprocess]:
    """Return the float graph, the plan if there is one, and what is done to samples."""
    if isinstance(model, Result) or _is_result(model):
        loaded = load_result(model)
        return loaded.plan.graph, loaded.plan, loaded.preprocess
    described = _target_for(model) if target is None else target
    if _is_tflite(model):
        plan = _read_plan(model, _target(described))
        return plan.graph, plan, Preprocess()
    source = load_model(model)
    if not is_quantized(source):
        return normalize(source), None, Preprocess()
    plan = read_qdq(source, _target(described))
    return plan.graph, plan, Preprocess()


def _is_result(model: ModelSource) -> TypeGuard[str | Path]:
    return isinstance(model, str | Path) and (Path(model) / PLAN).is_file()


def verify(
    result: Result | str | Path,
    data: DataSource | None = None,
    *,
    kernels: str | None = None,
    deployed: str | None = None,
    observed: str | Path | Mapping[str, npt.ArrayLike] | None = None,
    target: str | Path | Target | None = None,
    preprocess: Preprocess | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Compare what was deployed with the integers that its plan says, layer by layer.

    Args:
        result: A result or its folder, or a ``.tflite`` that others made.
        data: Samples; None draws inputs from the distribution that calibration saw, or where
            nothing was calibrated evenly from the ranges of the plan.
        kernels: Of a ``.tflite``, which kernels run it: LiteRT's ``ref``, ``optimized`` or
            ``xnnpack``, or ``micro`` for TensorFlow Lite Micro; None takes the target's.
        deployed: Which format of the result; None takes its first.
        observed: Tensors that were recorded on a device (arrays by name, or an ``.npz``): these are
            compared instead of a runtime here.
        target: The hardware of a ``.tflite`` of others; None takes ``tflite``.
        preprocess: What to do with the data; None takes what calibration did.
        samples: Use at most so many samples; None for 64, with ``observed`` for all.
        skip_bad: Leave out images that cannot be read.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    subject = _subject(result, target)
    if samples is None and observed is None:
        samples = _VERIFIED
    if data is None and observed is None:
        opened = subject.draw_samples(_VERIFIED if samples is None else samples)
    elif data is None:
        raise UsageError(
            "--observed needs the inputs of the device", remedy="give them with --data"
        )
    else:
        opened = open_samples(
            data,
            subject.plan.graph,
            preprocess=preprocess or subject.preprocess,
            limit=samples,
            skip_bad=skip_bad,
            unread=subject.unread,
        )
    opened = replace(with_codes(opened, lower(subject.plan))[0], progress=progress)
    if observed is not None:
        return compare_observed(subject.plan, opened, observed, threads=threads)
    return compare(subject, opened, kernels=kernels, deployed=deployed, threads=threads)


def _subject(result: Result | str | Path, target: str | Path | Target | None) -> Subject:
    if not isinstance(result, Result) and _is_tflite(result):
        described = _target("tflite" if target is None else target)
        return Subject.of_tflite(Path(result), described)
    if target is not None:
        raise UsageError("--target is for a .tflite: a result has its own", remedy="leave it out")
    return Subject.of_result(load_result(result))


def load_result(result: Result | str | Path) -> Result:
    """Read a result's folder; a ``Result`` is returned as it is.

    Raises:
        PlanError: The folder is not one that ``quantize`` wrote.
    """
    return result if isinstance(result, Result) else Result.load(result)


def _deployment(target: Target, formats: Sequence[str] | None, io: str) -> Deployment:
    if io not in set(Io):
        raise UsageError(f"--io {io!r}", remedy="int8 or float")
    return Deployment(chosen_formats(target, formats), Io(io))


def _read_plan(model: ModelSource, target: Target) -> QuantizedGraph:
    """Read a quantised model of any format that can be read."""
    if isinstance(model, str | Path) and is_tflite(model):
        return read_tflite(model, target)
    return read_qdq(model, target)


def _is_tflite(model: ModelSource) -> bool:
    return isinstance(model, str | Path) and is_tflite(model)


def _target_for(model: ModelSource) -> str:
    """Return the target that a quantised model is for, if nothing else is said."""
    return "tflite" if _is_tflite(model) else "onnxruntime"


def _target(target: str | Path | Target) -> Target:
    return target if isinstance(target, Target) else load_target(target)


def _refuse_without_samples(given: Mapping[str, object]) -> None:
    """Refuse options that would have no effect, instead of ignoring them."""
    for option, value in given.items():
        if value:
            raise UsageError(
                f"{option} is for completing a quantised model, and there are no samples",
                remedy="give some with --data, or leave it out",
            )


def _mask(result: Result) -> frozenset[str]:
    """Return the array that only calibration reads, which the same data holds again."""
    return frozenset({result.plan.provenance["mask"]} if "mask" in result.plan.provenance else ())
