"""The functions that make a result of one that is there already, or of a model of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from intact.api._quantize import DEFAULT_SAMPLES
from intact.calibrate.assign import Method
from intact.calibrate.collect import Progress
from intact.data.preprocess import Preprocess
from intact.errors import ModelError, UsageError
from intact.flow.calibration import Calibration, DataSource, Job
from intact.flow.result import Result, check_output
from intact.flow.sources import (
    FloatSource,
    ModelSource,
    deployment_of,
    load_result,
    open_source,
    target_of,
)
from intact.plan import Overrides
from intact.plan.build import complete
from intact.targets import Target


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
    """Read a model that others quantized; its scales stay as they are.

    Args:
        model: ONNX with QDQ, QOperator or OpenVINO's FakeQuantize, a path or loaded, or the path
            of an int8 ``.tflite`` or ``.tmfile``; never changed.
        data: Samples to complete it with: what the model left float, and the target computes with
            integers, is calibrated too. None reads and adds nothing.
        target: The hardware that it is for; None takes that of the format: ``tflite``,
            ``tengine``, ``openvino``, else ``onnxruntime``.
        output: Folder for the result; None keeps it in memory.
        formats: Names of the formats to write; None takes the target's.
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
    source = open_source(model)
    if isinstance(source, FloatSource):
        raise ModelError("the model is not quantized", remedy="`intact quantize` does that")
    described = target_of(source.target if target is None else target)
    deployment = deployment_of(described, formats, io)
    plan = source.plan(described)
    if data is None:
        result = deployment.result(plan, None, preprocess or Preprocess())
    else:
        calibration = Calibration(
            method_options or {},
            preprocess or Preprocess(),
            samples,
            skip_bad,
            mask,
            max_memory,
            threads,
            progress,
        )
        chosen = Method.of(described, method, weight_method, method_options)
        job = Job(complete(plan, described, overrides), chosen, deployment)
        (result,) = calibration.run([job], data)
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
        formats: As for `quantize`; None takes the best of the target.
        io: What a ``.tflite`` takes and gives: ``int8`` codes or ``float`` numbers.
        output: Folder for the new result; None keeps it in memory.

    Raises:
        IntactError: The folder is wrong, or a format cannot express the plan.
    """
    if output is not None:
        check_output(Path(output))
    loaded = load_result(result)
    source = None if loaded.folder is None else loaded.folder.resolve()
    if output is not None and Path(output).resolve() == source:
        raise UsageError(
            f"{output} is the result itself: its files would be replaced",
            remedy="name another folder",
        )
    deployment = deployment_of(loaded.plan.target, formats, io)
    found = deployment.again(loaded)
    if output is not None:
        found.save(output)
    return found


def _refuse_without_samples(given: Mapping[str, object]) -> None:
    """Refuse options that would have no effect, instead of ignoring them."""
    for option, value in given.items():
        if value:
            raise UsageError(
                f"{option} is for completing a quantized model, and there are no samples",
                remedy="give some with --data, or leave it out",
            )
