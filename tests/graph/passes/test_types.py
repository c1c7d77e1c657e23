"""Element types behind operators that ONNX does not know."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from intact.graph import load_model, normalize
from intact.graph.files.quiet import quiet
from intact.graph.passes import types
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.types import infer
from intact.graph.traversal import graphs_of
from tests import models, odd
from tests.models import MODELS, ModelBuilder


def test_the_runtime_knows_its_own_operators() -> None:
    graph = normalize(odd.contrib_operator())
    assert {value.dtype for value in graph.values} == {ir.DataType.FLOAT}
    assert all(value.shape is not None for value in graph.values)


def test_types_that_change_are_not_guessed() -> None:
    b = ModelBuilder()
    b.domains["com.microsoft"] = 1
    grid = (b.scalar(0.1), b.constant(np.uint8(3)))
    x = b.input("x", ["n", 6])
    codes = b.node("QuantizeLinear", x, *grid, domain="com.microsoft", out="codes")
    codes = b.node("Reshape", codes, b.ints(-1, 3), out="moved")
    x = b.node("DequantizeLinear", codes, *grid, domain="com.microsoft", out="numbers")
    b.node("Relu", x, out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [graph.value(name).dtype for name in ("codes", "moved", "numbers", "y")] == [
        ir.DataType.UINT8,
        ir.DataType.UINT8,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT,
    ]


def test_what_the_runtime_refuses_stays_unknown() -> None:
    graph = normalize(models.custom_domain())
    assert any(value.dtype is None for value in graph.values)


def test_it_is_not_asked_where_types_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "_inferred_by_runtime", lambda _: pytest.fail("it was asked"))
    for name in ("residual", "transformer", "detector", "control_flow"):
        normalize(models.MODELS[name].build(18))


def _known(model: ir.Model) -> list[tuple[str | None, str, str]]:
    return [
        (value.name, str(value.dtype), str(value.shape))
        for graph in graphs_of(model)
        for node in graph
        for value in node.outputs
    ]


@pytest.mark.parametrize("name", MODELS)
def test_types_and_shapes_are_those_of_the_library(name: str) -> None:
    model = load_model(MODELS[name].build(18))
    make_names_unique(model)
    for node in (each for graph in graphs_of(model) for each in graph):
        for value in node.outputs:
            value.shape = None
    reference = model.clone()
    weights = list(model.graph.initializers)
    with quiet():
        modified = common.ShapeInferencePass(check_type=False, strict_mode=False)(reference)
        assert infer(model) == modified.modified
        assert not infer(model)
    assert _known(model) == _known(reference)
    assert list(model.graph.initializers) == weights


def test_lengths_that_constants_say_are_used_and_weights_are_not_lost() -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["N", 64]), b.weight(64, 64))
    b.output(b.node("Reshape", x, b.constant(np.array([-1, 8, 8]))))
    model = load_model(b.build())
    assert infer(model)
    assert str(model.graph.node(1).outputs[0].shape)[1:].endswith("8,8]")
    assert all(value.const_value is not None for value in model.graph.initializers.values())


def test_a_model_that_is_rejected_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(MODELS["residual"].build(18))
    before = _known(model), list(model.graph.initializers), list(model.graph.inputs)
    model.graph.inputs[0].dtype = ir.DataType.STRING
    infer(model)
    assert (list(model.graph.initializers), list(model.graph.inputs)) == before[1:]
