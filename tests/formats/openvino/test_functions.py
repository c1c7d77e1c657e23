"""A model's own functions where they are called."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from intact.errors import ExportError
from intact.formats.openvino.write import inline_functions

IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """A chain of calls; ``Relu`` is the operator."""
    names = ["x", *(f"t{number}" for number in range(1, len(calls))), "y"]
    nodes = [
        helper.make_node(
            call, [names[place]], [names[place + 1]], domain="" if call == "Relu" else "own"
        )
        for place, call in enumerate(calls)
    ]
    return helper.make_function("own", name, ["x"], ["y"], nodes, IMPORTS)


def model(*functions: onnx.FunctionProto) -> ir.Model:
    """A model that calls ``F0``."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "ab"]
    call = helper.make_node("F0", ["a"], ["b"], domain="own", name="call")
    graph = helper.make_graph([call], "graph", ports[:1], ports[1:])
    return ir.from_proto(
        helper.make_model(graph, opset_imports=IMPORTS, functions=functions, ir_version=8)
    )


@pytest.mark.parametrize(
    ("functions", "count"),
    [
        ([function("F0", "Relu", "Relu")], 2),
        ([function("F0", "F1", "F2"), function("F1", "F2"), function("F2", "Relu")], 2),
        ([function("F0", "F1", "F1"), function("F1", "Relu", "Relu", "Relu")], 6),
    ],
)
def test_calls_become_nodes(functions: list[onnx.FunctionProto], count: int) -> None:
    found = model(*functions)
    inline_functions(found)
    assert [node.op_type for node in found.graph] == ["Relu"] * count
    assert not found.functions
    assert found.graph.outputs[0].name == "b"
    onnx.checker.check_model(ir.to_proto(found), full_check=True)


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        ([function("F0", "F0")], "in a circle"),
        ([function("F0", "F1"), function("F1", "F0")], "in a circle"),
        (
            [*(function(f"F{k}", *[f"F{k + 1}"] * 2) for k in range(30)), function("F30", "Relu")],
            "more than 65536 nodes",
        ),
    ],
)
def test_refusals(functions: list[onnx.FunctionProto], reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        inline_functions(model(*functions))


def test_what_no_node_calls_is_dropped() -> None:
    unused = [function(f"F{k}", *[f"F{k + 1}"] * 2) for k in range(1, 30)]
    found = model(function("F0", "Relu"), *unused, function("F30", "Relu"))
    inline_functions(found)
    assert [node.op_type for node in found.graph] == ["Relu"]
    assert not found.functions
