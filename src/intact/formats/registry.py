"""The formats that a plan is deployed in, by the names that users have for them."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from intact.errors import PlanError, UsageError, nearest
from intact.formats.base.format import (
    Exported,
    Expressible,
    Format,
    Io,
    require_files,
    require_packages,
)
from intact.plan import QuantizedGraph
from intact.targets import Target

FORMATS_KEY, IO_KEY = "formats", "io"
"""Keys of a plan's provenance."""


class FormatName(enum.StrEnum):
    """How users call the formats."""

    ONNX_QDQ = "onnx_qdq"
    TFLITE = "tflite"
    C = "c"
    ENCODINGS = "encodings"
    NCNN = "ncnn"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    TENGINE = "tengine"
    ONNX_INTEGER = "onnx_integer"
    TVM = "tvm"


_HOMES: Mapping[FormatName, str] = {
    FormatName.ONNX_QDQ: "intact.formats.onnx_qdq.format:ONNX_QDQ",
    FormatName.TFLITE: "intact.formats.tflite.format:TFLITE",
    FormatName.C: "intact.formats.c.format:C",
    FormatName.ENCODINGS: "intact.formats.encodings.format:ENCODINGS",
    FormatName.NCNN: "intact.formats.ncnn.format:NCNN",
    FormatName.OPENVINO: "intact.formats.openvino.format:OPENVINO",
    FormatName.TENSORRT: "intact.formats.tensorrt.format:tensorrt",
    FormatName.TENGINE: "intact.formats.tengine.format:TENGINE",
    FormatName.ONNX_INTEGER: "intact.formats.onnx_integer.format:ONNX_INTEGER",
    FormatName.TVM: "intact.formats.tvm.format:TVM",
}
"""Where each format is described. A format is a row here and a folder in ``formats/``."""


class _Formats(Mapping[FormatName, Format]):
    """The formats by name; a format is imported when it is first asked for."""

    def __getitem__(self, name: FormatName) -> Format:
        return _load(name)

    def __iter__(self) -> Iterator[FormatName]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)

    def __contains__(self, name: object) -> bool:
        return name in _HOMES


FORMATS = _Formats()


@cache
def _load(name: FormatName) -> Format:
    if name is FormatName.TENSORRT:  # formats do not import each other: it gets its writer here
        from intact.formats.onnx_qdq.format import write_float_weights
        from intact.formats.tensorrt.format import tensorrt

        return tensorrt(write_float_weights)
    module, attribute = _HOMES[name].split(":")
    found: Format = getattr(importlib.import_module(module), attribute)
    return found


def chosen_formats(target: Target, asked: Iterable[str] | None) -> tuple[FormatName, ...]:
    """Return the formats to write: those asked for, or the best that the target names.

    Raises:
        UsageError: There is no such format, or none of the target's exists.
        MissingExtraError: A package that it takes is not installed.
    """
    names = tuple(dict.fromkeys(asked or ()))
    for name in names:
        if name not in FORMATS:
            raise UsageError(
                f"--format {name!r}", remedy=nearest(name, [known.value for known in FORMATS])
            )
    if not names:
        names = tuple(name for name in target.formats if name in FORMATS)[:1]
    if not names:
        raise UsageError(
            f"target {target.name} names no format that can be written",
            remedy=f"choose one with --format: {', '.join(FORMATS)}",
        )
    found = tuple(FormatName(name) for name in names)
    for each in found:
        require_packages(f"format {each}", FORMATS[each].packages, FORMATS[each].extra)
    return found


def export(
    plan: QuantizedGraph, formats: Iterable[FormatName], io: Io
) -> dict[FormatName, Exported]:
    """Write a calibrated plan in some formats.

    Raises:
        ExportError: A format cannot express the plan; all that it cannot is listed.
    """
    return {name: FORMATS[name].write(plan, io) for name in formats}


def expressible(formats: Iterable[FormatName]) -> Expressible:
    """Return what plans may ask of all of some formats."""
    found = Expressible()
    for name in formats:
        found &= FORMATS[name].expressible
    return found


def exported_in(folder: Path, plan: QuantizedGraph) -> dict[FormatName, Exported]:
    """Read what lies in a result's folder.

    Raises:
        PlanError: A file is missing or is not this plan's.
    """
    names = plan.provenance.get(FORMATS_KEY, FormatName.ONNX_QDQ.value).split(",")
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise PlanError(f"the plan was written as {unknown[0]!r}", remedy="take a newer intact")
    exports = {}
    for name in map(FormatName, names):
        require_files(folder, FORMATS[name].required)
        exports[name] = FORMATS[name].read(folder, plan)
    return exports
