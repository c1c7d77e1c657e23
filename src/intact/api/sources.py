"""What the public functions are given: models, results and targets, named in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, TypeGuard

import onnx
import onnx_ir as ir

from intact.errors import UsageError
from intact.exporting import chosen_formats
from intact.formats.format import Io
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.tflite.read import is_tflite, read_tflite
from intact.pipeline import Deployment
from intact.plan import QuantizedGraph
from intact.result import PLAN, Result
from intact.targets import Target, load_target

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
    return Deployment(chosen_formats(target, formats), Io(io))


def read_plan(model: ModelSource, target: Target) -> QuantizedGraph:
    """Read a quantised model of any format that can be read."""
    if isinstance(model, str | Path) and is_tflite(model):
        return read_tflite(model, target)
    return read_qdq(model, target)


def names_tflite(model: ModelSource) -> bool:
    """Tell whether a source is a ``.tflite`` file."""
    return isinstance(model, str | Path) and is_tflite(model)


def names_result(model: ModelSource) -> TypeGuard[str | Path]:
    """Tell whether a source is the folder of a result."""
    return isinstance(model, str | Path) and (Path(model) / PLAN).is_file()


def target_name_for(model: ModelSource) -> str:
    """Return the target that a quantised model is for, if nothing else is said."""
    return "tflite" if names_tflite(model) else "onnxruntime"


def target_of(target: str | Path | Target) -> Target:
    """Return a target that may be named."""
    return target if isinstance(target, Target) else load_target(target)
