"""Describes the format ``c``: C99 programs for processors without floats."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intact.errors import ExportError
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
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.program.deployed import deployed_program
from intact.program.passes.integer_io import integer_io

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.c.write import CProgram

C_FILES = ("model.c", "model.h", "model_data.h")

_CODES_ONLY = "the C program takes and gives codes: --io float is for a .tflite"


def c_program(plan: QuantizedGraph) -> CProgram:
    """Return a plan as C."""
    from intact.formats.c.write import write_c
    from intact.program.operations import Lookup, Quantize
    from intact.program.passes.whole_inputs import with_views

    program = deployed_program(plan)
    with contextlib.suppress(ExportError):  # what keeps floats at its ends is listed with the rest
        program = integer_io(program)
    # These read whole numbers of the caller's directly: moves in front of them become views, as no
    # kernel copies int32.
    program = with_views(program, (Lookup, Quantize))
    return write_c(program, "model", target=plan.target.name)


_COMPILED_UP_TO = 4 << 20
"""Bytes of flash. Compilers read weights as text: ResNet-20 takes 0.8 s, MobileNetV2 1.7 s."""


class _Writer(Writer):
    """Writes a plan as C."""

    files = C_FILES
    has_io = True
    has_layout = True
    expressible = INTEGERS_ALONE

    def write(self, plan: QuantizedGraph, io: Io) -> Exported:
        program = c_program(plan)
        files = {name: text.encode() for name, text in program.files.items()}
        notes = list(program.notes)
        if io is Io.FLOAT:
            notes.append(Note(NoteKind.EXPORT, "", _CODES_ONLY))
        return WrittenFiles(files, program.flash_bytes, notes)

    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        return WrittenFiles(read_files(folder, C_FILES), c_program(plan).flash_bytes)


class _Runtime(Runtime):
    """Compiles the program, and runs it on this machine."""

    run_up_to = _COMPILED_UP_TO

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        """Compile and run the program; it must be the plan's own: a folder may come from anyone."""
        from intact.formats.c.run import verify_c

        program = c_program(deployed.plan)
        deployed.require_unchanged({name: text.encode() for name, text in program.files.items()})
        return verify_c(deployed.plan, program, batches)

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        from intact.formats.c.run import run_c

        return run_c(deployed.plan, c_program(deployed.plan), feeds)

    def load(self, deployed: Deployed) -> None:
        from intact.formats.c.run import QUICK, CRuntime

        CRuntime(c_program(deployed.plan), flags=QUICK).close()


C = Format(_Writer(), runtime=_Runtime())
