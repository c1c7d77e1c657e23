"""Weights of MatMul that are matrices in all but their shape become matrices; others stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact import api
from intact.engines.session import FloatModel
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.graph import constant_array, normalize

X, K, N = "x", 8, 5


def product(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    weight_first: bool = False,
    relu: bool = False,
) -> onnx.ModelProto:
    """A model of one MatMul of very different channels, with a Relu behind it if wanted."""
    values = np.random.default_rng(0).normal(size=weight).astype(np.float32)
    values *= np.linspace(0.1, 2, weight[-1], dtype=np.float32)
    factors = ["w", X] if weight_first else [X, "w"]
    rank = max(len(data), len(weight))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", factors, ["m" if relu else "y"], name="product"),
            *([helper.make_node("Relu", ["m"], ["y"], name="relu")] if relu else []),
        ],
        "one",
        [helper.make_tensor_value_info(X, TensorProto.FLOAT, ["n", *data[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(values, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    ("data", "weight", "weight_first", "shape"),
    [
        ((2, 4, K), (1, K, N), False, (K, N)),
        ((2, 3, 4, K), (1, 1, K, N), False, (K, N)),
        ((2, K, 4), (1, N, K), True, (N, K)),
        ((2, 4, K), (K, N), False, (K, N)),
        ((2, K), (1, K, N), False, (1, K, N)),  # it adds an axis to the result
        ((2, 4, K), (1, 1, K, N), False, (1, 1, K, N)),
        ((2, 3, 4, K), (3, K, N), False, (3, K, N)),
    ],
)
def test_a_matrix_with_more_axes_is_a_matrix(
    data: tuple[int, ...], weight: tuple[int, ...], weight_first: bool, shape: tuple[int, ...]
) -> None:
    model = product(data, weight, weight_first=weight_first)
    graph = normalize(model)
    (node,) = graph.nodes
    found = constant_array(node.inputs[0 if weight_first else 1])
    assert found is not None
    assert found.shape == shape
    feeds = {X: np.random.default_rng(1).normal(size=data).astype(np.float32)}
    onnx.checker.check_model(model)
    (reference,) = list(onnx.reference.ReferenceEvaluator(model).run(None, feeds))
    (result,) = FloatModel(graph).run(feeds).values()
    assert result.shape == reference.shape
    np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("data", "weight"),
    [((16, 4, K), (1, K, N)), ((16, 3, 4, K), (3, K, N)), ((16, 2, 4, K), (1, 2, K, N))],
)
def test_products_with_such_weights_run_in_onnx_runtime(
    data: tuple[int, ...], weight: tuple[int, ...], relu: bool
) -> None:
    samples = np.random.default_rng(1).normal(size=data).astype(np.float32)
    result = api.quantize(product(data, weight, relu=relu), [{X: samples}])
    assert result.plan.decisions["product"].quantized
    found = verify_qdq(result.plan, result.exported, [{X: samples}])
    assert [layer.mismatches for layer in found.layers] == [0] * len(found.layers)
    assert [output.mismatches for output in found.outputs] == [0]
