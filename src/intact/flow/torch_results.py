"""Between results and modules of torch."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from intact._text import first_names
from intact.calibrate.assign import Method, required_tensors
from intact.calibrate.collect import collect
from intact.data.batching import Batch, sample_count
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.errors import UsageError
from intact.flow.torch_models import exported, is_module, require_torch
from intact.formats.base.format import Io, QuantizedSource, WrittenFiles
from intact.formats.registry import expressible
from intact.graph.normalization import normalize
from intact.plan import Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.plan.preparation import graphs_for
from intact.plan.topology import kept_float_entry
from intact.results.first_run import run_once
from intact.results.folder import check_output
from intact.results.result import Result
from intact.results.sources import deployment_of, load_result, open_source, target_of

if TYPE_CHECKING:
    from intact.improve.learn.module import Origin, QuantizedModule
    from intact.improve.learn.prepare import PreparedModule
    from intact.recipe.groups import ModelSource, TargetSource

_WRAPPERS = ("module", "_orig_mod")
"""Where DataParallel and DistributedDataParallel, and compiled modules, keep what they wrap."""


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
    inner = unwrapped(module)
    loaded = None if result is None else load_result(result)
    if loaded is not None and loaded.plan.graph.hash != inner.plan.graph.hash:
        raise UsageError(
            "the module is of another result", remedy="give the one that intact.to_torch had"
        )
    made = written(inner, loaded, formats)
    if output is not None:
        made.save(output)
    return made


def written(
    module: QuantizedModule,
    result: Result | None,
    formats: Sequence[str] | None = None,
    io: str = Io.INT8.value,
) -> Result:
    """Write the plan of a trained module as a result, and run what was written.

    Args:
        module: The module.
        result: From which formats and preprocessing are taken over; None for what it was made of.
        formats: Formats to write; None for these.
        io: As of `deployment_of`.
    """
    from intact.improve.learn.write_back import trained_plan

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
    source = exported(model, None, example)[0] if is_module(model) else model
    opened = open_source(source)
    if isinstance(opened, QuantizedSource):
        raise UsageError("the model is quantized already", remedy="`intact import` reads it")
    (graph,) = graphs_for(normalize(opened.model), [described])
    plan = build_plan(graph, described, None if overrides == Overrides() else overrides)
    names = [str(value.name) for value in graph.inputs]
    batch = {name: each.numpy() for name, each in as_example(names, example).items()}
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
    from intact.calibrate.choice import FloatRuns, choose
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


def prepared(module: Any) -> PreparedModule:
    """Return a prepared module, unwrapped.

    Raises:
        UsageError: It is none.
    """
    from intact.improve.learn.prepare import PreparedModule

    inner = unwrapped(module)
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


def unwrapped(module: Any) -> QuantizedModule:
    """Return the module of a plan out of what wraps it.

    Raises:
        UsageError: There is none in it.
    """
    from intact.improve.learn.module import QuantizedModule

    inner = module
    while not isinstance(inner, QuantizedModule):
        kept = next((getattr(inner, each) for each in _WRAPPERS if hasattr(inner, each)), None)
        if kept is None:
            raise UsageError(
                f"a {type(module).__name__} is no module of a plan",
                remedy="give one of intact.to_torch or intact.prepare",
            )
        inner = kept
    return inner
