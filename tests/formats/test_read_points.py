"""Configs of a read model that do not depend on its format."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from intact.config import QuantState
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import QuantizedGraph
from intact.targets import load_target
from tests.models import ModelBuilder, residual_net
from tests.plans import calibrated, conv, image


def reread(model: onnx.ModelProto, target: str) -> QuantizedGraph:
    written = write_qdq(calibrated(model, target)).model
    return read_qdq(ir.to_proto(written), load_target(target))


def sum_without_relu() -> onnx.ModelProto:
    b = ModelBuilder()
    x = image(b)
    b.node("Add", conv(b, x, "a"), conv(b, x, "b"), out="sum", name="add")
    conv(b, "sum", "last")
    b.output("last_out")
    return b.build()


@pytest.mark.parametrize("model", [residual_net(17), sum_without_relu()], ids=["relu", "alone"])
def test_a_sum_inside_a_product_where_the_target_fuses_them(model: onnx.ModelProto) -> None:
    original, read = calibrated(model, "tensorrt"), reread(model, "tensorrt")
    add = next(node for node in read.graph.nodes if node.op_type == "Add")
    assert read.is_quantized(add)
    for plan in (original, read):
        sources = [value.producer() for value in add.inputs if value is not None]
        states = [
            plan.configs[end].state is QuantState.OVERLAPPED
            for node in sources
            if node is not None
            for end in plan.configs
            if end.node == node.name and str(end.direction) == "output"
        ]
        # The Relu's result is quantized for the first product too; one product is fused.
        assert states.count(True) == 1


def test_nothing_is_fused_where_the_target_does_not() -> None:
    read = reread(sum_without_relu(), "onnxruntime")
    states = {end: config.state for end, config in read.configs.items() if end.node in ("a", "b")}
    assert QuantState.OVERLAPPED not in {
        state for end, state in states.items() if str(end.direction) == "output"
    }
