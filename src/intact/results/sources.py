"""Opens what the public functions are given: models, results and targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from intact.calibrate.original import Original
from intact.data.progress import Progress, begin
from intact.errors import UsageError
from intact.formats.base.format import FloatSource, Io, QuantizedSource
from intact.formats.registry import (
    FORMATS,
    ONNX_TARGET,
    chosen_formats,
    described,
    model_reader,
    open_model,
)
from intact.graph import Graph, normalize
from intact.plan.provenance import CHANNELS_LAST
from intact.recipe.kinds import is_instance
from intact.results.folder import PLAN, refuse_several
from intact.results.job import Deployment
from intact.results.result import Result
from intact.results.values import Values, with_values
from intact.targets import Target, load_target

if TYPE_CHECKING:
    import onnx_ir as ir

    from intact.recipe.groups import ModelSource, TargetSource

__all__ = [
    "FloatSource",
    "QuantizedSource",
    "begin_reading",
    "default_target",
    "deployment_of",
    "float_graph",
    "float_model",
    "is_result",
    "load_result",
    "names_deployed",
    "open_source",
    "original_of",
    "target_of",
]


def load_result(result: Result | str | Path) -> Result:
    """Read a result's folder; a ``Result`` is returned as it is.

    Raises:
        PlanError: The folder is not one that ``quantize`` wrote.
    """
    return result if isinstance(result, Result) else Result.load(result)


def begin_reading(result: object, progress: Progress | None) -> None:
    """Say that a result is read, unless it is in memory."""
    if not isinstance(result, Result):
        begin(progress, "reading the result")


def float_graph(model: Result | ModelSource) -> Graph:
    """Read a float model: from a file, or from a result or its folder.

    Raises:
        UsageError: The model is quantized.
        IntactError: It cannot be read.
    """
    if isinstance(model, Result):
        return model.plan.graph
    if is_result(model):
        return load_result(model).plan.graph
    return normalize(_float_source(model).model, in_place=True)


def deployment_of(
    target: Target, formats: Sequence[str] | None, io: str, layout: str = CHANNELS_LAST
) -> Deployment:
    """Check the formats and ends that are asked for."""
    if io not in set(Io):
        raise UsageError(f"--io {io!r}", remedy="int8 or float")
    chosen = chosen_formats(target, formats)
    is_listed = target.integer_format in target.formats  # a target over another may list fewer
    of_integers = target.integer_format if is_listed and not formats else ""
    possible = (*chosen, of_integers) if of_integers else chosen
    if Io(io) is Io.FLOAT and not any(FORMATS[name].writer.has_io for name in possible):
        able = ", ".join(name for name, row in described() if row.writer.has_io)
        raise UsageError(
            f"--io float does nothing for {', '.join(chosen)}", remedy=f"it is for {able}"
        )
    if layout != CHANNELS_LAST and not any(FORMATS[name].writer.has_layout for name in chosen):
        able = ", ".join(name for name, row in described() if row.writer.has_layout)
        raise UsageError(
            f"--layout {layout} does nothing for {', '.join(chosen)}, which has no other",
            remedy=f"it is for {able}",
        )
    # These ask what the formats can express and not which they are: a format of another package is
    # judged alike.
    _refuse_logarithmic(target, chosen)
    _refuse_dynamic(target, chosen)
    _refuse_blocks(target, chosen)
    _refuse_caches(target, chosen)
    _refuse_float16(target, chosen)
    return Deployment(chosen, Io(io), layout, of_integers)


def _refuse_logarithmic(target: Target, chosen: Sequence[str]) -> None:
    """Refuse formats of equally spaced levels for a target of logarithmic ones, before samples."""
    unable = [name for name in chosen if not FORMATS[name].writer.expressible.logarithmic]
    if not target.is_logarithmic or not unable:
        return
    able = " or ".join(name for name, row in described() if row.writer.expressible.logarithmic)
    raise UsageError(
        f"target {target.name} has logarithmic levels (spacing = 'exponential'), which format "
        f"{unable[0]} cannot hold",
        remedy=f"use --format {able}, or a target with linear levels",
    )


def _refuse_dynamic(target: Target, chosen: Sequence[str]) -> None:
    """Refuse formats without quantizers that compute their scales, before anything is read."""
    unable = [name for name in chosen if not FORMATS[name].writer.expressible.dynamic]
    if not target.activation.dynamic or not unable:
        return
    able = " or ".join(name for name, row in described() if row.writer.expressible.dynamic)
    raise UsageError(
        f"--activations dynamic, which format {unable[0]} cannot hold",
        remedy=f"use --format {able}",
    )


def _refuse_blocks(target: Target, chosen: Sequence[str]) -> None:
    """Refuse formats without weights in blocks, before anything is read."""
    unable = [name for name in chosen if not FORMATS[name].writer.expressible.blocks]
    schemes = [target.weight_scheme(rule) for rule in target.rules]
    if not unable or all(scheme.block is None for scheme in schemes):
        return
    able = " or ".join(name for name, row in described() if row.writer.expressible.blocks)
    raise UsageError(
        f"weights in blocks, which format {unable[0]} cannot hold",
        remedy=f"use --format {able}",
    )


def _refuse_float16(target: Target, chosen: Sequence[str]) -> None:
    """Refuse formats whose float operators are float32, before anything is read."""
    unable = [name for name in chosen if not FORMATS[name].writer.expressible.float16]
    if target.float16 is None or not target.float16.asked or not unable:
        return
    able = " or ".join(name for name, row in described() if row.writer.expressible.float16)
    raise UsageError(
        f"--float float16, which format {unable[0]} cannot hold", remedy=f"use --format {able}"
    )


def _refuse_caches(target: Target, chosen: Sequence[str]) -> None:
    """Refuse formats without caches of codes, before anything is read."""
    unable = [name for name in chosen if not FORMATS[name].writer.expressible.caches]
    if target.cache is None or target.cache.scheme is None or not unable:
        return
    able = " or ".join(name for name, row in described() if row.writer.expressible.caches)
    raise UsageError(
        f"--cache-bits {target.cache.scheme.bits}, which format {unable[0]} cannot hold",
        remedy=f"use --format {able}",
    )


def open_source(model: ModelSource) -> FloatSource | QuantizedSource:
    """Open a model of any format that can be read, quantized or not.

    Raises:
        ModelError: It cannot be read.
    """
    if is_instance(model, "torch.nn.Module"):
        raise UsageError(
            f"a {type(model).__name__} is a torch.nn.Module, and this takes a model as ONNX",
            remedy="export it: torch.onnx.export(module.eval(), (example_batch,), 'model.onnx', "
            "dynamo=True)",
        )
    if isinstance(model, str | Path):
        # A folder of several results has no model of its own, and a reader would only say that it
        # is no file.
        refuse_several(Path(model))
    return open_model(model)


def original_of(model: ModelSource, *, threads: int = 0) -> Original:
    """Return a float model as it was given, to be compared with what is made of it.

    Of another format than ONNX it is what its reader gives.
    """
    if model_reader(model) is None:
        return Original(model, threads)
    return Original(_float_source(model).model, threads)


def _float_source(model: ModelSource) -> FloatSource:
    opened = open_source(model)
    if isinstance(opened, QuantizedSource):
        raise UsageError("the model is quantized already", remedy="give the float model")
    return opened


def float_model(model: ModelSource, values: Values | None = None) -> ir.Model:
    """Open a float model, with inputs fixed to values.

    Raises:
        UsageError: It is quantized, or has no such input.
    """
    source = open_source(model)
    if isinstance(source, QuantizedSource):
        raise UsageError("the model is quantized already", remedy="search on the float model")
    return with_values(source.model, values)


def default_target(model: ModelSource) -> str:
    """Name the target of a float model for which none is given."""
    found = model_reader(model)
    return ONNX_TARGET if found is None else found[1].target


def names_deployed(model: object) -> TypeGuard[str | Path]:
    """Check whether a source is a model file of others that can be verified as it is."""
    found = model_reader(model)
    return found is not None and found[1].opens_deployed


def is_result(model: object) -> TypeGuard[Result | str | Path]:
    """Check whether a source is a result, or its folder."""
    if isinstance(model, Result):
        return True
    return isinstance(model, str | Path) and (Path(model) / PLAN).is_file()


def target_of(target: TargetSource) -> Target:
    """Return a target that may be named."""
    return target if isinstance(target, Target) else load_target(target)
