"""Declares the public functions that need no data."""

from __future__ import annotations

from intact.data.progress import begin
from intact.errors import ExportError, IntactError, UsageError
from intact.flow.shapes import with_shapes
from intact.formats.registry import FORMATS
from intact.graph.passes.expand import expand
from intact.numerics.conversion import Quantization
from intact.plan import Note, NoteKind, Overrides, QuantizedGraph, build_plan
from intact.plan.inspection import Inspection, inspect_plan
from intact.plan.preparation import graphs_for
from intact.program.forms import shape_of
from intact.recipe.declare import public
from intact.recipe.reports import ConvertRangesOptions, InspectOptions
from intact.results.recipes import overrides_of, target_as_asked
from intact.results.refusals import refuse_structure
from intact.results.sources import FloatSource, is_result, load_result, open_source, target_of
from intact.targets import full_range


@public(InspectOptions)
def inspect(options: InspectOptions) -> Inspection:
    """Report which nodes will be quantized and why (not), without data.

    Of a model that is quantized already, the scales and widths that it has are reported; of a
    result's folder, its plan. Without a target a ``.tflite`` is taken for ``tflite``, a ``.tmfile``
    for ``tengine``, a model with FakeQuantize for ``openvino``, and any other for ``onnxruntime``.

    Raises:
        IntactError: The model, the target or an override is wrong.
    """
    begin(options.progress, "reading the model")
    overrides = overrides_of(options)
    if is_result(options.model):
        plan = load_result(options.model).plan
    else:
        source = open_source(options.model)
        described = target_of(source.target if options.target is None else options.target)
        described = target_as_asked(described, options)
        if isinstance(source, FloatSource):
            begin(options.progress, "simplifying the model")
            # The model was read for this call alone.
            given = with_shapes(source.model, options.input_shape, in_place=True)
            begin(options.progress, "planning")
            (graph,) = graphs_for(expand(given, options.expand), [described])
            return inspect_plan(_with_refusal(build_plan(graph, described, overrides), overrides))
        plan = source.plan(described)
    if overrides is not None or options.expand or options.input_shape or options.block:
        raise UsageError(
            "the model is quantized already, its operators, shapes, widths and float nodes are "
            "given",
            remedy="leave them out here, or inspect the float model",
        )
    return inspect_plan(plan)


def _with_refusal(plan: QuantizedGraph, overrides: Overrides | None) -> QuantizedGraph:
    """Note what the target's own format would refuse; of models of fixed sizes, or but the batch.

    Where the batch is open, it is looked at as one sample: sizes that depend on it are known then,
    as they are when samples are there.
    """
    target, graph = plan.target, plan.graph
    # The first is what is written unless a user asks for another.
    names = [name for name in target.formats if name in FORMATS][:1]
    sizes = {str(value.name): shape_of(value) for value in graph.inputs}
    if any(None in each[1:] for each in sizes.values()):
        return plan
    given = {name: (1, *each[1:]) for name, each in sizes.items() if each[:1] == (None,)}
    try:
        refuse_structure(plan, names)
    except ExportError as error:
        found = error
    else:
        return plan
    if given:
        try:
            (fixed,) = graphs_for(with_shapes(graph.model, given), [target])
            refuse_structure(build_plan(fixed, target, overrides), names)
        except ExportError as error:
            found = error
        # One sample is our assumption: what fails with it says nothing of the user's samples.
        except IntactError:
            return plan
        else:
            return plan
    message = f"`intact quantize` will refuse it: {found.with_flags}"
    return plan.with_notes((Note(NoteKind.EXPORT, "", message),))


@public(ConvertRangesOptions)
def convert_ranges(options: ConvertRangesOptions) -> Quantization:
    """Turn a scale and zero point into the range of the codes, or a range into those.

    Raises:
        UsageError: Both forms are given, or neither; or numbers that are impossible.
        ConfigError: An end of the range is not finite, or the ends are crossed.
    """
    _refuse_contradictions(options)
    codes = full_range(options.bits, signed=options.signed, narrow=options.narrow)
    if options.scale is not None and options.low is None and options.high is None:
        return Quantization.of_scale(options.scale, options.zero_point, *codes)
    if options.scale is None and options.low is not None and options.high is not None:
        return Quantization.of_range(options.low, options.high, *codes, symmetric=options.symmetric)
    if options.scale is not None:
        raise UsageError(
            "a scale and an end of a range are both given",
            remedy="give --scale (and --zero-point), or --low and --high",
        )
    raise UsageError(
        "a scale, or both ends of a range, are needed",
        remedy="give --scale (and --zero-point), or --low and --high",
    )


def _refuse_contradictions(options: ConvertRangesOptions) -> None:
    """Refuse options of which one would have no effect, and a range that the codes cannot hold."""
    zero_point, low = options.zero_point, options.low
    remedy = "leave one of them out"
    if options.narrow and not options.signed:
        raise UsageError("--narrow is for signed codes, and --unsigned is given", remedy=remedy)
    if options.symmetric and zero_point:
        raise UsageError(f"--symmetric and a zero point of {zero_point}", remedy=remedy)
    if options.scale is None and zero_point:
        raise UsageError(
            f"a zero point of {zero_point} without a scale", remedy="give --scale, or leave it out"
        )
    if options.symmetric and not options.signed and low is not None and low < 0:
        raise UsageError(
            f"--symmetric with --unsigned holds nothing below 0, and the low end is {low}",
            remedy="leave one of the two out, or give --low 0",
        )
