"""Describes the format ``onnx_integer``: ONNX of plain integer operators."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intact.formats.base.expressible import INTEGERS_ALONE
from intact.formats.base.format import (
    ANY_SIZE,
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
from intact.formats.base.maker import lasting, made_by
from intact.formats.onnx_integer.write import write_onnx_integer
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.program import Program
from intact.program.operations import Convolution, FullyConnected, TransposedConvolution
from intact.program.realize import integer_program

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.onnx_integer.run import OnnxIntegerRuntime

ONNX_INTEGER_FILE = "model.integer.onnx"

_LAYERS = (Convolution, FullyConnected, TransposedConvolution)
_SAFE = 64
"""Weights up to it never saturate: ``255 * (64 + 64) < 2**15``."""
_PAIRS = (
    "exact wherever int8 products are summed in 32 bits: ARM, and x86 with VNNI or AMX; ONNX "
    f"Runtime on older x86 adds pairs of products in 16 bits, and weights beyond {_SAFE} may "
    "saturate them"
)


def _may_saturate(program: Program) -> bool:
    layers = (step for step in program.steps if isinstance(step.operation, _LAYERS))
    weights = (step.inputs[1] for step in layers)
    codes = (weight.data for weight in weights if weight is not None and weight.data is not None)
    # In int64, as the lowest int8 has no magnitude in its own type.
    return any(np.abs(each.astype(np.int64)).max(initial=0) > _SAFE for each in codes)


class _Writer(Writer):
    """Writes a plan as integer operators of ONNX."""

    files = (ONNX_INTEGER_FILE,)
    has_io = True
    expressible = INTEGERS_ALONE

    def write(self, plan: QuantizedGraph, io: Io) -> Exported:
        program = integer_program(plan, float_ends=io is Io.FLOAT)
        notes = [Note(NoteKind.EXPORT, "", _PAIRS)] if _may_saturate(program) else []
        content = write_onnx_integer(program, lasting(made_by(plan)))
        return WrittenFiles({ONNX_INTEGER_FILE: content}, notes=notes)

    def read(self, folder: Path, _plan: QuantizedGraph) -> Exported:
        return WrittenFiles(read_files(folder, (ONNX_INTEGER_FILE,)))


class _Runtime(Runtime):
    """Runs integer operators in ONNX Runtime."""

    run_up_to = ANY_SIZE

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.onnx_integer.run import verify_onnx_integer

        plan, floats = deployed.plan, deployed.has_float_ends
        program = integer_program(plan, float_ends=floats)
        content = write_onnx_integer(program, lasting(made_by(plan)))
        deployed.require_unchanged({ONNX_INTEGER_FILE: content})
        return verify_onnx_integer(
            plan, content, batches, float_ends=floats, threads=deployed.threads
        )

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        from intact.formats.base.comparison import numbers_of, stored_feeds

        program = integer_program(deployed.plan, float_ends=deployed.has_float_ends)
        outputs = self.load(deployed).run(stored_feeds(program, feeds))
        return numbers_of(outputs, program.outputs)

    def load(self, deployed: Deployed) -> OnnxIntegerRuntime:
        from intact.formats.onnx_integer.run import OnnxIntegerRuntime

        return OnnxIntegerRuntime(
            deployed.files[ONNX_INTEGER_FILE],
            threads=deployed.threads,
            exact=not deployed.plan.target.saturates_pairs,
        )


ONNX_INTEGER = Format(_Writer(), runtime=_Runtime())
