"""Runs a ``.tflite`` in TensorFlow Lite Micro, which shows its outputs only."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from intact.data.batching import cut, joined
from intact.errors import ExportError, MissingExtraError
from intact.formats.base.comparison import in_int32, numbers_of, stored_feeds
from intact.formats.base.format import Feeds
from intact.formats.tflite.run import stderr_into
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Tensor
from intact.program.deployed import deployed_program
from intact.program.passes.integer_io import integer_io

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.base.verification import Arrays


def verify_micro(plan: QuantizedGraph, content: bytes, batches: Iterable[Feeds]) -> Verification:
    """Compare a ``.tflite`` in TensorFlow Lite Micro with the integers that its plan says.

    Args:
        plan: What was written.
        content: The file, with integer inputs and outputs.
        batches: Inputs by name, with axes as the model has them: floats, or int8 codes.

    Raises:
        MissingExtraError: The package tflite-micro is not installed.
        ExportError: The interpreter refuses the file.
        DataError: The file was written from another plan, or whole numbers leave int32.
    """
    from intact.formats.base.verification import compare, integer_ends  # and the engine

    interpreter = open_micro(content)
    reference, given = integer_ends(plan, batches)
    program = reference.engine.program
    written = _written(plan)

    def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
        found = _run(interpreter, written, _rearranged(feeds, program.inputs, written.inputs))
        return _rearranged(found, written.outputs, program.outputs), {}

    name = f"TensorFlow Lite Micro {metadata.version('tflite-micro')}"
    try:
        return compare(plan, name, run, reference, given, program.outputs)
    except (ValueError, LookupError, struct.error) as error:  # it errs in many types
        raise ExportError(
            f"TensorFlow Lite Micro refuses the file: {error}",
            remedy="give the file that was written from this plan, or take --kernels ref",
        ) from error


def run_micro(plan: QuantizedGraph, content: bytes, feeds: Feeds) -> Arrays:
    """Run a ``.tflite`` in TensorFlow Lite Micro; the outputs by name, as numbers.

    Raises:
        MissingExtraError: The package tflite-micro is not installed.
        ExportError: The interpreter refuses the file.
    """
    interpreter = open_micro(content)
    program = _written(plan)
    given = stored_feeds(program, feeds, deployed_program(plan, float_operations=True).inputs)
    try:
        return numbers_of(_run(interpreter, program, given), program.outputs)
    except (ValueError, LookupError, struct.error, RuntimeError) as error:
        raise ExportError(f"TensorFlow Lite Micro refuses the file: {error}") from error


def _written(plan: QuantizedGraph) -> Program:
    """Return the program of the file: float operators may have put the axes in another order."""
    return integer_io(deployed_program(plan, float_operations=True))


def _rearranged(
    arrays: Arrays, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> dict[str, Array]:
    """Store arrays as the tensors of another program are stored."""
    return {n: after[n].as_stored(before[n].as_in_model(a)) for n, a in arrays.items()}


def open_micro(content: bytes) -> Any:
    """Let the interpreter read a file.

    Raises:
        MissingExtraError: The package tflite-micro is not installed.
        ExportError: The interpreter refuses the file.
    """
    try:
        from tflite_micro.python.tflite_micro import runtime as micro
    except ImportError as error:
        raise MissingExtraError(
            "TensorFlow Lite Micro needs tflite-micro, which is not installed",
            remedy="pip install tflite-micro",
        ) from error
    with tempfile.TemporaryFile() as said:
        try:
            # Why it refuses a file, the interpreter prints and does not raise.
            with stderr_into(said):
                return micro.Interpreter.from_bytes(content)
        except (RuntimeError, ValueError) as error:
            said.seek(0)
            reasons = said.read().decode(errors="replace").split("\n")
            told = "; ".join(filter(None, map(str.strip, reasons))) or str(error)
            raise ExportError(
                f"TensorFlow Lite Micro refuses the file: {told}",
                remedy="keep what it lacks out of the model, or quantize for LiteRT",
            ) from error


def _run(interpreter: Any, program: Program, feeds: Feeds) -> Arrays:
    """Run a batch in parts of the file's own batch: its memory is planned for that."""
    found: list[Arrays] = []
    size = max(
        (tensor.shape[0] or 1 for tensor in program.inputs.values() if tensor.shape), default=1
    )
    for rows in cut(feeds, size):
        for slot, name in enumerate(program.inputs):
            part = rows[name]
            dtype = interpreter.get_input_details(slot)["dtype"]
            if dtype == np.int32:  # of whole numbers of any type
                part = in_int32(name, part)
            interpreter.set_input(np.ascontiguousarray(part, dtype), slot)
        interpreter.invoke()
        slots = enumerate(program.outputs)
        found.append({name: np.array(interpreter.get_output(slot)) for slot, name in slots})
    return joined(found)
