"""What holds for all rules: other dtypes, infinities, recomputation, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from torch.utils.checkpoint import checkpoint

from intact.errors import Unsupported
from intact.graph import OPS, Graph, normalize
from intact.improve.learn.operators import RULES, prepare, unsupported
from tests.improve.learn.operators.case import Array, Case, floats, make_case, scalar, steer
from tests.improve.learn.operators.cases import CASES
from tests.improve.learn.operators.test_cases import (
    computed,
    few,
    in_runtime,
    listed,
    node_of,
    tensors,
)
from tests.models import ModelBuilder

WITHOUT_RULE = {
    "random": "Bernoulli RandomNormalLike RandomUniformLike",
    "quantized": "QuantizeLinear DequantizeLinear",
    "always folded": "Constant",
    "rare": "DeformConv MaxRoiPool NonMaxSuppression RoiAlign RotaryEmbedding TensorScatter Unique",
}


def test_every_operator_of_the_table_has_a_rule_or_a_reason() -> None:
    left_out = {name for names in WITHOUT_RULE.values() for name in names.split()}
    assert set(OPS) == (set(RULES) & set(OPS)) | left_out
    assert not left_out & set(RULES)


def result_of(node: ir.Node, *given: torch.Tensor) -> torch.Tensor:
    """The result of a node of one output."""
    (found,) = listed(prepare(node)(*given))
    return found


NOT_FINITE = np.array([[[[np.nan, 1, -np.inf, np.inf], [0, -0.0, 3, -np.inf]]]], np.float32)


@pytest.mark.parametrize(
    "case",
    [
        make_case("Relu", NOT_FINITE),
        make_case("Clip", NOT_FINITE, scalar(-1), scalar(1)),
        make_case("Max", NOT_FINITE, floats(4)),
        make_case("Min", NOT_FINITE, floats(4)),
        make_case("AveragePool", NOT_FINITE, kernel_shape=[1, 2]),
        make_case("GlobalMaxPool", NOT_FINITE[..., 1:]),
        make_case("MaxPool", NOT_FINITE[..., 1:], kernel_shape=[1, 2]),
        make_case("MaxPool", NOT_FINITE[..., 1:], kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
        make_case("LeakyRelu", NOT_FINITE),
        make_case("PRelu", NOT_FINITE, floats(4)),
        make_case("ReduceMax", NOT_FINITE[..., 1:], steer(-1)),
        make_case("Round", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)),
    ],
    ids=str,
)
def test_infinities_and_halves_are_those_of_the_runtime(case: Case) -> None:
    (wanted,) = in_runtime(case)
    (found,) = computed(node_of(case), tensors(case))
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "case",
    [
        make_case("Conv", floats(2, 2, 5, 5), floats(3, 2, 3, 3), floats(3), auto_pad="SAME_LOWER"),
        make_case("Gemm", floats(2, 3), floats(3, 4), floats(4), alpha=0.5),
        make_case("MatMul", floats(2, 3), floats(3, 4)),
        make_case("BatchNormalization", floats(2, 2, 3), *(floats(2, low=0.5) for _ in range(4))),
        make_case("LayerNormalization", floats(2, 3), floats(3), floats(3)),
        make_case("Softmax", floats(2, 3)),
        make_case("Clip", floats(2, 3), scalar(0), scalar(1)),
        make_case("Pow", floats(2, 3, low=0.1), scalar(2)),
        make_case("HardSigmoid", floats(2, 3)),
        make_case("Resize", floats(1, 2, 3, 3), None, steer(1, 1, 2, 2, kind=np.float32),
                  mode="linear"),
        make_case("AveragePool", floats(1, 2, 4, 4), kernel_shape=[3, 3], pads=[1, 1, 0, 1]),
    ],
    ids=str,
)  # fmt: skip
def test_the_result_has_the_dtype_of_the_data(case: Case, dtype: torch.dtype) -> None:
    (wanted,) = in_runtime(case)
    apply = prepare(node_of(case))
    (found,) = listed(apply(*tensors(case, dtype)))
    assert found.dtype is dtype
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found.float().numpy() / scale, wanted / scale, atol=0.02)
    if dtype is torch.bfloat16:
        with torch.autocast("cpu", dtype):
            (mixed,) = listed(apply(*tensors(case)))
        np.testing.assert_allclose(mixed.float().numpy() / scale, wanted / scale, atol=0.02)


def test_what_a_cast_made_is_multiplied_with_wider_weights() -> None:
    builder = ModelBuilder()
    x = builder.node("Cast", builder.input("x", ["n", 3], TensorProto.INT64), to=TensorProto.FLOAT)
    builder.node("MatMul", x, builder.weight(3, 2), out="y")
    builder.output("y")
    cast, product = normalize(builder.build()).nodes
    made = result_of(cast, torch.tensor([[1, 2, 3]]))
    assert made.dtype is torch.float32
    assert result_of(product, made, torch.ones(3, 2).double()).dtype is torch.float64


def test_a_cast_to_float_keeps_the_dtype_in_which_the_graph_is_computed() -> None:
    case = make_case("Cast", floats(3), to=TensorProto.FLOAT)
    assert result_of(node_of(case), torch.ones(3).double()).dtype is torch.float64


def test_results_lie_on_the_device_of_the_data() -> None:
    depends_on_values = {"Compress", "NonZero", "Range"}  # which the device "meta" lacks
    for case in few(CASES, 3):
        if case.operator not in depends_on_values:
            given = [None if each is None else each.to("meta") for each in tensors(case)]
            for each in listed(prepare(node_of(case))(*given)):
                assert each.device.type == "meta", case


def test_gradients_are_the_same_when_recomputed() -> None:
    case = make_case("Conv", floats(2, 2, 5, 5), floats(3, 2, 3, 3), pads=[1, 0, 0, 2])
    apply = prepare(node_of(case))
    gradients = []
    for run in (apply, lambda *given: checkpoint(apply, *given, use_reentrant=False)):
        x, weight = (torch.tensor(each, requires_grad=True) for each in case.arrays())
        listed(run(x, weight))[0].square().sum().backward()
        gradients.append((x.grad, weight.grad))
    for one, two in zip(*gradients, strict=True):
        assert torch.equal(one, two)


def test_norms_of_zeros_have_gradients() -> None:
    zeros = np.zeros((1, 2, 4), np.float32)
    for case in (
        make_case("LpNormalization", zeros),
        make_case("LpPool", zeros, kernel_shape=[2]),
        make_case("ReduceL2", zeros, steer(-1)),
        make_case("GlobalLpPool", zeros),
    ):
        x = torch.zeros(1, 2, 4, requires_grad=True)
        result_of(node_of(case), x).sum().backward()
        assert torch.isfinite(x.grad).all(), case


def test_means_and_variances_that_are_learned_have_gradients() -> None:
    case = make_case("BatchNormalization", floats(2, 2, 3), *(floats(2, low=0.5) for _ in range(4)))
    given = [each.double().requires_grad_() for each in tensors(case) if each is not None]
    assert torch.autograd.gradcheck(prepare(node_of(case)), given)


def test_a_reshape_of_no_elements_finds_its_open_length() -> None:
    case = make_case("Reshape", floats(2, 3, 4), steer(0, -1))
    assert result_of(node_of(case), torch.zeros(0, 3, 4)).shape == (0, 12)


def test_an_even_window_of_channels() -> None:
    """ONNX Runtime has odd ones only: the specification's formula."""
    x = floats(1, 5, 2)
    case = make_case("LRN", x, size=4, alpha=2.0, beta=0.5)
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 2), (0, 0)))
    sums = sum(squares[:, k : k + 5] for k in range(4))
    found = result_of(node_of(case), torch.tensor(x)).numpy()
    np.testing.assert_allclose(found, x / np.sqrt(1 + 0.5 * sums), rtol=1e-5)


def refused(*inputs: Array, operator: str, **attributes: Any) -> str:
    case = make_case(operator, *inputs, **attributes)
    with pytest.raises(Unsupported) as raised:
        prepare(node_of(case))
    return raised.value.reason


def test_options_without_a_rule_are_refused() -> None:
    assert "4 spatial axes" in refused(*[floats(1, 1, 1, 1, 1, 1)] * 2, operator="Conv")
    assert "STRING" in refused(floats(2), operator="Cast", to=TensorProto.STRING)
    four = [floats(3, low=0.5) for _ in range(4)]
    found = refused(floats(2, 3), *four, operator="BatchNormalization", training_mode=1)
    assert "means of the batch" in found
    case = make_case("Dropout", floats(2), scalar(0.5), scalar(True, np.bool_))
    with pytest.raises(Unsupported, match="at random"):
        prepare(node_of(case))
    prepare(node_of(make_case("Dropout", floats(2), scalar(0.5), scalar(False, np.bool_))))


def test_nodes_without_a_rule_are_named() -> None:
    builder = ModelBuilder()
    x = builder.node("Relu", builder.input("x", ["n", 3]))
    body = helper.make_graph(
        [helper.make_node("Neg", [x], ["inner"])], "body", [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )  # fmt: skip
    decision = builder.input("decision", [], TensorProto.BOOL)
    y = builder.node("If", decision, then_branch=body, else_branch=body, name="choice")
    builder.output(builder.node("Own", y, domain="acme", name="own"))
    builder.domains["acme"] = 1
    found = unsupported(Graph(normalize(builder.build()).model))
    assert [node.name for node in found] == ["choice", "own"]
    assert [(each.node, each.operator, each.reason) for each in found.values()] == [
        ("choice", "If", "training has no If"),
        ("own", "Own", "training has no acme.Own"),
    ]
