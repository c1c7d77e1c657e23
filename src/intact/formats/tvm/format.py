"""TVM in the table of formats."""

from __future__ import annotations

from pathlib import Path

from intact.formats.base.format import (
    INTEGERS_ALONE,
    Exported,
    Format,
    Io,
    WrittenFiles,
    read_files,
)
from intact.formats.tvm.write import TvmModule, write_tvm
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.program.realize import integer_program

TVM_FILES = ("model.tvm.py", "model.tvm.npz")

_USE = (
    "a module for one sample: tvm.script.from_source reads the text, relax.transform.BindParams "
    'binds the arrays of the .npz to "main", tvm.compile makes a library for any processor'
)


def tvm_files(module: TvmModule) -> dict[str, bytes]:
    """Return the content of a module's files."""
    text, arrays = TVM_FILES
    return {text: module.text.encode(), arrays: module.archive()}


def _write(plan: QuantizedGraph, io: Io) -> Exported:
    module = write_tvm(integer_program(plan, float_ends=io is Io.FLOAT))
    return WrittenFiles(tvm_files(module), notes=[Note(NoteKind.EXPORT, "", _USE)])


def _read(folder: Path, _plan: QuantizedGraph) -> Exported:
    return WrittenFiles(read_files(folder, TVM_FILES))


TVM = Format(TVM_FILES, _write, _read, has_io=True, expressible=INTEGERS_ALONE)
"""Text and arrays: writing them takes no TVM, and they are the same bytes whatever its version."""
