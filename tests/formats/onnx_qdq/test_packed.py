"""Weights of 4 bits and fewer: two codes a byte in the file, bytes in the runtime's kernels."""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from intact.formats.onnx_qdq.executed import float_leftovers
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import QdqModel, write_qdq
from intact.plan import Overrides, QuantizedGraph
from tests.formats.onnx_qdq.pairs import PairBuilder, assert_exact, assert_same_outputs, read
from tests.models import ModelBuilder, random_inputs, residual_net, transformer_block
from tests.plans import calibrated, config

pytestmark = pytest.mark.runtime_fact("onnxruntime")


def dense_net() -> onnx.ModelProto:
    """A Gemm of an odd number of weights, and two MatMuls that share theirs."""
    b = ModelBuilder()
    x = b.node("Gemm", b.input("x", ["batch", 5]), b.weight(5, 7), b.weight(7), name="gemm")
    shared = b.weight(7, 7)
    x = b.node("MatMul", b.node("Relu", x, name="relu"), shared, name="first")
    b.node("MatMul", x, shared, out="y", name="second")
    b.output("y")
    return b.build()


def narrow(model: onnx.ModelProto, bits: int = 4) -> tuple[QuantizedGraph, QdqModel]:
    plan = calibrated(model, overrides=Overrides(weight_bits=bits))
    return plan, write_qdq(plan)


def packed(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    return {n: t for n, t in tensors.items() if t is not None and t.dtype.bitwidth == 4}


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("make", [residual_net, transformer_block, dense_net])
def test_integer_kernels_compute_the_bits_of_the_plan(
    make: Callable[[], onnx.ModelProto], bits: int
) -> None:
    model = make()
    plan, written = narrow(model, bits)
    onnx.checker.check_model(ir.to_proto(written.model))
    found = verify_qdq(plan, written, [dict(random_inputs(model, seed=1))], threads=1)
    assert found.layers
    assert sum(each.mismatches for each in (*found.layers, *found.end_to_end)) == 0
    quantized = [name for name, decision in plan.decisions.items() if decision.quantized]
    assert float_leftovers(written.model, quantized) == {}


def test_the_file_holds_two_codes_a_byte_and_the_note_says_what_that_saves() -> None:
    _, written = narrow(dense_net())
    sizes = {tensor.size: tensor.nbytes for tensor in packed(written.model).values()}
    assert sizes == {35: 18, 49: 25}
    (note,) = [str(note) for note in written.notes if "int4" in str(note)]
    assert "2 constant(s) take 42 bytes as int4 instead of 84 as int8" in note


def test_the_runtime_keeps_no_cast_of_a_weight() -> None:
    _, written = narrow(residual_net())
    assert any(node.op_type == "Cast" for node in written.model.graph)
    options = ort.SessionOptions()
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/fused.onnx"
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        proto = ir.to_proto(written.model).SerializeToString()
        ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
        nodes = onnx.load(f"{folder}/fused.onnx").graph.node
    kinds = collections.Counter(node.op_type for node in nodes)
    assert kinds["QLinearConv"] == sum(n.op_type == "Conv" for n in written.model.graph) > 0
    assert {"Cast", "Conv"} & set(kinds) == set()


@pytest.mark.parametrize("make", [residual_net, dense_net])
def test_what_is_read_is_written_again(make: Callable[[], onnx.ModelProto]) -> None:
    _, written = narrow(make())
    proto = ir.to_proto(written.model)
    again = write_qdq(read(proto))
    assert_same_outputs(proto, again.model)
    before, after = (
        sorted(tensor.tobytes() for tensor in packed(each.model).values())
        for each in (written, again)
    )
    assert before == after
    assert [str(note) for note in again.notes if "int4" in str(note)]


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_the_range_of_codes_behind_a_cast_is_that_of_their_type(kind: str) -> None:
    b = PairBuilder(21)
    wide = np.int8 if kind == "int4" else np.uint8
    codes = b.constant(np.arange(7 * 16).reshape(16, 7).astype(getattr(ml_dtypes, kind)))
    to = helper.np_dtype_to_tensor_dtype(np.dtype(wide))
    weight = b.dequantize(b.node("Cast", codes, to=to), np.float32(0.1), wide(3))
    x = b.node("MatMul", b.pair(b.input("x", ["n", 16])), weight, name="product")
    b.pair(x, out="y")
    b.output("y")
    plan, _ = assert_exact(b.build())
    assert config(plan, "product.input[1]").bits == 4


def test_a_cast_to_another_type_is_left_alone() -> None:
    b = PairBuilder(21)
    codes = b.constant(np.ones((4, 4), ml_dtypes.int4))
    floats = b.node("Cast", codes, to=TensorProto.FLOAT)
    x = b.node("MatMul", b.pair(b.input("x", ["n", 4])), floats, name="product")
    b.pair(x, out="y")
    b.output("y")
    assert not read(b.build()).decisions["product"].quantized
