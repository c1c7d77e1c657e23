"""Nodes of functions are checked with the attributes that their callers give."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from intact.errors import ModelError
from intact.graph import load_model
from tests.models import ModelBuilder


def called(
    op_type: str, given: dict[str, Any], fixed: dict[str, Any], *, by_default: bool = False
) -> onnx.ModelProto:
    """A function that calls another, which hands its attributes on to a node of ONNX.

    Args:
        op_type: Of the node.
        given: Its attributes that are the caller's.
        fixed: Its other attributes.
        by_default: The functions' own defaults are those, and the caller gives none.
    """
    b = ModelBuilder(17)
    b.domains["own"] = 1
    weights = [b.weight(2, 2, 3, 3)] if op_type.startswith("Conv") else []
    names = ["x", "w"][: 1 + len(weights)]
    inner = helper.make_node(op_type, names, ["y"], name="odd", **fixed)
    outer = helper.make_node("Inner", names, ["y"], domain="own", name="between")
    for name, value in given.items():
        kind = helper.make_attribute(name, value).type
        for node in (inner, outer):
            node.attribute.add(name=name, ref_attr_name=name, type=kind)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for name, node in (("Inner", inner), ("Outer", outer)):
        function = helper.make_function("own", name, names, ["y"], [node], imports)
        if by_default and name == "Outer":
            function.attribute_proto.extend(helper.make_attribute(*each) for each in given.items())
        else:
            function.attribute.extend(given)
        b.functions.append(function)
    attributes = {} if by_default else given
    x = b.input("x", [1, 2, 4, 4])
    b.node("Outer", x, *weights, out="y", domain="own", name="call", **attributes)
    b.output("y")
    return b.build()


@pytest.mark.parametrize("by_default", [False, True])
@pytest.mark.parametrize(
    ("op_type", "given", "fixed", "says"),
    [
        ("ConvTranspose", {"group": 0}, {}, "has group 0, which must be 1 or more"),
        ("MaxPool", {"strides": [1]}, {"kernel_shape": [2, 2]}, "for different numbers of axes"),
        ("MaxPool", {"kernel_shape": [1 << 30, 1]}, {}, "has kernel_shape 1073741824"),
        ("Cast", {"to": 999}, {}, "has to 999, which is not an element type"),
    ],
)
def test_attributes_of_callers_are_checked_where_they_are_used(
    op_type: str, given: dict[str, Any], fixed: dict[str, Any], says: str, by_default: bool
) -> None:
    where = rf"node 'odd' \({op_type}\) of function 'Inner', called by 'between', "
    with pytest.raises(ModelError, match=f"{where}.*{says}"):
        load_model(called(op_type, given, fixed, by_default=by_default))


def test_every_call_is_checked() -> None:
    model = called("ConvTranspose", {"group": 1}, {})
    load_model(model)
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[0])
    second.output[0], second.name = "z", "second"
    load_model(model)
    second.attribute[0].i = 0
    with pytest.raises(ModelError, match="has group 0"):
        load_model(model)


def test_what_a_caller_does_not_give_may_be_missing() -> None:
    model = called("Cast", {"to": TensorProto.FLOAT}, {})
    load_model(model)
    del model.graph.node[0].attribute[:]
    with pytest.raises(ModelError, match="has no attribute 'to'"):
        load_model(model)
    model = called("MaxPool", {"strides": [2, 2]}, {"kernel_shape": [2, 2]})
    del model.graph.node[0].attribute[:]
    load_model(model)
