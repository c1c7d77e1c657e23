"""Lets modules of torch stand in the place of models, and of results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from intact._extras import require
from intact._text import first_names
from intact.calibrate.assign import Method, required_tensors
from intact.calibrate.collect import collect
from intact.data.batching import Batch, sample_count
from intact.data.images.steps import ImageSteps
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.errors import DataError, ModelError, UsageError
from intact.formats.base.format import Io, QuantizedSource, WrittenFiles
from intact.formats.registry import expressible
from intact.graph.normalization import normalize
from intact.plan import Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.plan.preparation import graphs_for
from intact.plan.topology import kept_float_entry
from intact.recipe.kinds import is_instance
from intact.results.first_run import run_once
from intact.results.folder import check_output
from intact.results.recipes import preprocess_of
from intact.results.result import Result
from intact.results.sources import deployment_of, load_result, open_source, target_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from intact.improve.learn.module import Origin, QuantizedModule
    from intact.improve.learn.prepare import PreparedModule
    from intact.recipe.declare import Options
    from intact.recipe.groups import ModelSource, TargetSource

_WRAPPED = (
    ("_orig_mod", "torch._dynamo.eval_frame.OptimizedModule"),
    ("module", "torch.nn.DataParallel"),
    ("module", "torch.nn.parallel.DistributedDataParallel"),
)
_WRAPPERS = ("module", "_orig_mod")
"""Where DataParallel and DistributedDataParallel, and compiled modules, keep what they wrap."""


def is_module(model: object) -> bool:
    """Tell whether a model is a ``torch.nn.Module``; torch is not imported for that."""
    return is_instance(model, "torch.nn.Module")


def require_torch() -> None:
    """Refuse what needs torch where there is none.

    Raises:
        MissingExtraError: It is not installed.
    """
    require("training", ["torch"], "train")


O = TypeVar("O", bound="Options")  # noqa: E741


def with_onnx_model(options: O) -> O:
    """Return options with the ONNX model of a module in the place of it; others as they are.

    The example that the export needs is given, or else the first batch of the data, which stays in
    the data.

    Raises:
        ModelError: torch cannot export the module.
        DataError: There is no example.
    """
    given: Any = options
    if not is_module(given.model):
        return options
    given = given.but(model=_unwrapped(given.model))
    # The example is prepared as the samples will be: sizes are exported with it.
    image = (preprocess_of(given) or Preprocess()).image
    model, data = export_to_onnx(
        given.model, given.data, given.example, transform=given.transform, image=image
    )
    return options.but(model=model, data=data, example=None)


def _unwrapped(module: Any) -> Any:
    """Return a module out of what compiles or distributes it."""
    while (kept := next((n for n, c in _WRAPPED if is_instance(module, c)), None)) is not None:
        module = getattr(module, kept)
    return module


def export_to_onnx(
    module: Any,
    data: object,
    example: object = None,
    *,
    transform: Callable[[Any], Any] | None = None,
    image: ImageSteps | None = None,
) -> tuple[ir.Model, object]:
    """Export a module; return its ONNX model, and the data with its first batch still in it.

    Args:
        module: A ``torch.nn.Module``.
        data: Samples; None where there are none.
        example: A batch of its inputs; None takes the first of the data.
        transform: Applied to samples of the data first.
        image: The steps of images.

    Raises:
        ModelError: torch cannot export it.
        DataError: There is no example.
    """
    require_torch()
    if is_instance(module, "torch.jit.ScriptModule"):
        raise ModelError(
            "a module of torch.jit has no Python code, which the export follows",
            remedy="give the module that it was made of, or an ONNX model",
        )
    from intact.improve.learn.example import Preparation, as_example, example_of
    from intact.improve.learn.export import argument_names, export_module, optional_names

    if example is not None:
        inputs = as_example(argument_names(module), example, optional_names(module))
    elif data is None:
        raise DataError(
            "a torch.nn.Module is exported with a batch of its inputs, and there is none",
            remedy="give example=, a tensor, a tuple or a dict, or data",
        )
    else:
        inputs, data = example_of(module, data, Preparation(transform, image or ImageSteps()))
    return export_module(module, inputs), data


def to_torch(result: Result | str | Path, *, quantizers: str, batch_norm: str) -> QuantizedModule:
    """Make the module of a result; see `intact.to_torch`."""
    require_torch()
    from intact.improve.learn.module import QuantizedModule

    loaded = load_result(result)
    module = QuantizedModule(loaded.plan, learning=quantizers, batch_norm=batch_norm)
    module.origin = _origin_of(loaded)
    return module


def from_torch(
    module: Any,
    result: Result | str | Path | None,
    *,
    formats: Sequence[str] | None,
    output: str | Path | None,
) -> Result:
    """Make a result of a module; see `intact.from_torch`."""
    if output is not None:
        check_output(Path(output))
    inner = unwrap(module)
    loaded = None if result is None else load_result(result)
    if loaded is not None and loaded.plan.graph.hash != inner.plan.graph.hash:
        raise UsageError(
            "the module is of another result", remedy="give the one that intact.to_torch had"
        )
    made = make_result(inner, loaded, formats)
    if output is not None:
        made.save(output)
    return made


def make_result(
    module: QuantizedModule,
    result: Result | None,
    formats: Sequence[str] | None = None,
    io: str = Io.INT8.value,
) -> Result:
    """Write the plan of a trained module as a result, and run what was written.

    Args:
        module: The module.
        result: The result whose formats and preprocessing are taken over; None for the one that the
            module was made of.
        formats: Formats to write; None for those of the result.
        io: See `deployment_of`.
    """
    from intact.improve.learn.write_back import trained_plan

    # The scales of an example are no calibration.
    refuse_uncalibrated(module)
    plan = trained_plan(module)
    origin = module.origin if result is None else _origin_of(result)
    deployment = deployment_of(plan.target, formats or origin.formats, io)
    plan = replace(plan, provenance=plan.provenance.trained_by(str(module.learning)))
    made = deployment.result(plan, None, origin.preprocess)
    run_once(made)
    return made


def _origin_of(result: Result) -> Origin:
    from intact.improve.learn.module import Origin

    return Origin(tuple(result.exports), result.preprocess)


def prepare(
    model: ModelSource | Any,
    target: TargetSource,
    example: Any,
    overrides: Overrides,
    *,
    quantizers: str,
    batch_norm: str,
    formats: Sequence[str] | None,
    method: str | None,
    weight_method: str | None,
) -> PreparedModule:
    """Prepare a module; see `intact.prepare`."""
    require_torch()
    from intact.improve.learn.example import as_example
    from intact.improve.learn.module import Origin
    from intact.improve.learn.prepare import PreparedModule

    if example is None:
        raise UsageError(
            "a module is prepared with a batch of its inputs",
            remedy="give example=, a tensor, a tuple or a dict",
        )
    described = target_of(target)
    methods = Method.candidates(described, method, weight_method, None)
    deployment = deployment_of(described, formats, Io.INT8.value)
    source = export_to_onnx(model, None, example)[0] if is_module(model) else model
    opened = open_source(source)
    if isinstance(opened, QuantizedSource):
        raise UsageError("the model is quantized already", remedy="`intact import` reads it")
    # As `quantize` prepares it, so that both plan the same.
    (graph,) = graphs_for(normalize(opened.model), [described])
    plan = build_plan(graph, described, None if overrides == Overrides() else overrides)
    names = [str(value.name) for value in graph.inputs]
    batch = {name: each.numpy() for name, each in as_example(names, example).items()}
    # A module of other formats keeps one scale, as its files must.
    if expressible(deployment.formats).several_scales:
        plan = _without_unlike_ties(plan, overrides, batch)
    module = PreparedModule(
        plan, batch, learning=quantizers, batch_norm=batch_norm, methods=methods
    )
    written = deployment.result(module.plan, None, Preprocess())  # what cannot be is told now
    for limit in _limits(written):
        warnings.warn(limit, stacklevel=3)
    module.origin = Origin(deployment.formats)
    return module


def _without_unlike_ties(
    plan: QuantizedGraph, overrides: Overrides, batch: Batch
) -> QuantizedGraph:
    """Break the ties that the outputs gain by breaking, as `quantize` does, on the example."""
    from intact.calibrate.choice import choose
    from intact.calibrate.outputs import FloatRuns
    from intact.calibrate.unlike import broken_ties, fully_untied

    def apart(ends: Collection[TensorEnd]) -> QuantizedGraph:
        more = msgspec.structs.replace(overrides, apart=overrides.apart | frozenset(ends))
        return build_plan(plan.graph, plan.target, more)

    untied = fully_untied(plan, apart)
    if untied is None:
        return plan
    samples = open_samples([batch], plan.graph)
    needed = dict.fromkeys((*required_tensors(plan), *required_tensors(untied)))
    statistics = collect(plan.graph, samples, tuple(needed))
    runs = FloatRuns(plan.graph, list(samples.batches(sample_count(batch))))
    choice = choose(plan, statistics, [Method.of(plan.target, "minmax", "minmax")], runs)
    broken = broken_ties(untied, statistics, choice, apart)
    return apart(broken) if broken else plan


def _limits(result: Result) -> Iterator[str]:
    """Tell what the target cannot hold: what is not written, what computes in float."""
    for written in result.exports.values():
        if isinstance(written, WrittenFiles):
            yield from written.missing
    reasons: dict[str, list[str]] = {}
    for node, each in result.plan.decisions.items():
        if not each.quantized and kept_float_entry(each) is None:
            reasons.setdefault(each.reason, []).append(repr(node))
    for reason, nodes in reasons.items():
        yield f"{first_names(nodes)} will compute in float: {reason}"


def require_prepared(module: Any) -> PreparedModule:
    """Return a prepared module, unwrapped.

    Raises:
        UsageError: It is none.
    """
    from intact.improve.learn.prepare import PreparedModule

    inner = unwrap(module)
    if not isinstance(inner, PreparedModule):
        raise UsageError(
            f"a {type(inner).__name__} is not prepared", remedy="make one with intact.prepare"
        )
    return inner


def refuse_uncalibrated(module: QuantizedModule) -> None:
    """Refuse a prepared module whose scales are those of its example.

    Raises:
        UsageError: It is one.
    """
    from intact.improve.learn.prepare import PreparedModule

    if isinstance(module, PreparedModule) and not module.is_calibrated:
        raise UsageError(
            "the prepared module has no scales yet",
            remedy="intact.enable_calibration, some batches, intact.enable_quantization",
        )


def unwrap(module: Any) -> QuantizedModule:
    """Return the module of a plan out of what wraps it.

    Raises:
        UsageError: There is none in it.
    """
    from intact.improve.learn.module import QuantizedModule

    inner = module
    # Wrappers may be nested: compiled and distributed.
    while not isinstance(inner, QuantizedModule):
        kept = next((getattr(inner, each) for each in _WRAPPERS if hasattr(inner, each)), None)
        if kept is None:
            raise UsageError(
                f"a {type(module).__name__} is no module of a plan",
                remedy="give one of intact.to_torch or intact.prepare",
            )
        inner = kept
    return inner
