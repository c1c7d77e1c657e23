"""Lists the formats by name: those of this package, and those of others by entry point."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from intact._extras import require
from intact.errors import ExportError, PlanError, UsageError, nearest
from intact.formats.base.expressible import Expressible
from intact.formats.base.format import (
    Exported,
    FloatSource,
    Format,
    Io,
    QuantizedSource,
    Reader,
    Runtime,
    require_files,
)
from intact.graph import load_model
from intact.graph.files.regular import open_file
from intact.graph.traversal import nodes_of
from intact.plan import QuantizedGraph
from intact.targets import Target, load_target, target_names

if TYPE_CHECKING:
    from importlib import metadata

ENTRY_POINT_GROUP = "intact.formats"
"""Packages register formats here; each entry point is a `Format`."""
ONNX_QDQ = "onnx_qdq"
ONNX_TARGET = "onnxruntime"
"""The hardware of a float ONNX model, unless the user names another."""

_HOMES: Mapping[str, str] = {
    ONNX_QDQ: "intact.formats.onnx_qdq.format:ONNX_QDQ",
    "onnx_levels": "intact.formats.onnx_levels.format:ONNX_LEVELS",
    "tflite": "intact.formats.tflite.format:TFLITE",
    "c": "intact.formats.c.format:C",
    "encodings": "intact.formats.encodings.format:ENCODINGS",
    "ncnn": "intact.formats.ncnn.format:NCNN",
    "openvino": "intact.formats.openvino.format:OPENVINO",
    "tensorrt": "intact.formats.tensorrt.format:TENSORRT",
    "tengine": "intact.formats.tengine.format:TENGINE",
    "tengine_effective": "intact.formats.tengine.format:TENGINE_EFFECTIVE",
    "onnx_integer": "intact.formats.onnx_integer.format:ONNX_INTEGER",
    "tvm": "intact.formats.tvm.format:TVM",
}
"""Where each format of this package is described; one row each."""

_ONNX_START = b"\x08"
"""The first byte of ONNX files: the tag of ``ir_version``."""
_QUANTIZING = (
    *("uant", "Affine", "ATen", "FPEmuOp", "Trunc", "QLinear", "QGemm", "Integer", "Round"),
    "NBits",
)
"""Parts of the names of operators that quantize, or that quantizers are written out with."""


class _Formats(Mapping[str, Format]):
    """The formats by name; each is imported when it is first looked up."""

    def __getitem__(self, name: str) -> Format:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        yield from _HOMES
        # A package cannot take the place of a format of ours.
        yield from (name for name in _registered() if name not in _HOMES)

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in _HOMES or name in _registered()


FORMATS: Mapping[str, Format] = _Formats()


def _registered() -> dict[str, metadata.EntryPoint]:
    from importlib import metadata  # 0.03 s, for names that are not our own

    return {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _load(name: str) -> Format:
    if name in _HOMES:
        module, attribute = _HOMES[name].split(":")
        own: Format = getattr(importlib.import_module(module), attribute)
        return own
    entry = _registered()[name]
    try:
        found = entry.load()
    except Exception as error:  # whatever a foreign package raises on import
        raise UsageError(
            f"format {name!r} is registered as {entry.value}, which fails: {error}",
            remedy="repair or uninstall that package",
        ) from error
    if not isinstance(found, Format):
        raise UsageError(
            f"format {name!r} is registered as {entry.value}, which is no Format",
            remedy="register an intact.formats.base.format.Format",
        )
    return found


def described() -> Iterator[tuple[str, Format]]:
    """Yield every format by name; those of others whose registration is wrong are left out."""
    for name in FORMATS:
        with contextlib.suppress(UsageError):
            yield name, FORMATS[name]


def format_name(asked: str) -> str:
    """Find a format by its name in any case.

    Raises:
        UsageError: There is none; with the nearest name.
    """
    by_case = {name.lower(): name for name in FORMATS}
    if asked.lower() not in by_case:
        raise UsageError(f"--format {asked!r}", remedy=nearest(asked.lower(), FORMATS))
    return by_case[asked.lower()]


def chosen_formats(target: Target, asked: Iterable[str] | None) -> tuple[str, ...]:
    """Choose the formats to write: those asked for, or else the first that the target names.

    Raises:
        UsageError: There is no such format, or none of the target's exists.
        MissingExtraError: A package that writing needs is not installed.
    """
    names = tuple(dict.fromkeys(map(format_name, asked or ())))
    if not names:
        names = tuple(name for name in target.formats if name in FORMATS)[:1]
    if not names:
        raise UsageError(
            f"target {target.name} names no format that can be written",
            remedy=f"choose one with --format: {', '.join(FORMATS)}",
        )
    for each in names:
        writer = FORMATS[each].writer
        # Before anything is calibrated: a missing package would end a long run without a result.
        require(f"format {each}", writer.packages, writer.extra)
    return names


def export(plan: QuantizedGraph, formats: Iterable[str], io: Io) -> dict[str, Exported]:
    """Write a calibrated plan in some formats.

    Raises:
        ExportError: A format cannot express the plan; everything that it cannot is listed.
    """
    written = {}
    for name in formats:
        with of_its_targets(name, plan.target):
            written[name] = FORMATS[name].writer.write(plan, io)
    return written


@contextlib.contextmanager
def of_its_targets(name: str, target: Target) -> Iterator[None]:
    """Say of what a format refuses which targets it is for, where the plan's is not one of them."""
    try:
        yield
    except ExportError as error:
        is_own = name in target.formats or not target.formats
        if is_own or "--target" not in error.with_flags:  # no other target would help
            raise
        made_for = _targets_of(name)
        if not made_for:
            raise
        raise ExportError(
            f"format {name} is not one of target {target.name}: {error.problem}",
            remedy=f"give --target {made_for[0]}, or leave out --format",
            listed=error.unsaid,
        ) from error


def _targets_of(name: str) -> list[str]:
    """Name the targets whose first format is this; one of its own name first."""
    targets = map(load_target, target_names())
    found = [each.name for each in targets if each.formats[:1] == (name,)]
    # Variants of a target extend its name, so that the shortest is the plain one.
    return sorted(found, key=lambda each: (each != name, len(each), each))


def runnable(formats: Iterable[str]) -> tuple[str, ...]:
    """Pick the formats that `verify` can run; the others hold scales and no program."""
    return tuple(name for name in formats if FORMATS[name].runtime is not None)


def runtime_of(name: str) -> Runtime:
    """Return what runs a format.

    Raises:
        UsageError: Nothing does.
    """
    runtime = FORMATS[name].runtime
    if runtime is None:
        raise UsageError(
            f"{name} holds scales and no program, so there is nothing to run",
            remedy="write another format too, with `intact export`",
        )
    return runtime


def expressible(formats: Iterable[str]) -> Expressible:
    """Return what plans may ask of all of some formats."""
    found = Expressible()
    for name in formats:
        found &= FORMATS[name].writer.expressible
    return found


def exported_in(folder: Path, plan: QuantizedGraph) -> dict[str, Exported]:
    """Read the deployed models in a result's folder.

    Raises:
        PlanError: A file is missing or is not this plan's.
    """
    names = plan.provenance.formats or (ONNX_QDQ,)
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise PlanError(f"the plan was written as {unknown[0]!r}", remedy="take a newer intact")
    exports = {}
    for name in names:
        writer = FORMATS[name].writer
        require_files(folder, writer.required)
        exports[name] = writer.read(folder, plan)
    return exports


def open_model(
    model: str | Path | onnx.ModelProto | ir.Model,
) -> FloatSource | QuantizedSource:
    """Open a model of any format that can be read, quantized or not.

    Formats are imported only for a file that is not ONNX, or an ONNX model that is quantized.

    Raises:
        ModelError: It cannot be read.
    """
    found = model_reader(model)
    if found is not None and isinstance(model, str | Path):
        return found[1].open(Path(model))
    loaded = load_model(model)
    # Told by names of operators, without importing a format: most models are float.
    if _is_quantized(loaded):
        for _, each in described():
            source = None if each.reader is None else each.reader.open_onnx(loaded)
            if source is not None:
                return source
    return FloatSource(ONNX_TARGET, loaded)


def model_reader(model: object) -> tuple[str, Reader] | None:
    """Find the format that a model file is in, by its content or else by its suffix.

    Returns:
        Its name and reader; None for ONNX, and for what is no path.
    """
    if not isinstance(model, str | Path):
        return None
    path, head = Path(model), _head(Path(model))
    # Asked first, so that no format has to be imported for an ONNX model.
    if head.startswith(_ONNX_START):
        return None
    readers = [(name, each.reader) for name, each in described() if each.reader is not None]
    by_content = (row for row in readers if row[1].recognizes(path, head))
    by_suffix = (row for row in readers if path.suffix.lower() in row[1].suffixes)
    # Content first: a suffix is only a guess, which several formats may share.
    return next(by_content, None) or next(by_suffix, None)


def _is_quantized(model: ir.Model) -> bool:
    op_types = {node.op_type for node in nodes_of(model.graph)}
    return any(part in op_type for op_type in op_types for part in _QUANTIZING)


def _head(path: Path) -> bytes:
    """Return the first 8 bytes of a file; none where there is no such file."""
    try:
        with open_file(path) as file:
            return file.read(8)
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return b""
