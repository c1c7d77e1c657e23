"""The functions that make a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from intact.calibrate.assign import Method
from intact.calibrate.collect import Progress
from intact.data.preprocess import Preprocess
from intact.errors import UsageError
from intact.flow.calibration import (
    Calibration,
    DataSource,
    Job,
    ScaleSource,
    given_scales,
    refuse_nothing_to_do,
)
from intact.flow.result import Result, check_output, save_several
from intact.flow.sources import (
    ModelSource,
    QuantizedSource,
    default_target,
    deployment_of,
    open_source,
    target_of,
)
from intact.graph import normalize
from intact.graph.passes.expand import expand as expand_operators
from intact.graph.passes.join_gelu import join_gelu
from intact.improve.improvements import Improvements
from intact.plan import Overrides, build_plan
from intact.targets import Target
from intact.targets.schema import without_in_place

DEFAULT_SAMPLES = 512


def quantize(
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
    scales: ScaleSource | Sequence[ScaleSource] | None = None,
    overrides: Overrides | None = None,
    expand: Sequence[str] = (),
    improve: Sequence[str] = (),
    in_place: bool = True,
    preprocess: Preprocess | None = None,
    samples: int | None = DEFAULT_SAMPLES,
    skip_bad: bool = False,
    mask: str | None = None,
    max_memory: int | None = None,
    allow_empty: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Quantize a float model: load, plan, calibrate, write.

    Args:
        model: A path (``.onnx``, or a Tengine ``.tmfile``) or a loaded model; never changed.
        data: Calibration samples (see ``open_samples``); None where every scale is given.
        target: A shipped target's name, a TOML file or a ``Target``; None takes ``tengine`` for a
            ``.tmfile``, else ``onnxruntime``.
        output: Folder for the result; None keeps it in memory.
        formats: Names of the formats to write; None takes the target's.
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
        improve: What is done to the weights to lose less: ``equalize`` (before the samples are
            run; what the model computes stays) and ``weight-scales`` (afterwards; runs some of the
            samples again).
        in_place: False lets no operator hand the scale of its output back to its input, on targets
            that do so (Tengine).
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
    found = quantize_for(
        model,
        data,
        targets=[default_target(model) if target is None else target],
        formats=formats,
        io=io,
        method=method,
        weight_method=weight_method,
        method_options=method_options,
        scales=scales,
        overrides=overrides,
        expand=expand,
        improve=improve,
        in_place=in_place,
        preprocess=preprocess,
        samples=samples,
        skip_bad=skip_bad,
        mask=mask,
        max_memory=max_memory,
        allow_empty=allow_empty,
        threads=threads,
        progress=progress,
    )
    result = next(iter(found.values()))
    if output is not None:
        result.save(output)
    return result


def quantize_for(
    model: ModelSource,
    data: DataSource | None = None,
    *,
    targets: Sequence[str | Path | Target],
    output: str | Path | None = None,
    formats: Sequence[str] | None = None,
    io: str = "int8",
    method: str | None = None,
    weight_method: str | None = None,
    method_options: Mapping[str, float] | None = None,
    scales: ScaleSource | Sequence[ScaleSource] | None = None,
    overrides: Overrides | None = None,
    expand: Sequence[str] = (),
    improve: Sequence[str] = (),
    in_place: bool = True,
    preprocess: Preprocess | None = None,
    samples: int | None = DEFAULT_SAMPLES,
    skip_bad: bool = False,
    mask: str | None = None,
    max_memory: int | None = None,
    allow_empty: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> dict[str, Result]:
    """Quantize a float model for several targets, from one pass over the samples.

    Each result is what `quantize` gives for its target alone, byte for byte. Where some of the
    targets have an operator Gelu and the model writes it out, these calibrate a graph of their own.

    Args:
        model: As for `quantize`, as all that is not named here.
        data: Calibration samples; read twice where targets need different graphs.
        targets: At least one; no two of one name.
        output: A folder that gets one for each target, called like it; written whole, and results
            that it held before are replaced. None keeps the results in memory.
        formats: What to write for every target; None takes the best of each.
        io: See `quantize`.
        method: See `quantize`.
        weight_method: See `quantize`.
        method_options: See `quantize`.
        scales: See `quantize`.
        overrides: See `quantize`.
        expand: See `quantize`.
        improve: See `quantize`.
        in_place: See `quantize`.
        preprocess: See `quantize`.
        samples: See `quantize`.
        skip_bad: See `quantize`.
        mask: See `quantize`.
        max_memory: See `quantize`.
        allow_empty: See `quantize`.
        threads: See `quantize`.
        progress: See `quantize`.

    Returns:
        Results by the names of their targets, in the order asked for.

    Raises:
        IntactError: As of `quantize`; nothing is written then.
    """
    described = [target_of(target) for target in targets]
    if not in_place:
        described = _apart(described)
    names = _distinct_names(described)
    if output is not None:
        check_output(Path(output))
    improvements = Improvements.of(improve)
    deployments = [deployment_of(each, formats, io) for each in described]
    methods = [Method.of(each, method, weight_method, method_options) for each in described]
    source = open_source(model)
    if isinstance(source, QuantizedSource):
        raise UsageError(
            "the model is quantized already", remedy="`intact import` reads it, and completes it"
        )
    original = expand_operators(normalize(source.model), expand)
    graph = improvements.rewrite(original)
    joined = join_gelu(graph) if any(each.describes("Gelu") for each in described) else graph
    given = given_scales(scales, source.model, graph)
    del source
    plans = [
        build_plan(joined if each.describes("Gelu") else graph, each, overrides)
        for each in described
    ]
    if not allow_empty:
        for plan in plans:
            refuse_nothing_to_do(plan)
    plans = [plan.with_notes(improvements.notes(original)) for plan in plans]
    calibration = Calibration(
        method_options or {},
        preprocess or Preprocess(),
        samples,
        skip_bad,
        mask,
        max_memory,
        threads,
        progress,
        improvements,
    )
    jobs = [Job(*parts) for parts in zip(plans, methods, deployments, strict=True)]
    results = dict(zip(names, calibration.run(jobs, data, given), strict=True))
    if output is not None:
        save_several(results, Path(output))
    return results


def _apart(targets: Sequence[Target]) -> list[Target]:
    """Return the targets without working in place."""
    if not any(target.topology.in_place for target in targets):
        raise UsageError(
            f"--no-in-place: {', '.join(target.name for target in targets)} does nothing in place",
            remedy="leave it out",
        )
    return [without_in_place(target) for target in targets]


def _distinct_names(targets: Sequence[Target]) -> tuple[str, ...]:
    """Return what the targets are called."""
    names = tuple(target.name for target in targets)
    if not names:
        raise UsageError("there is no target", remedy="name one: see `intact targets`")
    for name in names:
        if Path(name).name != name or name.startswith(".") or "\\" in name:
            raise UsageError(
                f"target {name!r} cannot give a folder its name", remedy="rename it in its file"
            )
        if names.count(name) > 1:
            raise UsageError(
                f"target {name} is given twice", remedy="leave one out, or rename it in its file"
            )
    return names
