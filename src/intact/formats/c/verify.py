"""Programs for microcontrollers against the integer engine: they show their outputs only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

import numpy as np

from intact.engines.cpu import detect_cpu
from intact.engines.integer.engine import IntegerEngine
from intact.engines.session import Feeds
from intact.errors import DataError, ExportError, MissingExtraError
from intact.formats.base.comparison import OutputComparer, stored_feeds
from intact.formats.base.report import Verification, overflow_reports, sqnr_by_name
from intact.formats.c.run import CRuntime
from intact.formats.c.write import CProgram
from intact.plan import QuantizedGraph
from intact.program import Array, Program
from intact.program.deployed import deployed_program
from intact.program.passes.integer_io import integer_io

_Run = Callable[[dict[str, Array]], Mapping[str, Array]]


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
    with CRuntime(written) as runtime:
        return _verify(plan, "C99 program, compiled for this machine", runtime.run, batches)


def verify_micro(plan: QuantizedGraph, content: bytes, batches: Iterable[Feeds]) -> Verification:
    """Compare a ``.tflite`` in the interpreter of TensorFlow Lite Micro with its plan's integers.

    Args:
        plan: What was written.
        content: The file, with integer inputs and outputs.
        batches: As of :func:`verify_c`.

    Raises:
        MissingExtraError: The package tflite-micro is not installed.
        ExportError: The interpreter refuses the file.
        DataError: The file was written from another plan.
    """
    try:
        from tflite_micro.python.tflite_micro import runtime as micro
    except ImportError as error:
        raise MissingExtraError(
            "TensorFlow Lite Micro needs tflite-micro, which is not installed",
            remedy="pip install tflite-micro",
        ) from error
    program = integer_io(deployed_program(plan))
    try:
        interpreter = micro.Interpreter.from_bytes(content)
    except (RuntimeError, ValueError) as error:
        raise ExportError(f"TensorFlow Lite Micro refuses the file: {error}") from error
    name = f"TensorFlow Lite Micro {metadata.version('tflite-micro')}"
    return _verify(plan, name, lambda feeds: _run_micro(interpreter, program, feeds), batches)


def _run_micro(interpreter: Any, program: Program, feeds: dict[str, Array]) -> dict[str, Array]:
    """Run a batch in parts of the file's own batch: its memory is planned for that."""
    found: dict[str, list[Array]] = {name: [] for name in program.outputs}
    size = max(
        (tensor.shape[0] or 1 for tensor in program.inputs.values() if tensor.shape), default=1
    )
    for start in range(0, len(next(iter(feeds.values()))), size):
        for slot, name in enumerate(program.inputs):
            interpreter.set_input(np.ascontiguousarray(feeds[name][start : start + size]), slot)
        interpreter.invoke()
        for slot, name in enumerate(program.outputs):
            found[name].append(np.array(interpreter.get_output(slot)))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _verify(plan: QuantizedGraph, name: str, run: _Run, batches: Iterable[Feeds]) -> Verification:
    lowered = deployed_program(plan)
    program = integer_io(lowered)
    engine = IntegerEngine(program)
    outputs = OutputComparer()
    samples = 0
    for feeds in batches:
        given = stored_feeds(program, feeds, lowered.inputs)
        deployed, computed = run(given), engine.run(given).outputs
        if set(deployed) != set(computed):
            raise DataError(
                f"the program gives {', '.join(deployed)}, its plan {', '.join(computed)}",
                remedy="compare a program with the plan that it was written from",
            )
        for output, tensor in program.outputs.items():
            outputs.add(output, deployed[output], computed[output], tensor)
        samples += len(next(iter(given.values())))
    return Verification(
        target=plan.target.name,
        runtime=name,
        cpu=detect_cpu(),
        samples=samples,
        layers=[],
        outputs=outputs.found(),
        outputs_sqnr_db=sqnr_by_name(outputs.found()),
        classes=outputs.classes(),
        in_float=dict(program.in_float),
        overflows=overflow_reports(engine),
    )
