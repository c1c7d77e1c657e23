"""Tables of codes that a Gather reads: numbers before it, with the scales of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from intact.config import PerChannel, QuantState
from intact.errors import ModelError
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import QuantizedGraph
from tests.formats.onnx_qdq.pairs import (
    PairBuilder,
    assert_exact,
    assert_same_outputs,
    finish,
    read,
)
from tests.models import ModelBuilder
from tests.plans import config

WORDS, WIDTH = 9, 16
INT8, UINT8 = np.int8(3), np.uint8(117)
IDS = [{"ids": np.array([[0, 8, 3], [-1, 1, 5]])}]
ROW = [{"ids": np.array([0, 8, -2, 3])}]


def codes_of(b: PairBuilder, zero: Any, shape: tuple[int, ...] = (WORDS, WIDTH)) -> str:
    low = 0 if np.asarray(zero).dtype.kind == "u" else -127
    kind = np.int8 if low else np.uint8
    return b.constant(b.random.integers(low, low + 250, shape).astype(kind))


def ids_of(b: PairBuilder, rank: int = 2) -> str:
    return b.input("ids", [2, 3][:rank] if rank > 1 else [4], TensorProto.INT64)


def found(b: PairBuilder, table: str, ids: str, **more: Any) -> str:
    return b.node("Gather", table, ids, name="words", **more)


def dense(b: PairBuilder, x: str) -> str:
    weight = b.stored((WIDTH, 4), axis=None)
    return b.pair(b.node("MatMul", x, weight, name="dense"), 0.5, INT8, out="y")


def table_of(plan: QuantizedGraph) -> Any:
    table = config(plan, "words.input[0]")
    assert table.state is QuantState.BAKED
    return table


@pytest.mark.parametrize("zero", [INT8, UINT8, np.int8(0)])
def test_one_scale(zero: Any) -> None:
    b = PairBuilder()
    dequantized = b.dequantize(found(b, codes_of(b, zero), ids_of(b)), 0.02, zero)
    plan, _ = assert_exact(finish(b, dense(b, dequantized)), IDS)
    assert plan.is_quantized(plan.graph.node("dense"))
    assert table_of(plan).scale == np.float32(0.02)
    assert table_of(plan).offset == zero


def test_no_zero_point() -> None:
    b = PairBuilder()
    b.dequantize(found(b, codes_of(b, INT8), ids_of(b)), 0.02, None, out="y")
    plan, _ = assert_exact(finish(b, "y"), IDS)
    assert table_of(plan).quant_min == -128


def test_codes_are_moved_before() -> None:
    b = PairBuilder()
    moved = b.node("Transpose", found(b, codes_of(b, UINT8), ids_of(b)), perm=[0, 2, 1])
    b.dequantize(moved, 0.02, UINT8, out="y")
    plan, _ = assert_exact(finish(b, "y"), IDS)
    assert table_of(plan).offset == 117


def test_operators_on_codes() -> None:
    b = PairBuilder()
    b.domains["com.microsoft"] = 1
    ids, table = ids_of(b), codes_of(b, UINT8)
    parameters = [b.constant(np.asarray(0.02, np.float32)), b.constant(np.asarray(UINT8))]
    words = [found(b, table, ids), *parameters]
    total = b.node("QLinearAdd", *words, *words, *parameters, domain="com.microsoft")
    b.dequantize(total, 0.02, UINT8, out="y")
    plan, _ = assert_exact(finish(b, "y"), IDS)
    assert table_of(plan).scale == np.float32(0.02)


def steps(count: int) -> np.ndarray:
    return np.linspace(0.01, 0.05, count, dtype=np.float32)


@pytest.mark.parametrize(("axis", "of_found"), [(0, 2), (0, -1), (1, 0)])
def test_scales_of_columns(axis: int, of_found: int) -> None:
    b = PairBuilder()
    shape = (WORDS, WIDTH) if axis == 0 else (WIDTH, WORDS)
    words = found(b, codes_of(b, INT8, shape), ids_of(b), axis=axis)
    zeros = np.arange(WIDTH).astype(np.int8)
    b.dequantize(words, steps(WIDTH), zeros, axis=of_found, out="y")
    plan, _ = assert_exact(finish(b, "y"), IDS)
    assert table_of(plan).granularity == PerChannel(1 - axis)
    np.testing.assert_array_equal(table_of(plan).scale, steps(WIDTH))


@pytest.mark.parametrize("has_zero", [False, True])
def test_scales_of_rows(has_zero: bool) -> None:
    b = PairBuilder()
    ids, zeros = ids_of(b, 1), np.arange(WORDS).astype(np.uint8)
    inputs = [found(b, codes_of(b, UINT8), ids)]
    parts = (steps(WORDS), zeros)[: 1 + has_zero]
    inputs += [b.node("Gather", b.constant(each), ids) for each in parts]
    b.node("DequantizeLinear", *inputs, axis=0, out="y")
    model = finish(b, "y")
    plan = read(model)
    assert_same_outputs(model, write_qdq(plan).model, ROW)
    assert table_of(plan).granularity == PerChannel(0)
    np.testing.assert_array_equal(table_of(plan).scale, steps(WORDS))


def test_scales_of_other_rows_are_refused() -> None:
    b = PairBuilder()
    ids = ids_of(b, 1)
    scales = b.node("Gather", b.constant(steps(WORDS)), b.node("Abs", ids))
    b.node("DequantizeLinear", found(b, codes_of(b, INT8), ids), scales, axis=0, out="y", name="q")
    with pytest.raises(ModelError, match=r"'q' .*scales are neither those of the rows nor of the"):
        read(finish(b, "y"))


def test_integers_that_nothing_dequantizes_stay() -> None:
    b = PairBuilder()
    words = b.node("Cast", found(b, codes_of(b, INT8), ids_of(b)), to=TensorProto.FLOAT)
    dense(b, b.pair(words, 0.5, INT8))
    plan, _ = assert_exact(finish(b, "y"), IDS)
    assert config(plan, "words.input[0]").state is not QuantState.BAKED


def test_what_onnx_runtimes_own_quantizer_writes(tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    b = ModelBuilder()
    words = b.node("Gather", b.weight(WORDS, WIDTH), b.input("ids", [2, 3], TensorProto.INT64))
    b.node("MatMul", words, b.weight(WIDTH, 4), out="y", name="dense")
    b.output("y")
    onnx.save(b.build(), tmp_path / "float.onnx")

    class Once(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._feeds = iter(IDS)

        def get_next(self) -> Any:
            return next(self._feeds, None)

    unsigned = quantization.QuantType.QUInt8
    quantization.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "codes.onnx",
        Once(),
        quant_format=quantization.QuantFormat.QOperator,
        activation_type=unsigned,
        weight_type=unsigned,
    )
    model = onnx.load(tmp_path / "codes.onnx")
    assert "QLinearMatMul" in {node.op_type for node in model.graph.node}
    plan, _ = assert_exact(model, IDS)
    assert all(plan.is_quantized(node) for node in plan.graph.nodes)
