"""Describes the format ``tvm``: a Relax module as TVMScript, and its arrays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intact.formats.base.expressible import INTEGERS_ALONE
from intact.formats.base.format import (
    Deployed,
    Exported,
    Feeds,
    Format,
    Io,
    Runtime,
    Writer,
    WrittenFiles,
    read_files,
)
from intact.formats.tvm.write import TvmModule, write_tvm
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.program.realize import integer_program

if TYPE_CHECKING:
    from intact.formats.base.report import Verification

TVM_FILES = ("model.tvm.py", "model.tvm.npz")

_USE = (
    "a module for one sample: tvm.script.from_source reads the text, relax.transform.BindParams "
    'binds the arrays of the .npz to "main", tvm.compile makes a library for any processor'
)


def tvm_files(module: TvmModule) -> dict[str, bytes]:
    """Return the content of a module's files."""
    text, arrays = TVM_FILES
    return {text: module.text.encode(), arrays: module.archive()}


class _Writer(Writer):
    """Writes a plan as a Relax module: text and arrays.

    That takes no TVM, and they are the same bytes whatever its version.
    """

    files = TVM_FILES
    has_io = True
    expressible = INTEGERS_ALONE

    def write(self, plan: QuantizedGraph, io: Io) -> Exported:
        module = write_tvm(integer_program(plan, float_ends=io is Io.FLOAT))
        return WrittenFiles(tvm_files(module), notes=[Note(NoteKind.EXPORT, "", _USE)])

    def read(self, folder: Path, _plan: QuantizedGraph) -> Exported:
        return WrittenFiles(read_files(folder, TVM_FILES))


class _Runtime(Runtime):
    """Compiles the module with TVM: that takes longer than all else."""

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.tvm.run import verify_tvm

        plan, floats = deployed.plan, deployed.has_float_ends
        # Written anew and compared: the text is compiled, which runs what a folder's author wrote.
        module = write_tvm(integer_program(plan, float_ends=floats))
        deployed.require_unchanged(tvm_files(module))
        return verify_tvm(plan, module, batches, float_ends=floats, threads=deployed.threads)


TVM = Format(_Writer(), runtime=_Runtime())
