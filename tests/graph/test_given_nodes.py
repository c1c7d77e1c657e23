"""What became of the given model's nodes: folded, joined, of another type, or gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact.errors import ModelError
from intact.graph import Graph, normalize
from intact.graph.given_nodes import METADATA_KEY
from intact.graph.passes.expand import expand
from intact.plan import Overrides
from intact.plan.preparation import graphs_for
from intact.targets import load_target
from tests.models import ModelBuilder


def _named(b: ModelBuilder, name: str, made: str) -> str:
    b.nodes[-1].name = name
    return made


def scoped() -> ModelBuilder:
    """A stem with Pad, BatchNormalization and Identity, and a head with a written-out Gelu."""
    b = ModelBuilder(17)
    x = b.input("x", ["N", 3, 8, 8])
    x = b.node("Pad", x, b.ints(0, 0, 1, 1, 0, 0, 1, 1), name="/stem/pad")
    x = b.node("Conv", x, b.weight(8, 3, 3, 3), name="/stem/conv")
    x = _named(b, "/stem/bn", b.batch_norm(x, 8))
    x = b.node("Identity", x, name="/stem/id")
    wide = b.node("Erf", b.node("Div", x, b.scalar(2**0.5), name="/head/div"), name="/head/erf")
    gate = b.node("Mul", x, b.node("Add", wide, b.scalar(1), name="/head/add"), name="/head/gate")
    x = b.node("Mul", gate, b.scalar(0.5), name="/head/half")
    b.node("Conv", x, b.weight(4, 8, 1, 1), out="y", name="/head/conv")
    b.output("y")
    return b


def into(graph: Graph) -> dict[str, set[str]]:
    return {name: set(given.nodes) for name, given in graph.given_nodes.items()}


def test_folded_nodes_belong_to_what_computes_them_now() -> None:
    graph = normalize(scoped().build())
    found = into(graph)
    assert found["/stem/pad"] == found["/stem/bn"] == {"/stem/conv"}
    assert found["/stem/id"] == {"/head/div", "/head/gate"}
    assert found["/head/div"] == {"/head/div"}  # a Mul now
    assert graph.given_nodes["/head/div"].op_type == "Div"
    assert "/stem/conv" not in found


def test_parts_of_a_joined_operator_belong_to_it_whatever_was_folded_before() -> None:
    (graph,) = graphs_for(normalize(scoped().build()), [load_target("onnxruntime")])
    (gelu,) = (str(node.name) for node in graph.nodes if node.op_type == "Gelu")
    found = into(graph)
    for part in ("div", "erf", "add", "gate", "half"):
        assert found[f"/head/{part}"] == {gelu}
    assert found["/stem/bn"] == {"/stem/conv"}
    assert found["/stem/id"] == {gelu}


def test_an_expanded_operator_stands_for_its_parts() -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["N", 4, 8]), b.weight(8, 8), name="dense")
    ones = b.constant(np.linspace(1, 2, 8, dtype=np.float32))
    b.node("LayerNormalization", x, ones, b.weight(8), out="y", name="norm")
    b.output("y")
    graph = expand(normalize(b.build()), ["LayerNormalization"])
    new = {str(node.name) for node in graph.nodes} - {"dense"}
    assert into(graph)["norm"] == new or "norm" in new


def test_what_no_output_needs_is_left_out() -> None:
    b = scoped()
    b.node("Relu", "x", name="/dead/relu")
    assert into(normalize(b.build()))["/dead/relu"] == set()


def test_a_size_that_is_computed_for_much_belongs_to_nothing() -> None:
    b = ModelBuilder(17)
    x = b.input("x", ["N", 4])
    size = b.node("Shape", x, name="size")
    for count in range(40):
        b.node("Reshape", b.node("Relu", x), size, out=f"y{count}")
        b.output(f"y{count}")
    assert into(normalize(b.build())).get("size", set()) == set()


def test_normalizing_what_was_normalized_keeps_the_names() -> None:
    once = normalize(scoped().build())
    assert into(normalize(once.model)) == into(once)


def test_damaged_metadata_are_refused() -> None:
    graph = normalize(scoped().build())
    graph.model.metadata_props[METADATA_KEY] = '{"a": 3}'
    with pytest.raises(ModelError, match="metadata"):
        _ = graph.given_nodes


@pytest.mark.parametrize("name", ["up", ""])
@pytest.mark.parametrize(
    ("opset", "op_type", "attributes", "now"),
    [
        (7, "Upsample", {"scales": [1.0, 1.0, 2.0, 2.0]}, "Resize"),
        (9, "Scatter", {"axis": 1}, "ScatterElements"),
    ],
)
def test_nodes_of_old_opsets_answer_to_the_type_that_they_had(
    opset: int, op_type: str, attributes: dict[str, Any], now: str, name: str
) -> None:
    b = ModelBuilder(opset)
    x = b.conv(b.input("x", ["N", 3, 4, 4]), 3, 8)
    inputs = [x]
    if op_type == "Scatter":
        inputs += [b.constant(np.zeros((1, 1, 4, 4), np.int64)), b.weight(1, 1, 4, 4)]
    x = b.node(op_type, *inputs, name=name, **attributes)
    b.output(b.conv(x, 8, 4))
    graph = normalize(b.build())
    (node,) = [each for each in graph.nodes if each.op_type == now]
    assert graph.given_nodes[str(node.name)].op_type == op_type
    for asked in (op_type, now, str(node.name)):
        kept = Overrides(keep_float=(asked,)).resolved(graph).overrides.keep_float
        assert {now if each == now else str(node.name) for each in kept} == set(kept)
