"""Weights in blocks in ncnn: float products whose constant factor is read as codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import intact
from intact.errors import UsageError
from intact.formats.base.format import WrittenFiles
from intact.formats.ncnn.format import BIN_FILE
from tests.models import ModelBuilder

pytest.importorskip("ncnn")


def _net() -> onnx.ModelProto:
    """Matrices, rows and a vector before a layer; a short last block, a bias, a Relu."""
    b = ModelBuilder()
    x = b.input("x", ["N", 2, 3, 100])
    b.node("MatMul", x, b.weight(100, 64), out="images", name="images")
    b.node("Relu", "images", out="positive", name="relu")
    b.node("Reshape", "positive", b.ints(-1, 6, 64), out="rows", name="flat")
    b.node("MatMul", "rows", b.weight(64, 40), out="matrix", name="matrix")
    b.node("Reshape", "matrix", b.ints(-1, 240), out="long", name="flatter")
    b.node("Gemm", "long", b.weight(7, 240), b.weight(7), transB=1, out="y", name="vector")
    b.output("y", ["N", 7])
    return b.build()


X = {"x": np.random.default_rng(0).normal(size=(4, 2, 3, 100)).astype(np.float32)}


@pytest.mark.parametrize(("bits", "size"), [(4, 32), (6, 64), (3, 32), (4, 64)])
def test_each_layer_computes_what_the_plan_says(bits: int, size: int) -> None:
    result = intact.quantize(_net(), target="ncnn", block=size, weight_bits=bits)
    found = intact.verify(result, X)
    ends = [each.end.split(".")[0] for each in found.float_layers]
    assert ends == ["images", "matrix", "vector"]
    assert all(each.values for each in found.float_layers)
    assert not any(each.differs for each in found.float_layers)
    assert found.outputs_sqnr_db["y"] > 110


def test_codes_have_their_width_in_the_file() -> None:
    written = intact.quantize(_net(), target="ncnn", block=32, weight_bits=6).exports["ncnn"]
    assert isinstance(written, WrittenFiles)
    shapes = ((64, 100), (40, 64), (7, 240))
    codes = sum(rows * length * 6 // 8 for rows, length in shapes)
    scales = sum(rows * -(-length // 32) * 4 for rows, length in shapes)
    bias = 4 + 7 * 4
    assert codes + scales + bias <= len(written.files[BIN_FILE]) <= codes + scales + bias + 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 256}, "has blocks of 32, 64 or 128"),
        ({"weight_bits": 8}, "stores codes of 4 or 6 bits"),
        ({"zero_points": True}, "have none"),
        ({"activations": "dynamic"}, "computes with floats beside blocks"),
    ],
)
def test_what_is_refused_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        intact.quantize(_net(), **{"target": "ncnn", "block": 32, **options})
    assert message in refused.value.with_flags


def test_tables_stay_float() -> None:
    b = ModelBuilder()
    ids = b.input("ids", ["N", 3], onnx.TensorProto.INT64)
    b.node("Gather", b.weight(20, 64), ids, out="words", name="words")
    b.node("MatMul", "words", b.weight(64, 8), out="y", name="layer")
    b.output("y", ["N", 3, 8])
    result = intact.quantize(b.build(), target="ncnn", block=32)
    assert not result.plan.decisions["words"].reason.startswith("weights only: ")
    found = intact.verify(result, {"ids": np.array([[0, 19, 3]])})
    assert [each.differs for each in found.float_layers] == [False]
