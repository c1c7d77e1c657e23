"""Nodes of masks and other float nodes in a file: LiteRT computes what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto

from intact.errors import ExportError
from intact.formats.base.format import Io
from intact.formats.registry import FORMATS
from intact.formats.tflite.verify import verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.program.lower import lower
from intact.program.passes.layout import IoLayout
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

pytest.importorskip("ai_edge_litert")

Arrays = dict[str, npt.NDArray[Any]]


def feeds(count: int) -> Arrays:
    random = np.random.default_rng(count)
    mask = (np.arange(6) < random.integers(2, 7, (count, 1))).astype(np.int64)
    return {"x": random.normal(size=(count, 6, 8)).astype(np.float32), "mask": mask}


def masked(form: str) -> onnx.ModelProto:
    """Attention over 6 positions with a mask of int64, as exporters of encoders write it."""
    b = ModelBuilder(17)
    x, mask = b.input("x", ["batch", 6, 8]), b.input("mask", ["batch", 6], TensorProto.INT64)
    mask = b.node("Unsqueeze", mask, b.ints(1))
    lowest = b.scalar(-10000.0)
    if form == "product":
        inverse = b.node("Sub", b.scalar(1.0), b.node("Cast", mask, to=TensorProto.FLOAT))
        added = b.node("Mul", inverse, lowest)
    else:
        absent = b.node("Equal", mask, b.constant(np.array(0)))
        if form == "logic":
            known = b.node("Less", mask, b.constant(np.array(5)))
            absent = b.node("And", absent, b.node("Not", b.node("Not", known)))
            for op_type in ("Greater", "GreaterOrEqual"):
                absent = b.node("Or", absent, b.node(op_type, mask, b.constant(np.array(7))))
            absent = b.node("And", absent, b.node("LessOrEqual", mask, b.constant(np.array(7))))
        if form == "cast":
            absent = b.node("Cast", b.node("Cast", absent, to=TensorProto.FLOAT), to=9)
        added = b.node("Where", absent, lowest, b.scalar(0.0))
    q, k, v = (b.node("MatMul", x, b.weight(8, 8)) for _ in range(3))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]))
    weights = b.node("Softmax", b.node("Add", scores, added), axis=-1)
    b.node("MatMul", weights, v, out="y")
    b.output("y", ["batch", 6, 8])
    return b.build()


@pytest.mark.parametrize("form", ["product", "choice", "logic", "cast"])
def test_masks_are_written(form: str) -> None:
    plan = calibrate(planned(masked(form), "tflite"), feeds(32))
    program = lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    content = write_tflite(program, io=Io.INT8)
    found = verify_tflite(plan, content, [feeds(16)])
    assert found.samples == 16
    assert sum(each.mismatches for each in found.outputs) == 0


@pytest.mark.parametrize(
    ("op_type", "constant"), [("Floor", None), ("Cos", None), ("Sin", None), ("Pow", 3.0)]
)
def test_other_nodes(op_type: str, constant: float | None) -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 6, 8]), b.weight(8, 8))
    y = b.node(op_type, x, *([] if constant is None else [b.scalar(constant)]))
    b.node("MatMul", y, b.weight(8, 4), out="y")
    b.output("y", ["batch", 6, 4])
    data = {"x": feeds(32)["x"]}
    plan = calibrate(planned(b.build(), "tflite"), data)
    program = lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    found = verify_tflite(plan, write_tflite(program), [{"x": feeds(16)["x"]}])
    assert max(each.largest for each in found.outputs) <= 1


def test_what_types_cannot_hold_is_refused() -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 6, 8]), b.weight(8, 8))
    whole = b.node("Cast", b.node("Cast", x, to=TensorProto.INT64), to=TensorProto.FLOAT)
    b.node("MatMul", whole, b.weight(8, 4), out="y")
    b.output("y", ["batch", 6, 4])
    plan = calibrate(planned(b.build(), "tflite"), {"x": feeds(8)["x"]})
    program = lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    with pytest.raises(ExportError, match="it casts float32 to int64"):
        write_tflite(program)


def test_what_micro_lacks_is_refused() -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 6, 8]), b.weight(8, 8))
    b.node("Pow", b.node("Abs", x), b.scalar(1.7), out="y", name="power")
    b.output("y", ["batch", 6, 8])
    plan = calibrate(planned(b.build(), "tflite-micro"), {"x": feeds(8)["x"]})
    refused = "'power': TensorFlow Lite Micro has no operator for it"
    with pytest.raises(ExportError, match=refused):
        FORMATS["tflite"].writer.write(plan, Io.INT8)
