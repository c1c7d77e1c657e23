"""Models that onnxscript would leave alone, and which therefore do not load it."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def moved(operator: str, *operands: Any, **attributes: Any) -> ir.Model:
    """Build a node that moves the floats ``x`` ``[N, 4, 1, 6]``."""
    b = ModelBuilder()
    inputs = [b.input("x", ["N", 4, 1, 6])]
    inputs += [each if isinstance(each, str) else b.constant(each) for each in operands]
    b.output(b.node(operator, *inputs, **attributes))
    return prepared(load_model(b.build()))


MOVES = {
    "reshape": moved("Reshape", np.array([-1, 24])),
    "reshape_of_the_same_rank": moved("Reshape", np.array([-1, 1, 6, 4])),
    "transpose": moved("Transpose", perm=[0, 2, 3, 1]),
    "transpose_without_axes": moved("Transpose"),
    "concat": moved("Concat", "x", axis=1),
    "slice": moved("Slice", *(np.array([each]) for each in (1, 3, 1))),
    "squeeze": moved("Squeeze", np.array([2])),
    "unsqueeze": moved("Unsqueeze", np.array([2])),
}


@pytest.mark.parametrize("name", MOVES)
def test_movement_of_floats_is_left_alone(name: str) -> None:
    model = MOVES[name]
    assert library.is_simple(model)
    before = model_digest(model), shapes(model)
    assert not library.fold_constants(model)
    assert not library.apply_rules(model)
    assert (model_digest(model), shapes(model)) == before


FOLDED = {
    "transpose": moved("Transpose", perm=[0, 1, 2, 3]),
    "slice": moved("Slice", *(np.array([each]) for each in (0, 4, 1, 1))),
    "concat_of_one": moved("Concat", axis=1),
    "concat_with_nothing": moved("Concat", np.zeros((1, 0, 1, 6), np.float32), axis=1),
}


@pytest.mark.parametrize("name", FOLDED)
def test_movement_that_changes_nothing_is_not_simple(name: str) -> None:
    model = FOLDED[name]
    assert not library.is_simple(model)
    assert library.fold_constants(model) or library.apply_rules(model)


@pytest.mark.parametrize(
    ("operator", "first", "second"),
    [
        ("Transpose", {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}),
        ("Reshape", np.array([-1, 24]), np.array([-1, 6, 4])),
        ("Unsqueeze", np.array([2]), np.array([1])),
    ],
)
def test_two_movements_are_joined(operator: str, first: Any, second: Any) -> None:
    b = ModelBuilder()
    x = b.input("x", ["N", 4, 1, 6])
    for each in (first, second):
        if isinstance(each, dict):
            x = b.node(operator, x, **each)
        else:
            x = b.node(operator, x, b.constant(each))
    b.output(x)
    model = prepared(load_model(b.build()))
    assert not library.is_simple(model)
    assert library.apply_rules(model)


def test_the_library_has_nothing_for_operators_that_are_simple() -> None:
    from onnxscript.optimizer._constant_folding import registry

    from intact.graph.passes.rules import simplifying_rules

    folded = {op_type for domain, op_type in registry.op_evaluators if domain == ""}
    ends = {
        op_type
        for rule in simplifying_rules()
        for domain, op_type, _ in [rule._target_pattern._nodes[-1].op_identifier()]
    }
    assert (folded - {"Abs", "Add"}) | (ends - {"Conv"}) <= library._SIMPLIFIED


@pytest.mark.parametrize("operator", ["Sum", "Abs", "Mean", "Sin", "CumSum"])
def test_arithmetic_is_simple(operator: str) -> None:
    b = ModelBuilder()
    x = b.input("x", ["N", 4])
    inputs = [x, b.constant(np.array(1))] if operator == "CumSum" else [x]
    b.output(b.node(operator, *inputs))
    model = prepared(load_model(b.build()))
    assert library.is_simple(model)
    before = model_digest(model), shapes(model)
    assert not library.fold_constants(model)
    assert not library.apply_rules(model)
    assert (model_digest(model), shapes(model)) == before
