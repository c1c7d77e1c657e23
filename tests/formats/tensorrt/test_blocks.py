"""Weights in blocks for TensorRT: int4 behind a Dequantize, by its documents."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import intact
from intact.errors import ExportError
from intact.formats.tensorrt.verify import RULES, WrittenModel
from intact.formats.tensorrt.write import TensorRtModel
from intact.graph import Graph
from intact.results.result import Result
from tests.models import ModelBuilder

X = np.random.default_rng(0).normal(size=(5, 128)).astype(np.float32)
RULE = next(text for text in RULES if "blocks" in text)


def net() -> onnx.ModelProto:
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 128])
    b.node("MatMul", x, b.weight(128, 64), out="a", name="plain")
    b.node("Gemm", "a", b.weight(64, 64), b.weight(64), out="c", name="turned", transB=1)
    b.node("MatMul", "c", b.weight(64, 7), out="d", name="narrow")
    b.node("MatMul", "d", b.weight(7, 3), out="y", name="short")
    b.output("y")
    return b.build()


def quantized() -> Result:
    return intact.quantize(net(), target="tensorrt", block=64)


def content(result: Result) -> bytes:
    found = result.exports["tensorrt"]
    assert isinstance(found, TensorRtModel)
    return bytes(ir.to_proto(found.model).SerializeToString())


def test_weights_are_int4_where_they_lie_and_read_back() -> None:
    result = quantized()
    model = onnx.load_from_string(content(result))
    named = {each.name: each for each in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            codes, scales = (named[name] for name in node.input)
            assert codes.data_type == onnx.TensorProto.INT4
            assert (numpy_helper.to_array(scales) > 0).all()
            found[tuple(codes.dims)] = tuple(scales.dims), options
    assert found == {
        (128, 64): ((2, 64), {"axis": 0, "block_size": 64}),
        (64, 64): ((64, 1), {"axis": 1, "block_size": 64}),
        (64, 7): ((1, 7), {"axis": 0, "block_size": 64}),
    }
    report = intact.verify(result, X)
    assert not any(report.rules.values())
    assert report.outputs[0].mismatches == 0
    again = intact.read_quantized(model, target="tensorrt")
    arrays = [numpy_helper.to_array(each) for each in model.graph.initializer]
    back = onnx.load_from_string(content(again)).graph.initializer
    for one, other in zip(arrays, map(numpy_helper.to_array, back), strict=True):
        np.testing.assert_array_equal(one, other)


def broken(change: Callable[[onnx.ModelProto], None]) -> list[str]:
    """What the rule says of a file with something else in it."""
    result = quantized()
    model = onnx.load_from_string(content(result))
    change(model)
    graph: Graph = result.plan.graph
    return list(RULES[RULE](WrittenModel(ir.from_proto(model), {}, graph)))


def scale_of_negative(model: onnx.ModelProto) -> None:
    for each in model.graph.initializer:
        if "scales" in each.name:
            each.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(each), each.name))


def other_size(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for each in node.attribute:
            if each.name == "block_size":
                each.i = 32


def other_reader(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.input[:] = node.input[::-1]


@pytest.mark.parametrize(
    ("change", "places"),
    [(lambda _: None, 0), (scale_of_negative, 3), (other_size, 3), (other_reader, 2)],
)
def test_the_rule_finds_what_breaks_it(
    change: Callable[[onnx.ModelProto], None], places: int
) -> None:
    assert len(broken(change)) == places


def test_what_others_have_in_blocks_is_refused_where_tensorrt_has_none() -> None:
    small = intact.quantize(net(), target="onnxruntime", block=32)
    model = onnx.load_from_string(small.exported.message or b"")
    with pytest.raises(ExportError, match="blocks of 32 with 4 bits, it has those of 64 or 128"):
        intact.read_quantized(model, target="tensorrt")
    signed = intact.quantize(net(), target="onnxruntime", block=64)
    model = onnx.load_from_string(signed.exported.message or b"")
    with pytest.raises(ExportError, match="negative scales"):
        intact.read_quantized(model, target="tensorrt")
