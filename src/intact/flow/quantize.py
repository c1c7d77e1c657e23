"""Quantizes, imports and exports: carries the options of a call through the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intact.calibrate.method import Method
from intact.data.preprocess import Preprocess
from intact.data.progress import begin
from intact.errors import ModelError, UsageError
from intact.flow.calibration import Calibration
from intact.flow.shared_stages import SHARED, Call
from intact.flow.stages import make_results
from intact.flow.torch_modules import with_onnx_model
from intact.plan import Overrides
from intact.recipe.options import (
    ExportOptions,
    ImportOptions,
    QuantizationOptions,
    QuantizeForOptions,
    QuantizeOptions,
)
from intact.results.first_run import run_once
from intact.results.folder import check_output
from intact.results.job import Job, Planner
from intact.results.recipes import (
    cluster_of,
    overrides_of,
    preprocess_of,
    recipe_of,
    target_named,
)
from intact.results.refusals import Refusals
from intact.results.request import as_asked, distinct_names, ready_targets, refuse_wrong
from intact.results.result import Result, Results, companions_of, save_several
from intact.results.sources import (
    FloatSource,
    default_target,
    deployment_of,
    load_result,
    open_source,
    original_of,
    target_of,
)

if TYPE_CHECKING:
    from intact.recipe.groups import TargetSource
    from intact.results.result import Companions


def quantize(options: QuantizeOptions) -> Result:
    """Quantize a float model for one target.

    Raises:
        IntactError: The model, the data or an option is wrong, or the result cannot be written.
    """
    begin(options.progress, "reading the model")
    _refuse_before_export(options, [] if options.target is None else [options.target])
    options = with_onnx_model(options)
    target = default_target(options.model) if options.target is None else options.target
    (result,) = results_for(options, [target]).values()
    if options.output is not None:
        begin(options.progress, "writing")
        result.save(options.output)
    return result


def quantize_for(options: QuantizeForOptions) -> Results:
    """Quantize a float model for several targets, from one pass over the samples.

    Raises:
        IntactError: See `quantize`; or every target refuses. Nothing is written then.
    """
    begin(options.progress, "reading the model")
    _refuse_before_export(options, options.targets)
    options = with_onnx_model(options)
    refusals = Refusals()
    results = Results(results_for(options, options.targets, refusals), refusals.errors)
    if not results:
        refusals.refuse_all()
    if options.output is not None:
        names = [target_named(target) for target in options.targets]
        recipe = recipe_of("quantize", options, target=names)
        begin(options.progress, "writing")
        save_several(results, Path(options.output), recipe)
    return results


def _refuse_before_export(
    options: QuantizeOptions | QuantizeForOptions, targets: Sequence[TargetSource]
) -> None:
    """Refuse a wrong folder or target before a module of torch is exported, which takes seconds."""
    if options.output is not None:
        check_output(Path(options.output))
    for each in targets:
        target_of(each)


def results_for(
    options: QuantizationOptions,
    targets: Sequence[TargetSource],
    refusals: Refusals | None = None,
) -> dict[str, Result]:
    """Make the result of each target, by the target's name; nothing is written.

    Args:
        options: The options of the call.
        targets: What is quantized for.
        refusals: Takes what one target refuses; None raises it.
    """
    refusals = refusals or Refusals(collects=False)
    described = as_asked([target_of(target) for target in targets], options)
    # Results are told apart by name, in the folder and in the report.
    names = distinct_names(described)
    # All that options say by themselves, before the model is opened.
    refuse_wrong(options)
    cluster = cluster_of(options)
    ready = ready_targets(options, described, refusals)
    if not ready:
        return {}
    call = Call(options, preprocess_of(options) or Preprocess(), tuple(ready), refusals)
    for stage in SHARED:
        call = stage.run(call)
    # The model as it was given, kept apart: graphs are compared with it after they were changed.
    original = original_of(options.model, threads=options.threads)
    with cluster as mapped:
        calibration = Calibration(
            options,
            call.preprocess,
            original,
            0 if call.drawn is None else call.drawn.count,
            options if options.fastest else None,
            mapped,
            call.data,
            call.given,
        )
        results = {
            result.plan.target.name: result
            for result in make_results(calibration, call.jobs, refusals)
        }
    _add_recipes(results, options, dict(zip(names, targets, strict=True)))
    return results


def _add_recipes(
    results: Mapping[str, Result], options: QuantizationOptions, given: Mapping[str, TargetSource]
) -> None:
    """Add the recipe of each result, which names its target as it was given, and companions."""
    companions = companions_of(options.model)
    for name, result in results.items():
        _take_along(result, companions)
        target = target_named(given[name])
        result.recipe = recipe_of("quantize", options, result, target=target)


def _take_along(result: Result, companions: Companions | None) -> None:
    """Add what lies beside the model, and say what of it is left out."""
    if companions is not None:
        result.companions = companions
        result.plan = result.plan.with_notes(companions.notes)


def read_quantized(options: ImportOptions) -> Result:
    """Read a model that others quantized, and calibrate what it left float if there is data.

    Raises:
        IntactError: The model, the data or an option is wrong, or the result cannot be written.
    """
    overrides = overrides_of(options)
    if options.output is not None:
        check_output(Path(options.output))
    begin(options.progress, "reading the model")
    if options.data is None:  # before reading, which may take long
        _refuse_without_samples(options, overrides, with_widths=True)
    source = open_source(options.model)
    if isinstance(source, FloatSource):
        raise ModelError("the model is not quantized", remedy="`intact quantize` does that")
    # Only now it is known whether widths are of use to the file.
    if options.data is None and source.with_widths is None:
        _refuse_without_samples(options, overrides, with_widths=False)
    target = source.target if options.target is None else options.target
    described = target_of(target)
    deployment = deployment_of(described, options.formats, options.io, options.layout)
    if source.with_widths is not None and overrides is not None:
        plan = source.with_widths(described, overrides)
    else:
        plan = source.plan(described)
    preprocess = preprocess_of(options) or Preprocess()
    if options.data is None:
        result = deployment.result(plan, None, preprocess)
        # Without samples nothing else would show that what was written runs.
        run_once(result, threads=options.threads)
    else:
        given_method = (options.method, options.weight_method, options.method_options)
        methods = Method.candidates(described, *given_method)
        job = Job.of(Planner(plan, described, overrides), methods, deployment)
        (result,) = make_results(Calibration(options, preprocess, data=options.data), [job])
    _take_along(result, companions_of(options.model))
    result.recipe = recipe_of("import", options, result, target=target_named(target))
    if options.output is not None:
        begin(options.progress, "writing")
        result.save(options.output)
    return result


def export(options: ExportOptions) -> Result:
    """Write the plan of a result in other formats.

    Raises:
        IntactError: The folder is wrong, or a format cannot express the plan.
    """
    output = None if options.output is None else Path(options.output)
    if output is not None:
        check_output(output)
    loaded = load_result(options.result)
    # Resolved, as a link or `..` may name the same folder.
    source = None if loaded.folder is None else loaded.folder.resolve()
    if output is not None and output.resolve() == source:
        raise UsageError(
            f"{output} is the result itself: its files would be replaced",
            remedy="name another folder",
        )
    deployment = deployment_of(loaded.plan.target, options.formats, options.io, options.layout)
    found = deployment.again(loaded)
    run_once(found)
    found.companions = loaded.companions
    found.recipe = recipe_of("export", options, found)
    if output is not None:
        found.save(output)
    return found


def _refuse_without_samples(
    options: ImportOptions, overrides: Overrides | None, *, with_widths: bool
) -> None:
    """Refuse options that would have no effect, instead of ignoring them.

    Args:
        options: What was given.
        overrides: Nodes kept float and widths, as they were given.
        with_widths: Whether widths are for quantizers that do not say their range.
    """
    if with_widths and overrides is not None:
        overrides = msgspec.structs.replace(
            overrides, bits={}, weight_bits=None, activation_bits=None
        )
        overrides = None if overrides == Overrides() else overrides
    given = {
        "--method": options.method,
        "--weight-method": options.weight_method,
        "--method-option": options.method_options,
        "--keep-float": overrides,
        "--mask": options.mask,
        "--no-batch": options.no_batch,
        "--state": options.state,
        "--max-memory": options.max_memory,
        "--skip-bad": options.skip_bad,
    }
    for flag, value in given.items():
        if value:
            raise UsageError(
                f"{flag} is for completing a quantized model, and there are no samples",
                remedy="give some with --data, or leave it out",
            )
