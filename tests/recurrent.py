"""A small net as voice activity detectors are: a state of [2, 1, 3], a scalar, an If."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

WIDTH, STATE = 8, 3


def recurrent_model() -> onnx.ModelProto:
    """Inputs ``x [1, 8]``, ``state [2, 1, 3]``, ``rate []`` (int64); outputs ``y``, ``next``.

    The state decays and takes in ``x``; for a rate of 2, an If doubles what is added to it.
    """
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.normal(size=(WIDTH, STATE)) / 3,
        "v": rng.normal(size=(STATE, STATE)) / 2,
        "half": np.array(0.5),
        "two_f": np.array(2.0),
    }
    arrays = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()]
    integers = {"two": np.array(2), "first": np.array(0), "axes": np.array([0])}
    arrays += [numpy_helper.from_array(a.astype(np.int64), n) for n, a in integers.items()]

    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [1, STATE])
        return helper.make_graph([node], name, [], [output])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["taken"], "take"),
        helper.make_node("Equal", ["rate", "two"], ["is_two"], "compare"),
        helper.make_node(
            "If",
            ["is_two"],
            ["added"],
            "choose",
            then_branch=branch("twice", helper.make_node("Mul", ["taken", "two_f"], ["a"])),
            else_branch=branch("once", helper.make_node("Identity", ["taken"], ["b"])),
        ),
        helper.make_node("Unsqueeze", ["added", "axes"], ["row"], "lift"),
        helper.make_node("Mul", ["state", "half"], ["decayed"], "decay"),
        helper.make_node("Add", ["decayed", "row"], ["next"], "join"),
        helper.make_node("Gather", ["next", "first"], ["top"], "top", axis=0),
        helper.make_node("MatMul", ["top", "v"], ["mixed"], "mix"),
        helper.make_node("Sigmoid", ["mixed"], ["y"], "squash"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH]),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 1, STATE]),
        helper.make_tensor_value_info("rate", TensorProto.INT64, []),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, STATE]),
        helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 1, STATE]),
    ]
    graph = helper.make_graph(nodes, "recurrent", inputs, outputs, arrays)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def recurrent_graph() -> ir.Model:
    """The same for `Graph`."""
    return ir.from_proto(recurrent_model())
