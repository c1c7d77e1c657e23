"""Tengine in the table of formats: the model in integers and the tables of its scales."""

from __future__ import annotations

from pathlib import Path

from intact.errors import ExportError
from intact.formats.base.format import (
    EIGHT_BITS,
    Exported,
    Expressible,
    Format,
    Io,
    WrittenFiles,
    read_files,
)
from intact.formats.tengine.tables import BIASES_FILE, WEIGHTS_FILE, table_name, write_tables
from intact.formats.tengine.tmfile.write import write_int8
from intact.numerics.thresholds import METHODS
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.plan.given_scales import GIVEN

MODEL_FILE = "model.int8.tmfile"
_NAME = "tengine"
_OTHERWISE = (
    "the plan computes as target {} does; Tengine requantizes in float32, rounds half away from "
    "zero and limits codes to +-127, so that its results may differ, which verify cannot check"
)
_REMEDY = "quantize for target tengine"
_TABLES = tuple(f"table_{method}.scale" for method in (*METHODS, GIVEN))


def _write(plan: QuantizedGraph, _io: Io) -> Exported:
    """Write the tables, and the model where Tengine has all that it needs."""
    files, notes = write_tables(plan)
    try:
        model = write_int8(plan)
    except ExportError as error:
        lines = error.unsaid or (str(error),)  # reasons that do not fit one message
        missing = [f"{MODEL_FILE} was not written, only the tables: {line}" for line in lines]
        reasons = tuple(Note(NoteKind.EXPORT, "", line) for line in missing)
        return WrittenFiles(files, notes=(*notes, *reasons))
    if _NAME not in plan.target.formats:
        notes = (*notes, Note(NoteKind.EXPORT, "", _OTHERWISE.format(plan.target.name), _REMEDY))
    return WrittenFiles({MODEL_FILE: model, **files}, deployed=len(model), notes=notes)


def _read(folder: Path, plan: QuantizedGraph) -> Exported:
    tables = (table_name(plan), WEIGHTS_FILE, BIASES_FILE)
    files = read_files(folder, tables, optional=(MODEL_FILE,))
    model = files.get(MODEL_FILE)
    return WrittenFiles(files, deployed=None if model is None else len(model))


TENGINE = Format(
    (MODEL_FILE, *_TABLES, WEIGHTS_FILE, BIASES_FILE),
    _write,
    _read,
    optional=(MODEL_FILE, *_TABLES),
    expressible=Expressible(EIGHT_BITS, EIGHT_BITS, packs=False),
)
