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
from intact.formats.base.format import Io
from intact.formats.registry import FORMATS, chosen_formats
from intact.graph import load_model, normalize
from intact.plan import QuantizedGraph, build_plan
from intact.targets import Target, load_target

DEFAULT_TARGET = "onnxruntime"

ModelSource: TypeAlias = str | Path | onnx.ModelProto | ir.Model

_QUANTIZED = ("uantizeLinear", "QLinear", "QGemm", "Integer", "DynamicQuantize")
"""Parts of the names of all operators that `intact.formats.onnx_qdq.read` reads as quantized."""
_FAKE_QUANTIZED = "FakeQuantize"


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
    """Open a model of any format that can be read, quantized or not.

    A reader is imported only for a model that looks like one of its own.

    Raises:
        ModelError: It cannot be read.
    """
    if isinstance(model, str | Path):
        refuse_several(Path(model))
        if names_tflite(model):
            from intact.formats.tflite.read import read_tflite

            return QuantizedSource("tflite", partial(read_tflite, model))
        if names_tmfile(model) or Path(model).suffix.lower() == ".tmfile":
            return _tmfile(model)
    loaded = load_model(model)
    op_types = {node.op_type for node in loaded.graph.all_nodes()}
    if any(part in op_type for op_type in op_types for part in _QUANTIZED):
        from intact.formats.onnx_qdq.read import is_quantized, read_qdq

        if is_quantized(loaded):
            return QuantizedSource(DEFAULT_TARGET, partial(read_qdq, loaded))
    if _FAKE_QUANTIZED in op_types:
        from intact.formats.openvino.read import is_fake_quantized, read_fake_quantize

        if is_fake_quantized(loaded):
            return QuantizedSource("openvino", partial(read_fake_quantize, loaded))
    return FloatSource(DEFAULT_TARGET, loaded)


def _tmfile(path: str | Path) -> FloatSource | QuantizedSource:
    """Open a Tengine model; the scales of a quantized one are given scales."""
    from intact.formats.tengine.tmfile.decode import open_tmfile
    from intact.formats.tengine.tmfile.read import read_int8, read_tmfile

    file = open_tmfile(path)
    if not file.is_quantized:
        return FloatSource("tengine", read_tmfile(path))
    signed = all(scale.signed for scale in read_int8(path).scales.scales.values())
    return QuantizedSource("tengine" if signed else "tengine-u8", partial(plan_of_tmfile, path))


def plan_of_tmfile(source: str | Path | bytes, target: Target) -> QuantizedGraph:
    """Read the plan of a quantized ``.tmfile``, with its scales and its integers.

    Args:
        source: A path, or the content.
        target: The hardware that computes it.

    Raises:
        ModelError: The file is damaged, not quantized, or holds what cannot be read.
        CalibrationError: It gives no scale for a tensor that the target quantizes.
    """
    from intact.calibrate.assign import Method, assign
    from intact.formats.tengine.tmfile.read import read_int8

    read = read_int8(source)
    graph = normalize(read.model)
    return assign(build_plan(graph, target), None, Method.of(target), read.scales)


def default_target(model: ModelSource) -> str:
    """Name the target of a float model for which none is given."""
    return "tengine" if names_tmfile(model) else DEFAULT_TARGET


def names_tflite(model: ModelSource) -> bool:
    """Tell whether a source is the path of a TFLite model, by its content."""
    return isinstance(model, str | Path) and _head(model)[4:] == b"TFL3"


def names_tmfile(model: ModelSource) -> bool:
    """Tell whether a source is the path of a Tengine model, by its content.

    The format has no magic number; an ONNX file begins with the byte 8, so its reader need not be
    asked.
    """
    if not isinstance(model, str | Path) or _head(model)[:1] in (b"", b"\x08"):
        return False
    from intact.formats.tengine.tmfile.decode import is_tmfile

    return is_tmfile(model)


def _head(path: str | Path) -> bytes:
    """Read the first 8 bytes of a file; none where there is no such file."""
    try:
        with Path(path).open("rb") as file:
            return file.read(8)
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return b""


def names_result(model: ModelSource) -> TypeGuard[str | Path]:
    """Tell whether a source is the folder of a result."""
    return isinstance(model, str | Path) and (Path(model) / PLAN).is_file()


def target_of(target: str | Path | Target) -> Target:
    """Return a target that may be named."""
    return target if isinstance(target, Target) else load_target(target)
