"""Float nodes inside an integer program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.engines.integer import IntegerEngine
from intact.engines.integer.islands import float_island
from intact.errors import ModelError, PlanError
from intact.program import Array, Program, Step, Tensor
from intact.program.operations import FloatNodes
from tests.engines.integer.hardware import DOUBLE

WEIGHT = np.asarray([[1.0, -2.0], [3.0, 0.5]], np.float32)


def _model(nodes: Sequence[onnx.NodeProto], opset: int = 21) -> ir.Model:
    """Return a model with input ``x`` ``[1, 2]``, output ``y`` and constants."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(WEIGHT, "weight"),
            numpy_helper.from_array(np.asarray(1.0, np.float32), "one"),
        ],
    )
    opsets = [helper.make_opsetid("", opset)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def _step(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> Step:
    values = {str(v.name): v for v in (*model.graph.inputs, *model.graph.initializers.values())}
    values |= {str(v.name): v for node in model.graph for v in node.outputs}
    operation = FloatNodes(
        tuple(model.graph),
        tuple(values[name] for name in inputs),
        tuple(values[name] for name in outputs),
    )
    tensors = [tuple(Tensor(name, ()) for name in names) for names in (inputs, outputs)]
    return Step("island", operation, tensors[0], tensors[1], DOUBLE)


PRODUCT = [
    helper.make_node("MatMul", ["x", "weight"], ["product"], "multiply"),
    helper.make_node("Exp", ["product"], ["y"], "exp"),
]


@pytest.mark.parametrize("batch", [1, 5, 0])
def test_nodes_run_with_their_constants_for_any_batch(batch: int) -> None:
    model = _model(PRODUCT)
    text = ir.to_proto(model).SerializeToString()
    island = float_island(_step(model, ["x"], ["y", "product"]), threads=1)
    values = np.linspace(-1, 1, 2 * batch).reshape(batch, 2).astype(np.float32)
    result, product = island(values)
    np.testing.assert_allclose(product, values @ WEIGHT, rtol=1e-6)
    np.testing.assert_allclose(result, np.exp(product), rtol=1e-6)
    assert ir.to_proto(model).SerializeToString() == text


def test_an_island_is_a_step_of_a_program() -> None:
    step = _step(_model(PRODUCT), ["x"], ["y"])
    tensor = next(tensor for tensor in step.inputs if tensor is not None)
    program = Program({"x": tensor}, {"y": step.outputs[0]}, (step,))
    result = IntegerEngine(program, threads=1).run({"x": np.zeros((1, 2), np.float32)})
    assert result.outputs["y"].tolist() == [[1.0, 1.0]]


def test_arrays_in_any_memory_order_are_taken() -> None:
    island = float_island(_step(_model(PRODUCT), ["x"], ["product"]), threads=1)
    values: Array = np.asarray([[1.0, 2.0], [3.0, 4.0]], np.float32)
    np.testing.assert_array_equal(island(values.T)[0], values.T @ WEIGHT)


def test_a_constant_may_be_given_as_an_input() -> None:
    step = _step(_model(PRODUCT), ["x", "weight"], ["product"])
    island = float_island(step, threads=1)
    values = np.asarray([[1.0, 2.0]], np.float32)
    np.testing.assert_array_equal(island(values, 2 * WEIGHT)[0], values @ (2 * WEIGHT))


def test_bodies_read_constants_and_inputs_around_them() -> None:
    def body(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        return helper.make_graph([node], name, [], [output])

    model = _model(
        [
            helper.make_node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
            helper.make_node("Greater", ["sum", "one"], ["large"], "greater"),
            helper.make_node(
                "If",
                ["large"],
                ["y"],
                "choose",
                then_branch=body("then", helper.make_node("Mul", ["x", "weight"], ["a"])),
                else_branch=body("else", helper.make_node("Add", ["x", "one"], ["b"])),
            ),
        ]
    )
    island = float_island(_step(model, ["x"], ["y"]), threads=1)
    small = np.asarray([[0.25, 0.5]], np.float32)
    assert island(small)[0].tolist() == [[1.25, 1.5]]
    np.testing.assert_array_equal(island(8 * small)[0], 8 * small * WEIGHT)


def test_a_missing_value_is_named_in_the_error() -> None:
    whole = _step(_model(PRODUCT), ["x"], ["y"])
    operation = FloatNodes((whole.operation.nodes[1],), (), whole.operation.outputs)  # type: ignore[union-attr]
    step = Step("late", operation, (), whole.outputs, DOUBLE)
    with pytest.raises(PlanError, match=r"'exp'.*'product'"):
        float_island(step)


def test_nodes_that_the_runtime_rejects_raise() -> None:
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"], "unknown")]
    with pytest.raises(ModelError):
        float_island(_step(_model(nodes), ["x"], ["y"]))
