"""A C program, compiled for this machine, against the integer engine: it shows its outputs only."""

from __future__ import annotations

from collections.abc import Iterable

from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, compare, integer_ends
from intact.formats.c.run import CRuntime
from intact.formats.c.write import CProgram
from intact.plan import QuantizedGraph


def verify_c(plan: QuantizedGraph, written: CProgram, batches: Iterable[Feeds]) -> Verification:
    """Compare a C program, compiled for this machine, with the integers that its plan says.

    Args:
        plan: What was written.
        written: The program.
        batches: Inputs by name, with axes as the model has them: floats, or int8 codes.

    Raises:
        MissingExtraError: There is no C compiler.
        ExportError: It refuses the program, or the program fails.
        DataError: The program was written from another plan.
    """
    reference, given = integer_ends(plan, batches)
    outputs = reference.engine.program.outputs
    with CRuntime(written) as runtime:

        def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
            return dict(runtime.run(feeds)), {}

        name = "C99 program, compiled for this machine"
        return compare(plan, name, run, reference, given, outputs)
