"""TFLite in the table of formats."""

from __future__ import annotations

from pathlib import Path

from intact.errors import ModelError, PlanError
from intact.formats.base.format import (
    EIGHT_BITS,
    UP_TO_EIGHT_BITS,
    Exported,
    Expressible,
    Format,
    Io,
    WrittenFiles,
    read_files,
)
from intact.formats.tflite.reading.decode import open_tflite
from intact.formats.tflite.write import write_tflite
from intact.plan import QuantizedGraph
from intact.program.deployed import deployed_program

TFLITE_FILE = "model.int8.tflite"


def _write(plan: QuantizedGraph, io: Io) -> Exported:
    program = deployed_program(plan, float_operations=True)
    return WrittenFiles({TFLITE_FILE: write_tflite(program, io=io)})


def _read(folder: Path, plan: QuantizedGraph) -> Exported:
    """Read the deployed file, which must be whole: interpreters trust what it says of itself."""
    exported = WrittenFiles(read_files(folder, (TFLITE_FILE,)))
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


TFLITE = Format(
    (TFLITE_FILE,),
    _write,
    _read,
    ("ai_edge_litert", "flatbuffers"),
    "tflite",
    has_io=True,
    expressible=Expressible(UP_TO_EIGHT_BITS, EIGHT_BITS, packs=False),
)
