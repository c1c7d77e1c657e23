"""Which rule holds for a node."""

from __future__ import annotations

from typing import Any

import msgspec
import onnx_ir as ir
import pytest

from intact.targets import Condition, Groups, OpRule, load_target, matches
from tests.targets.nodes import constant, conv, node, value

X = [1, 4, 8, 8]


def holds(what: object, **condition: Any) -> bool:
    return matches(Condition(**condition), what)  # type: ignore[arg-type]


def test_an_empty_condition_holds() -> None:
    assert holds(conv())


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ([1, 1], 1, True),
        ([1, 2], 1, False),
        ([2, 2], (2, 2), True),
        ([2, 1], (2, 2), False),
        ([2, 2], ((1, 1), (2, 2)), True),
        ([2, 1], ((1, 1), (2, 2)), False),
        (None, 1, True),
        (None, (1, 1), True),
        (None, 2, False),
        (None, (1, 1, 1), False),
    ],
)
def test_list_attributes_and_their_defaults(given: Any, wanted: Any, expected: bool) -> None:
    attributes = {} if given is None else {"strides": given}
    assert holds(conv(**attributes), attributes={"strides": wanted}) is expected


def test_pads_default_to_zero_at_both_ends() -> None:
    assert holds(conv(), attributes={"pads": (0, 0, 0, 0)})
    assert not holds(conv(), attributes={"pads": (0, 0)})


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ({}, "nearest", True),
        ({"mode": "linear"}, "nearest", False),
        ({"mode": "linear"}, ("nearest", "linear"), True),
        ({"mode": "cubic"}, ("nearest", "linear"), False),
    ],
)
def test_text_attributes_and_their_defaults(given: Any, wanted: Any, expected: bool) -> None:
    made = node("Resize", value("x", X), None, constant("scales", [4]), **given)
    assert holds(made, attributes={"mode": wanted}) is expected


def test_numbers_are_compared_as_onnx_stores_them() -> None:
    leaky = node("LeakyRelu", value("x", X), alpha=0.1)
    assert holds(leaky, attributes={"alpha": 0.1})
    assert not holds(leaky, attributes={"alpha": 0.2})
    assert holds(node("LeakyRelu", value("x", X)), attributes={"alpha": 0.01})
    gemm = node("Gemm", value("x", [1, 4]), constant("w", [4, 4]), transB=1)
    assert holds(gemm, attributes={"transB": 1})
    assert holds(gemm, attributes={"transB": (0, 1)})
    assert holds(gemm, attributes={"transA": 0})
    assert not holds(gemm, attributes={"transB": "1"})


def test_an_attribute_that_the_operator_does_not_have_never_matches() -> None:
    assert not holds(conv(), attributes={"mode": "nearest"})
    assert not holds(node("Frobnicate", value("x", X)), attributes={"mode": "nearest"})


def test_all_attributes_must_match() -> None:
    made = conv(strides=[2, 2])
    assert holds(made, attributes={"strides": 2, "dilations": 1})
    assert not holds(made, attributes={"strides": 2, "dilations": 2})


def test_kernel_shape_from_attribute_or_weight() -> None:
    assert holds(conv((3, 3)), kernel_shape=(3, 3))
    assert not holds(conv((1, 3)), kernel_shape=(3, 3))
    assert not holds(conv((3,)), kernel_shape=(3, 3))
    assert holds(conv((3, 3), kernel_shape=[3, 3]), kernel_shape=(3, 3))
    pool = node("MaxPool", value("x", X), kernel_shape=[2, 2])
    assert holds(pool, kernel_shape=(2, 2))
    computed = node("Conv", value("x", X), value("w", None))
    assert not holds(computed, kernel_shape=(3, 3))
    assert not holds(computed, attributes={"strides": 1})


@pytest.mark.parametrize(
    ("group", "kind"),
    [(None, Groups.ONE), (1, Groups.ONE), (2, Groups.GROUPED), (4, Groups.DEPTHWISE)],
)
def test_groups(group: int | None, kind: Groups) -> None:
    made = conv(group=group)
    assert [g for g in Groups if holds(made, groups=g)] == [kind]
    assert holds(made, groups=tuple(Groups))
    assert not holds(made, groups=tuple(g for g in Groups if g is not kind))


def test_groups_of_transposed_and_of_other_operators() -> None:
    transposed = node("ConvTranspose", value("x", X), constant("w", [4, 1, 3, 3]), group=4)
    assert holds(transposed, groups=Groups.DEPTHWISE)
    transposed = node("ConvTranspose", value("x", X), constant("w", [4, 3, 3, 3]), group=2)
    assert holds(transposed, groups=Groups.GROUPED)
    assert not holds(node("Relu", value("x", X)), groups=tuple(Groups))


def test_ranks() -> None:
    assert holds(node("Add", value("a", X), value("b", X)), ranks=(2, 4))
    assert not holds(node("Add", value("a", [1, 4]), value("b", X)), ranks=(4,))
    assert not holds(node("Add", value("a", None), value("b", X)), ranks=(1, 2, 3, 4))
    assert holds(node("Add", value("a", ["N", None]), value("b", X)), ranks=(2,))
    matmul = node("MatMul", value("x", [1, 2, 4]), constant("w", [4, 4]))
    assert holds(matmul, weight_ranks=(2,))
    assert not holds(matmul, weight_ranks=(3,))
    dynamic = node("MatMul", value("x", [1, 2, 4]), value("w", [4, 4]))
    assert not holds(dynamic, weight_ranks=(2,))


def test_rank_of_the_first_data_input_not_of_the_weight() -> None:
    left_weight = node("MatMul", constant("w", [4, 4]), value("x", [1, 4, 2]))
    assert holds(left_weight, ranks=(3,))


def test_constant_weight() -> None:
    dense = node("MatMul", value("x", [1, 2, 4]), constant("w", [4, 4]))
    product = node("MatMul", value("x", [1, 2, 4]), value("w", [4, 4]))
    assert holds(dense, constant_weight=True)
    assert not holds(dense, constant_weight=False)
    assert holds(product, constant_weight=False)
    assert not holds(product, constant_weight=True)
    assert holds(product)


def test_constant_input() -> None:
    plus_bias = node("Add", value("x", X), constant("b", [4, 1, 1]))
    residual = node("Add", value("x", X), value("y", X))
    assert holds(plus_bias, constant_input=True)
    assert holds(residual, constant_input=False)
    assert not holds(residual, constant_input=True)
    assert holds(conv(), constant_input=False)  # a weight is no data input


def test_own_function() -> None:
    x, other = value("x", X), value("y", X)
    gate = ir.node("Sigmoid", [x]).outputs[0]
    twice = ir.node("Tanh", ir.node("Softplus", [x]).outputs).outputs[0]
    for inputs in ([x, gate], [gate, x]):
        assert holds(ir.node("Mul", inputs), own_function=("Sigmoid",))
        assert not holds(ir.node("Mul", inputs), own_function=("Tanh",))
    assert holds(ir.node("Mul", [x, twice]), own_function=("Softplus", "Tanh"))
    assert not holds(ir.node("Mul", [x, twice]), own_function=("Tanh",))
    assert not holds(ir.node("Mul", [other, gate]), own_function=("Sigmoid",))


def test_right_zero_point_holds_where_it_is_known() -> None:
    product, centred = node("MatMul", value("a", X), value("b", X)), Condition(right_zero_point=0)
    assert matches(centred, product, 0)
    assert not matches(centred, product, 1)
    assert not matches(centred, product)
    assert matches(Condition(), product, 1)
    assert not matches(Condition(right_zero_point=0, ranks=(2,)), product, 0)


@pytest.mark.parametrize(("count", "output"), [(0, True), (1, False), (2, False), (2, True)])
def test_consumers_count_readers_and_graph_outputs(count: int, output: bool) -> None:
    made = node("Relu", value("x", X), consumers=count, output=output)
    total = count + output
    assert holds(made, max_consumers=total)
    assert not holds(made, max_consumers=total - 1)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (node("GlobalAveragePool", value("x", ["batch", 3, 8, 8])), True),
        (node("GlobalAveragePool", value("x", ["batch", 3, 3, 8])), False),
        (node("GlobalAveragePool", value("x", ["batch", 3, "height", 8])), None),
        (node("AveragePool", value("x", X), kernel_shape=[2, 4]), True),
        (node("AveragePool", value("x", X), kernel_shape=[3, 3]), False),
        (node("AveragePool", value("x", X), kernel_shape=[2, 2], pads=[1, 1, 0, 0]), None),
        (
            node(
                "AveragePool", value("x", X), kernel_shape=[2, 2], pads=[1] * 4, count_include_pad=1
            ),
            True,
        ),
        (node("AveragePool", value("x", X), kernel_shape=[2, 2], ceil_mode=1), None),
        (node("AveragePool", value("x", X), kernel_shape=[2, 2], auto_pad="SAME_UPPER"), None),
        (node("ReduceMean", value("x", ["batch", 4, 6]), axes=[1]), True),
        (node("ReduceMean", value("x", ["batch", 4, 6]), axes=[-1]), False),
        (node("MaxPool", value("x", X), kernel_shape=[2, 2]), None),
    ],
)
def test_means_of_a_power_of_two(made: object, expected: bool | None) -> None:
    """Neither holds where some windows are smaller, or a length is not known."""
    assert holds(made, power_of_two_window=True) is (expected is True)
    assert holds(made, power_of_two_window=False) is (expected is False)


def test_all_fields_must_hold() -> None:
    assert holds(conv(), kernel_shape=(3, 3), groups=Groups.ONE, ranks=(4,))
    assert not holds(conv(), kernel_shape=(3, 3), groups=Groups.DEPTHWISE, ranks=(4,))


def test_the_last_rule_that_matches_holds_alone() -> None:
    rules = (
        OpRule(ops=("Conv", "Gemm"), float_output=True),
        OpRule(ops=("Conv",), when=Condition(kernel_shape=(3, 3)), cost=2.0),
        OpRule(ops=("Conv",), when=Condition(kernel_shape=(5, 5)), cost=3.0),
    )
    target = msgspec.structs.replace(load_target("onnxruntime"), rules=rules)
    assert target.rule_for(conv((1, 1))) is rules[0]
    assert target.rule_for(conv((3, 3))) is rules[1]
    assert target.rule_for(conv((5, 5))) is rules[2]
    assert target.rule_for(node("Relu", value("x", X))) is None


def test_other_domains_are_not_described() -> None:
    target = load_target("onnxruntime")
    assert target.rule_for(node("Add", value("a", X), value("b", X))) is not None
    assert target.rule_for(node("Add", value("a", X), value("b", X), domain="mine")) is None
