"""Fake quantizers of plain operators are read as those of one operator are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.formats.base.format import FloatSource, QuantizedSource
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.registry import open_model
from intact.targets import load_target
from tests import models
from tests.models import ModelBuilder

FORMS = ("mul", "div", "zero_behind", "zero_before", "clip_first")


def quantizer(
    b: ModelBuilder, x: str, scale: float | np.ndarray, form: str, zero: int, *, undone: float = 1
) -> str:
    step, low, high = np.asarray(scale, np.float32), -128, 127
    if form == "mul":
        x = b.node("Mul", x, b.constant((1 / step).astype(np.float32)))
    else:
        x = b.node("Div", x, b.constant(step))
    z = b.scalar(zero)
    if form == "zero_before":
        x = b.node("Add", x, z)
    if form == "clip_first":
        x = b.clip(x, low, high)
    x = b.node("Round", x)
    if form == "zero_behind":
        x = b.node("Add", z, x)
    if form != "clip_first":
        x = b.clip(x, low, high)
    if form in ("zero_before", "zero_behind"):
        x = b.node("Sub", x, z)
    return b.node("Mul", b.constant((step * undone).astype(np.float32)), x)


def net(form: str, *, undone: float = 1) -> onnx.ModelProto:
    b = ModelBuilder(17)
    zero = 3 if form.startswith("zero") else 0
    x = quantizer(b, b.input("x", ["N", 4, 6, 6]), 0.03, form, zero)
    scales = np.linspace(0.004, 0.01, 5, dtype=np.float32).reshape(5, 1, 1, 1)
    weight = quantizer(b, b.weight(5, 4, 1, 1), scales, "mul" if form == "mul" else "div", 0)
    y = b.node("Conv", x, weight, name="conv")
    b.nodes[-1].output[0] = y
    quantizer(b, y, 0.05, form, zero, undone=undone)
    b.nodes[-1].output[0] = "y"
    b.output("y")
    return b.build()


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_written_out_quantizer_are_read_with_their_numbers(form: str) -> None:
    source = open_model(net(form))
    assert isinstance(source, QuantizedSource)
    plan = source.plan(load_target(source.target))
    assert [node.op_type for node in plan.graph.nodes] == ["Conv"]
    node = plan.graph.nodes[0]
    data, weight, result = (
        plan.input_config(node, 0),
        plan.input_config(node, 1),
        plan.output_config(node),
    )
    zero = 3 if form.startswith("zero") else 0
    for config, scale in ((data, 0.03), (result, 0.05)):
        assert config.dominator.scale == pytest.approx(scale, rel=1e-6)
        assert config.dominator.params is not None
        assert int(config.dominator.params.zero_point) == zero
    assert weight.scale is not None
    np.testing.assert_allclose(weight.scale.ravel(), np.linspace(0.004, 0.01, 5), rtol=1e-6)


def test_what_is_no_quantizer_stays_a_float_model() -> None:
    assert isinstance(open_model(net("div", undone=1.01)), QuantizedSource)  # the others are
    b = ModelBuilder(17)
    x = b.node("Round", b.node("Mul", b.input("x", ["N", 4]), b.scalar(10.0)))
    b.node("Mul", b.clip(x, -5, 5.5), b.scalar(0.1), out="y")
    b.output("y")
    assert isinstance(open_model(b.build()), FloatSource)
    assert isinstance(open_model(models.residual_net()), FloatSource)


def test_nothing_else_is_changed() -> None:
    model = net("zero_behind", undone=1.01)
    plan = read_qdq(model, load_target("onnxruntime"))
    assert "Round" in {node.op_type for node in plan.graph.nodes}
