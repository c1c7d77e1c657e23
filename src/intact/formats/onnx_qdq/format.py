"""QDQ in the table of formats."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from intact.errors import PlanError
from intact.formats.base.format import Exported, Format, Io
from intact.formats.onnx_qdq.write import QDQ_FILE, write_qdq
from intact.graph import load_model
from intact.plan import Note, QuantizedGraph


def write_float_weights(plan: QuantizedGraph) -> tuple[ir.Model, list[Note]]:
    """Write a plan for runtimes that quantize weights themselves, with what a user should know."""
    written = write_qdq(plan, float_weights=True)
    return written.model, written.notes


def _write(plan: QuantizedGraph, _io: Io) -> Exported:
    return write_qdq(plan)


def _read(folder: Path, plan: QuantizedGraph) -> Exported:
    """Read the deployed model, which must have the tensors that the plan would write."""
    path, expected = folder / QDQ_FILE, write_qdq(plan)
    model = load_model(path)
    present = {value.name for value in model.graph.inputs}
    present |= {value.name for node in model.graph for value in node.outputs}
    for name in expected.codes.values():
        if name not in present:
            raise PlanError(
                f"{path}: not the model of this plan, it has no tensor {name!r}",
                remedy="quantize again",
            )
    outputs, wanted = ([v.name for v in m.graph.outputs] for m in (model, expected.model))
    if outputs != wanted:
        raise PlanError(
            f"{path}: not the model of this plan, its outputs are {outputs}, not {wanted}",
            remedy="quantize again",
        )
    expected.model = model
    return expected


_FILES = (QDQ_FILE, f"{QDQ_FILE}.data")

ONNX_QDQ = Format(_FILES, _write, _read, optional=_FILES[1:])
