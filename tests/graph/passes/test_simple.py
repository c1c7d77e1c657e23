"""Models that onnxscript would leave alone, and which therefore do not load it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from intact.graph import load_model
from intact.graph.graph import model_digest
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from tests.models import MODELS, ModelBuilder


def prepared(model: ir.Model) -> ir.Model:
    """Do what `normalize` does before it folds."""
    make_names_unique(model)
    library.lift_constants(model)
    library.remove_unused(model)
    library.infer_shapes(model)
    return model


def shapes(model: ir.Model) -> list[tuple[str, str]]:
    """List what is known of every computed value."""
    return [(str(v.type), str(v.shape)) for node in model.graph for v in node.outputs]


@pytest.mark.parametrize("name", ["residual", "transposed", "sequence"])
def test_simple_model_is_left_alone_by_folding_and_rules(name: str) -> None:
    model = prepared(load_model(MODELS[name].build(18)))
    assert library.is_simple(model)
    before = model_digest(model), shapes(model)
    assert not library.fold_constants(model)
    assert not library.apply_rules(model)
    assert (model_digest(model), shapes(model)) == before


def conv_net(auto_pad: str | None) -> ir.Model:
    """Build a convolution and an activation."""
    b = ModelBuilder()
    inputs = b.input("x", ["N", 3, 8, 8]), b.weight(4, 3, 3, 3)
    x = b.node("Conv", *inputs) if auto_pad is None else b.node("Conv", *inputs, auto_pad=auto_pad)
    b.output(b.node("Relu", x))
    return prepared(load_model(b.build()))


@pytest.mark.parametrize("auto_pad", ["NOTSET", None])
def test_plain_convolutions_are_simple(auto_pad: str | None) -> None:
    assert library.is_simple(conv_net(auto_pad))


def test_convolution_that_pads_by_itself_is_not_simple() -> None:
    assert not library.is_simple(conv_net("SAME_UPPER"))


def test_node_that_reads_constants_alone_is_not_simple() -> None:
    b = ModelBuilder()
    total = b.node("Add", b.weight(4), b.weight(4))
    b.output(b.node("Mul", b.input("x", ["N", 4]), total))
    assert not library.is_simple(prepared(load_model(b.build())))


def test_shape_computation_is_not_simple() -> None:
    b = ModelBuilder()
    x = b.input("x", ["N", 4])
    b.output(b.node("Reshape", x, b.node("Shape", x)))
    assert not library.is_simple(prepared(load_model(b.build())))
