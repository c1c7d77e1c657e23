"""What the public functions are given: models, results and targets, named in several ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeGuard

import onnx
import onnx_ir as ir

from intact.errors import UsageError
from intact.flow.calibration import Deployment
from intact.flow.result import PLAN, Result, refuse_several
from intact.flow.tengine import plan_of_file
from intact.formats.base.format import Io
from intact.formats.onnx_qdq.read import is_quantized, read_qdq
from intact.formats.openvino.read import is_fake_quantized, read_fake_quantize
from intact.formats.registry import FORMATS, chosen_formats
from intact.formats.tengine.tmfile.decode import is_tmfile, open_tmfile
from intact.formats.tengine.tmfile.read import read_int8, read_tmfile
from intact.formats.tflite.read import is_tflite, read_tflite
from intact.graph import load_model
from intact.plan import QuantizedGraph
from intact.targets import Target, load_target

DEFAULT_TARGET = "onnxruntime"

ModelSource: TypeAlias = str | Path | onnx.ModelProto | ir.Model


def load_result(result: Result | str | Path) -> Result:
    """Read a result's folder; a ``Result`` is returned as it is.

    Raises:
        PlanError: The folder is not one that ``quantize`` wrote.
    """
    return result if isinstance(result, Result) else Result.load(result)


def deployment_of(target: Target, formats: Sequence[str] | None, io: str) -> Deployment:
    """Return what is written, as it was asked for."""
    if io not in set(Io):
        raise UsageError(f"--io {io!r}", remedy="int8 or float")
    chosen = chosen_formats(target, formats)
    if Io(io) is Io.FLOAT and not any(FORMATS[name].has_io for name in chosen):
        able = ", ".join(name for name, row in FORMATS.items() if row.has_io)
        raise UsageError(
            f"--io float does nothing for {', '.join(chosen)}", remedy=f"it is for {able}"
        )
    return Deployment(chosen, Io(io))


@dataclass(frozen=True)
class FloatSource:
    """A float model as it was given.

    Attributes:
        target: The hardware that it is for, if nothing else is said.
        model: As loaded.
    """

    target: str
    model: ir.Model


@dataclass(frozen=True)
class QuantizedSource:
    """A model that others quantized.

    Attributes:
        target: The hardware that it is for, if nothing else is said.
        plan: Reads it for a target.
    """

    target: str
    plan: Callable[[Target], QuantizedGraph]


def open_source(model: ModelSource) -> FloatSource | QuantizedSource:
    """Open a model of any format that can be read, and see whether it is quantized.

    Raises:
        ModelError: It cannot be read.
    """
    if isinstance(model, str | Path):
        refuse_several(Path(model))
        if is_tflite(model):
            return QuantizedSource("tflite", partial(read_tflite, model))
        if is_tmfile(model) or Path(model).suffix.lower() == ".tmfile":
            return _tmfile(model)
    loaded = load_model(model)
    if is_quantized(loaded):
        return QuantizedSource(DEFAULT_TARGET, partial(read_qdq, loaded))
    if is_fake_quantized(loaded):
        return QuantizedSource("openvino", partial(read_fake_quantize, loaded))
    return FloatSource(DEFAULT_TARGET, loaded)


def _tmfile(path: str | Path) -> FloatSource | QuantizedSource:
    """Open a Tengine model; the scales of a quantized one are given scales."""
    file = open_tmfile(path)
    if not file.is_quantized:
        return FloatSource("tengine", read_tmfile(path))
    signed = all(scale.signed for scale in read_int8(path).scales.scales.values())
    return QuantizedSource("tengine" if signed else "tengine-u8", partial(plan_of_file, path))


def default_target(model: ModelSource) -> str:
    """Return the target of a float model, if nothing else is said."""
    is_tengine = isinstance(model, str | Path) and is_tmfile(model)
    return "tengine" if is_tengine else DEFAULT_TARGET


def names_tflite(model: ModelSource) -> bool:
    """Tell whether a source is a ``.tflite`` file."""
    return isinstance(model, str | Path) and is_tflite(model)


def names_result(model: ModelSource) -> TypeGuard[str | Path]:
    """Tell whether a source is the folder of a result."""
    return isinstance(model, str | Path) and (Path(model) / PLAN).is_file()


def target_of(target: str | Path | Target) -> Target:
    """Return a target that may be named."""
    return target if isinstance(target, Target) else load_target(target)
