"""Unique names that leave the model's own alone."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.graph import normalize
from intact.graph.passes.names import make_names_unique, protected_names
from intact.plan import Overrides, build_plan
from intact.targets import load_target
from tests import models


def test_odd_names_are_kept_where_unique() -> None:
    graph = normalize(models.odd_names())
    names = [node.name for node in graph.nodes]
    # Identity (named " ") is gone; the second "same" may not take "same_1", which has an owner.
    assert names == ["Relu_2", "same", "same_2", "same_1", "Relu_3", "Relu", "Relu_1"]
    values = {value.name for value in graph.values}
    assert {"ein Bild/0:1", "größe π 🙂", "a", "b", "val_0", "val_1", "out put"} <= values


@settings(max_examples=40, deadline=None)
@given(names=st.lists(st.sampled_from(["", "a", "a_1", "a_2", "Relu", "Relu_1", " "]), max_size=9))
def test_every_own_name_survives_once(names: list[str]) -> None:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    first, nodes = value, []
    for name in names:
        nodes.append(ir.node("Relu", [value], name=name or None))
        value = nodes[-1].outputs[0]
    graph = ir.Graph([first], [value], nodes=nodes, opset_imports={"": 17}, name="g")
    make_names_unique(ir.Model(graph, ir_version=8))
    given_names = [node.name for node in nodes]
    assert len(set(given_names)) == len(names)
    for name in set(names) - {""}:
        assert given_names[names.index(name)] == name
    assert all(value.name for node in nodes for value in node.outputs)


def test_outer_names_avoid_inner_ones() -> None:
    model = ir.from_proto(models.control_flow())
    next(iter(model.graph)).outputs[0].name = "then_branch_out"
    make_names_unique(model)
    assert next(iter(model.graph)).outputs[0].name == "then_branch_out_1"


def test_protection_undoes_what_a_library_does_to_names() -> None:
    model = ir.from_proto(models.residual_net())
    make_names_unique(model)
    before = [(node.name, node.outputs[0].name) for node in model.graph]
    constants = set(model.graph.initializers)
    with protected_names(model):
        for index, node in enumerate(tuple(model.graph)):
            node.name = f"node_{index}"
            new = ir.node(node.op_type, node.inputs, dict(node.attributes), name="conv_3")
            ir.convenience.replace_nodes_and_values(
                model.graph, node, [node], [new], node.outputs, new.outputs
            )
    assert [(node.name, node.outputs[0].name) for node in model.graph] == before
    assert set(model.graph.initializers) == constants


def test_new_values_never_take_an_old_name() -> None:
    model = ir.from_proto(models.residual_net())
    make_names_unique(model)
    relu = next(node for node in model.graph if node.op_type == "Relu")
    with protected_names(model):
        extra = ir.node("Neg", [relu.outputs[0]], name="Gemm_logits")
        extra.outputs[0].name = "image"
        derived = ir.node("Abs", [extra.outputs[0]])
        derived.outputs[0].name = f"{relu.outputs[0].name}/shape"
        model.graph.insert_after(relu, [extra, derived])
    assert extra.outputs[0].name == "image_1"
    assert derived.outputs[0].name == f"{relu.outputs[0].name}/shape"
    assert model.graph.inputs[0].name == "image"
    assert extra.name == "Neg_1"


def test_constants_replaced_under_one_name_are_both_kept() -> None:
    model = ir.from_proto(models.residual_net())
    make_names_unique(model)
    relus = [node for node in model.graph if node.op_type == "Relu"][:2]
    with protected_names(model):
        for number, relu in enumerate(relus):
            constant = ir.Value(name="limit", const_value=ir.tensor([float(number)], name="limit"))
            model.graph.initializers["limit"] = constant
            relu.resize_inputs(2)
            relu.replace_input_with(1, constant)
    arrays = []
    for relu in relus:
        value = relu.inputs[1]
        assert value is not None
        assert value.is_initializer()
        assert value.const_value is not None
        arrays.append(float(value.const_value.numpy()[0]))
    assert arrays == [0.0, 1.0]
    assert len({relu.inputs[1].name for relu in relus if relu.inputs[1]}) == 2


def test_an_unnamed_node_is_not_called_like_its_operator() -> None:
    """Or else what is asked for one node would hold for all of its type."""
    b = models.ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    for _ in range(2):
        x = b.node("Relu", b.node("Conv", x, b.weight(4, 4, 1, 1), name=""), name="")
    b.output(x)
    graph = normalize(b.build())
    assert [node.name for node in graph.nodes] == ["Conv_1", "Relu_1", "Conv_2", "Relu_2"]
    plan = build_plan(graph, load_target("onnxruntime"), Overrides(keep_float=("Conv_1",)))
    assert [n for n, each in plan.decisions.items() if not each.quantized] == ["Conv_1", "Relu_1"]
    both = build_plan(graph, load_target("onnxruntime"), Overrides(keep_float=("Conv",)))
    assert not any(each.quantized for each in both.decisions.values())
