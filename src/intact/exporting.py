"""The formats that a plan is deployed in: one row each, and what it leaves in a result's folder."""

from __future__ import annotations

import contextlib
import enum
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from intact.errors import (
    ExportError,
    MissingExtraError,
    ModelError,
    PlanError,
    UsageError,
    nearest,
)
from intact.formats.encodings.write import write_encodings
from intact.formats.exported import Exported, WrittenFiles
from intact.formats.onnx_qdq.write import QDQ_FILE, QdqModel, write_qdq
from intact.formats.tflite.reading.decode import open_tflite
from intact.formats.tflite.write import Io, write_tflite
from intact.graph import load_model
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.program.deployed import deployed_program
from intact.program.passes.integer_io import integer_io
from intact.targets import Target

if TYPE_CHECKING:
    from intact.formats.c.write import CProgram

TFLITE_FILE = "model.int8.tflite"
ENCODINGS_FILE = "model.encodings"
C_FILES = ("model.c", "model.h", "model_data.h")


class FormatName(enum.StrEnum):
    """How users call the formats."""

    ONNX_QDQ = "onnx_qdq"
    TFLITE = "tflite"
    C = "c"
    ENCODINGS = "encodings"


@dataclass(frozen=True)
class Format:
    """One row of the table.

    Attributes:
        files: What it leaves in a result's folder; the first is what one deploys.
        write: Makes it of a calibrated plan.
        read: Reads it back from the folder of a result.
        packages: What has to be installed, by the module that is imported.
        extra: Which extra brings them.
    """

    files: tuple[str, ...]
    write: Callable[[QuantizedGraph, Io], Exported]
    read: Callable[[Path, QuantizedGraph], Exported]
    packages: tuple[str, ...] = ()
    extra: str = ""


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
        _require(each)
    return found


def export(
    plan: QuantizedGraph, formats: Iterable[FormatName], io: Io
) -> dict[FormatName, Exported]:
    """Write a calibrated plan in some formats.

    Raises:
        ExportError: A format cannot express the plan; all that it cannot is listed.
    """
    return {name: FORMATS[name].write(plan, io) for name in formats}


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
        _require_files(folder, FORMATS[name].files[:1])
        exports[name] = FORMATS[name].read(folder, plan)
    return exports


FORMATS_KEY, IO_KEY = "formats", "io"
"""Keys of a plan's provenance."""


def c_program(plan: QuantizedGraph) -> CProgram:
    """Return a plan as C."""
    from intact.formats.c.write import write_c

    program = deployed_program(plan)
    with contextlib.suppress(ExportError):  # what keeps floats at its ends is listed with the rest
        program = integer_io(program)
    return write_c(program, "model", target=plan.target.name)


def _require(name: FormatName) -> None:
    row = FORMATS[name]
    for package in row.packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"format {name} needs {package}, which is not installed",
                remedy=f"pip install 'intact[{row.extra}]'",
            )


# ---- the rows ---------------------------------------------------------------------------------


def _write_qdq(plan: QuantizedGraph, _io: Io) -> Exported:
    return write_qdq(plan)


def _read_qdq(folder: Path, plan: QuantizedGraph) -> Exported:
    """Read the deployed model, which must have the tensors that the plan would write."""
    path, expected = folder / QDQ_FILE, write_qdq(plan)
    model = load_model(path)
    present = {value.name for value in model.graph.inputs}
    present |= {value.name for node in model.graph for value in node.outputs}
    for name in expected.codes.values():
        if name not in present:
            raise PlanError(
                f"{path}: not the model of this plan, it has no tensor {name!r}",
                remedy="quantize again",
            )
    outputs, wanted = ([v.name for v in m.graph.outputs] for m in (model, expected.model))
    if outputs != wanted:
        raise PlanError(
            f"{path}: not the model of this plan, its outputs are {outputs}, not {wanted}",
            remedy="quantize again",
        )
    return _with_model(expected, model)


def _with_model(expected: QdqModel, model: ir.Model) -> QdqModel:
    expected.model = model
    return expected


def _write_tflite(plan: QuantizedGraph, io: Io) -> Exported:
    program = deployed_program(plan, float_operations=True)
    return WrittenFiles({TFLITE_FILE: write_tflite(program, io=io)})


_CODES_ONLY = "the C program takes and gives codes: --io float is for a .tflite"


def _write_c(plan: QuantizedGraph, io: Io) -> Exported:
    program = c_program(plan)
    files = {name: text.encode() for name, text in program.files.items()}
    notes = list(program.notes)
    if io is Io.FLOAT:
        notes.append(Note(NoteKind.EXPORT, "", _CODES_ONLY))
    return WrittenFiles(files, program.flash_bytes, notes)


def _read_tflite(folder: Path, plan: QuantizedGraph) -> Exported:
    """Read the deployed file, which must be whole: interpreters trust what it says of itself."""
    exported = WrittenFiles(_read_files(folder, (TFLITE_FILE,)))
    path = folder / TFLITE_FILE
    try:
        signature = open_tflite(exported.files[TFLITE_FILE]).signature
    except ModelError as error:
        raise PlanError(f"{path}: {error}", remedy="or quantize again") from error
    graph = plan.graph
    for kind, found, values in (
        ("inputs", signature.inputs, graph.inputs),
        ("outputs", signature.outputs, graph.outputs),
    ):
        wanted = sorted(str(value.name) for value in values)
        if sorted(found) != wanted:
            raise PlanError(
                f"{path}: not the model of this plan, its {kind} are {sorted(found)}, not {wanted}",
                remedy="quantize again",
            )
    return exported


def _read_c(folder: Path, plan: QuantizedGraph) -> Exported:
    return WrittenFiles(_read_files(folder, C_FILES), c_program(plan).flash_bytes)


def _require_files(folder: Path, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise PlanError(
            f"{folder}: no {missing[0]} in it",
            remedy="give a folder that intact wrote, with all its files",
        )


def _read_files(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    _require_files(folder, names)
    return {name: (folder / name).read_bytes() for name in names}


def _write_encodings(plan: QuantizedGraph, _io: Io) -> Exported:
    return WrittenFiles({ENCODINGS_FILE: write_encodings(plan)})


def _read_encodings(folder: Path, _plan: QuantizedGraph) -> Exported:
    return WrittenFiles(_read_files(folder, (ENCODINGS_FILE,)))


FORMATS: Mapping[FormatName, Format] = {
    FormatName.ONNX_QDQ: Format((QDQ_FILE, f"{QDQ_FILE}.data"), _write_qdq, _read_qdq),
    FormatName.TFLITE: Format(
        (TFLITE_FILE,),
        _write_tflite,
        _read_tflite,
        ("ai_edge_litert", "flatbuffers"),
        "tflite",
    ),
    FormatName.C: Format(C_FILES, _write_c, _read_c),
    FormatName.ENCODINGS: Format((ENCODINGS_FILE,), _write_encodings, _read_encodings),
}
"""By name. A format is a row here and a folder in ``formats/``."""
