"""Shape inference: what onnx-ir's own pass finds, whatever the model holds."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from intact.graph import load_model
from intact.graph.files.quiet import quiet
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.shape_inference import infer
from intact.graph.traversal import graphs_of
from tests.models import MODELS, ModelBuilder


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
