"""A table that is looked up and multiplied with is stored once where its codes are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import intact
from intact.graph import normalize
from intact.graph.files.save import given_bytes
from intact.results.result import Result
from tests.models import ModelBuilder

WORDS, WIDTH = 120, 16
IDS = {"ids": np.random.default_rng(2).integers(0, WORDS, (32, 8))}


def tied(form: str) -> onnx.ModelProto:
    """An embedding whose table computes the logits too."""
    b = ModelBuilder()
    ids = b.input("ids", ["N", 8], onnx.TensorProto.INT64)
    table = b.weight(WORDS, WIDTH)
    x = b.node("Gather", table, ids, name="look")
    x = b.node("Relu", b.node("MatMul", x, b.weight(WIDTH, WIDTH), name="inner"))
    if form == "gemm":
        x = b.node("Flatten", b.node("Gather", x, b.constant(np.array(3)), axis=1))
        x = b.node("Gemm", x, table, name="logits", transB=1)
    else:
        x = b.node("MatMul", x, b.node("Transpose", table, perm=[1, 0]), name="logits")
    b.output(x)
    return b.build()


def matrices(path: Path) -> list[tuple[int, ...]]:
    """Return the shapes of the file's large tensors."""
    arrays = map(numpy_helper.to_array, onnx.load(path).graph.initializer)
    return sorted(each.shape for each in arrays if each.size >= WORDS * WIDTH)


@pytest.mark.parametrize("form", ["transpose", "gemm"])
def test_codes_that_are_equal_are_stored_once(form: str, tmp_path: Path) -> None:
    result = intact.quantize(tied(form), IDS, preset="fast", output=tmp_path / "out")
    path = tmp_path / "out" / "model.int8.onnx"
    assert matrices(path) == [(WORDS, WIDTH)]
    assert not any("stored twice" in note.message for note in result.plan.notes)
    assert min(intact.verify(result, IDS).outputs_sqnr_db.values()) > 20
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options)
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "Transpose" not in kinds  # it is computed once, when the model is loaded
    assert {"MatMulIntegerToFloat", "QGemm"} & set(kinds)
    (logits,) = session.run(None, IDS)
    (floats,) = onnxruntime.InferenceSession(tied(form).SerializeToString()).run(None, IDS)
    assert np.sum((logits - floats) ** 2) < 0.01 * np.sum(floats**2)


@pytest.mark.parametrize("form", ["transpose", "gemm"])
def test_what_was_written_so_is_read_again(form: str, tmp_path: Path) -> None:
    intact.quantize(tied(form), IDS, preset="fast", output=tmp_path / "out")
    written = tmp_path / "out" / "model.int8.onnx"
    read = intact.read_quantized(written, output=tmp_path / "read")
    assert min(intact.verify(Result.load(tmp_path / "read"), IDS).outputs_sqnr_db.values()) > 20
    assert read.plan.is_quantized(read.plan.graph.node("logits"))


@pytest.mark.parametrize(
    ("options", "why"),
    [({"keep_float": ["look"]}, "in float"), ({"bits": {"logits": 4}}, "with other scales")],
)
def test_why_a_table_is_stored_twice_is_said(options: dict[str, Any], why: str) -> None:
    result = intact.quantize(tied("transpose"), IDS, preset="fast", **options)
    (note,) = (each for each in result.plan.notes if "stored twice" in each.message)
    assert note.node == "logits"
    assert why in note.message


@pytest.mark.parametrize("form", ["transpose", "gemm"])
def test_the_size_in_float_is_that_of_the_given_model(form: str, tmp_path: Path) -> None:
    """Normalization may hold the table twice; in a folder and in memory it counts once."""
    model = tied(form)
    result = intact.quantize(model, IDS, preset="fast", output=tmp_path / "out")
    given = len(model.SerializeToString())
    for each in (result, Result.load(tmp_path / "out")):
        assert each.sizes()[0] == pytest.approx(given, rel=0.03)
    again = normalize(result.plan.graph.model).model
    assert given_bytes(again) == result.sizes()[0]


@pytest.mark.parametrize("form", ["transpose", "gemm"])
def test_floats_that_are_equal_are_stored_once(form: str, tmp_path: Path) -> None:
    """As in the given model: without that a decoder kept in float grew by its table."""
    kept = ["look", "logits"]
    intact.quantize(tied(form), IDS, preset="fast", keep_float=kept, output=tmp_path / "out")
    path = tmp_path / "out" / "model.int8.onnx"
    assert matrices(path) == [(WORDS, WIDTH)]
    (logits,) = onnxruntime.InferenceSession(path).run(None, IDS)
    (floats,) = onnxruntime.InferenceSession(tied(form).SerializeToString()).run(None, IDS)
    assert np.sum((logits - floats) ** 2) < 0.01 * np.sum(floats**2)
    one_float = intact.quantize(tied(form), IDS, preset="fast", keep_float=["logits"])
    one_float.save(tmp_path / "one")
    assert len(matrices(tmp_path / "one" / "model.int8.onnx")) == 2  # codes, and floats


def test_tables_of_float16_are_stored_as_such(tmp_path: Path) -> None:
    options: dict[str, Any] = {"float_type": "float16", "keep_float": ["look", "logits"]}
    intact.quantize(tied("transpose"), IDS, preset="fast", output=tmp_path / "out", **options)
    stored = onnx.load(tmp_path / "out" / "model.int8.onnx").graph.initializer
    large = [each for each in stored if np.prod(each.dims) >= WORDS * WIDTH]
    assert {each.data_type for each in large} == {onnx.TensorProto.FLOAT16}
