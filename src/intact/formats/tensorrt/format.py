"""TensorRT in the table of formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from intact.errors import PlanError
from intact.formats.base.format import EIGHT_BITS, Exported, Expressible, Format, Io, read_files
from intact.formats.tensorrt.write import (
    CACHE_FILE,
    MODEL_FILE,
    RANGES_FILE,
    TensorRtModel,
    export_notes,
    refuse_plan,
    written_tables,
)
from intact.graph import load_model
from intact.plan import Note, QuantizedGraph

WriteModel = Callable[[QuantizedGraph], tuple[ir.Model, list[Note]]]
"""Writes a plan as ONNX with float weights and pairs of Quantize and Dequantize."""


def tensorrt(write_model: WriteModel) -> Format:
    """Return the format.

    Args:
        write_model: Another format's writer, as formats do not import each other.
    """

    def write(plan: QuantizedGraph, _io: Io) -> Exported:
        refuse_plan(plan)
        model, notes = write_model(plan)
        own = export_notes(plan, model.opset_imports[""])
        return TensorRtModel(model, written_tables(plan), (*notes, *own))

    return Format(
        _FILES,
        write,
        _read,
        optional=(_DATA_FILE,),
        expressible=Expressible(EIGHT_BITS, EIGHT_BITS, packs=False),
    )


def _read(folder: Path, plan: QuantizedGraph) -> Exported:
    """Read the deployed files; the model must have the plan's inputs and outputs."""
    tables = read_files(folder, (CACHE_FILE, RANGES_FILE))
    path = folder / MODEL_FILE
    model = load_model(path)
    for kind, found, wanted in (
        ("inputs", model.graph.inputs, plan.graph.inputs),
        ("outputs", model.graph.outputs, plan.graph.outputs),
    ):
        names, expected = ([value.name for value in values] for values in (found, wanted))
        if names != expected:
            raise PlanError(
                f"{path}: not the model of this plan, its {kind} are {names}, not {expected}",
                remedy="quantize again",
            )
    return TensorRtModel(model, tables)


_DATA_FILE = f"{MODEL_FILE}.data"
_FILES = (MODEL_FILE, CACHE_FILE, RANGES_FILE, _DATA_FILE)
