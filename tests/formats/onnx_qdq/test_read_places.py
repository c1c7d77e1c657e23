"""Wherever pairs stand in a model, ONNX Runtime gives the same bits again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from intact.config import QuantState
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import QuantizedGraph, quantization_points
from tests.formats.onnx_qdq.pairs import (
    PairBuilder,
    assert_exact,
    assert_same_outputs,
    finish,
    fused_types,
    image,
    proto,
    read,
)
from tests.plans import config

I8 = np.int8(0)


# ---- where pairs stand --------------------------------------------------------------------------


def branches(b: PairBuilder) -> tuple[str, str]:
    x = b.node("Exp", image(b), name="exp")
    return x, b.quantize(x, 0.05, b.zero)


def several_dequantizers(b: PairBuilder) -> tuple[str, ...]:
    """One QuantizeLinear whose codes go to two DequantizeLinear, one of them a graph output."""
    _, codes = branches(b)
    b.node("Neg", b.dequantize(codes, 0.05, b.zero), out="y")
    b.dequantize(codes, 0.05, b.zero, out="z")
    return "y", "z"


def two_ports_of_one_tensor(b: PairBuilder) -> tuple[str, ...]:
    _, codes = branches(b)
    return b.dequantize(codes, 0.05, b.zero, out="y"), b.dequantize(codes, 0.05, b.zero, out="z")


def several_readers(b: PairBuilder) -> tuple[str, ...]:
    _, codes = branches(b)
    x = b.dequantize(codes, 0.05, b.zero)
    return b.node("Add", x, x, out="y"), b.node("Sqrt", x, out="z")


def also_read_as_float(b: PairBuilder) -> tuple[str, ...]:
    x, codes = branches(b)
    b.node("Add", x, b.dequantize(codes, 0.05, b.zero), out="y", name="add")
    return ("y",)


def also_handed_out_as_float(b: PairBuilder) -> tuple[str, ...]:
    x, codes = branches(b)
    b.node("Neg", b.dequantize(codes, 0.05, b.zero), out="y")
    return "y", x


def handed_out_quantized_and_read_as_float(b: PairBuilder) -> tuple[str, ...]:
    x, codes = branches(b)
    b.dequantize(codes, 0.05, b.zero, out="y")
    return "y", b.node("Neg", x, out="z")


def input_handed_out(b: PairBuilder) -> tuple[str, ...]:
    return (b.pair(image(b), out="y"),)


def two_scales_of_one_tensor(b: PairBuilder) -> tuple[str, ...]:
    x, codes = branches(b)
    fine = b.pair(x, 0.003, b.zero)
    return (b.node("Sub", b.dequantize(codes, 0.05, b.zero), fine, out="y"),)


def the_same_pair_twice(b: PairBuilder) -> tuple[str, ...]:
    """Two quantizers of one tensor with equal parameters, as tools with one each reader write."""
    x, codes = branches(b)
    again = b.pair(x, 0.05, b.zero)
    return (b.node("Mul", b.dequantize(codes, 0.05, b.zero), again, out="y", name="mul"),)


def the_same_initializers_twice(b: PairBuilder) -> tuple[str, ...]:
    x = b.node("Exp", image(b), name="exp")
    names = [b.constant(np.float32(0.05)), b.constant(np.asarray(b.zero))]
    left, right = (
        b.node("DequantizeLinear", b.node("QuantizeLinear", x, *names), *names) for _ in "lr"
    )
    return (b.pair(b.node("Add", left, right, name="add"), out="y"),)


def one_pair_after_the_same(b: PairBuilder) -> tuple[str, ...]:
    _, codes = branches(b)
    return (
        b.node("Neg", b.pair(b.dequantize(codes, 0.05, b.zero), 0.05, b.zero), out="y", name="neg"),
    )


def one_pair_after_another(b: PairBuilder) -> tuple[str, ...]:
    """Requantized: both scales hold."""
    _, codes = branches(b)
    return (
        b.node("Neg", b.pair(b.dequantize(codes, 0.05, b.zero), 0.11, b.zero), out="y", name="neg"),
    )


def into_a_body(b: PairBuilder) -> tuple[str, ...]:
    """An If whose branches read a quantized tensor that others read as it is."""
    x, codes = branches(b)
    read_inside = b.dequantize(codes, 0.05, b.zero)
    condition = b.node("Greater", b.node("ReduceMax", x, keepdims=0), b.scalar(1.0))
    bodies = {}
    for name, op_type in (("then_branch", "Relu"), ("else_branch", "Neg")):
        node = helper.make_node(op_type, [read_inside], [f"{name}_out"])
        result = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        bodies[name] = helper.make_graph([node], name, [], [result])
    return (b.node("If", condition, out="y", **bodies),)


def constant_beside_data(b: PairBuilder) -> tuple[str, ...]:
    x = b.pair(image(b))
    stored = b.stored((4, 1, 1), np.uint8, axis=None)
    return (b.pair(b.node("Mul", x, stored), out="y"),)


def stored_constant_handed_out(b: PairBuilder) -> tuple[str, ...]:
    scale = np.float32(0.5)
    codes = b.constant(np.arange(-3, 3, dtype=np.int8))
    b.dequantize(codes, scale, I8, out="y")
    return "y", b.node("Add", b.pair(b.input("x", ["n", 6])), "y", out="z")


def moved_weight(b: PairBuilder) -> tuple[str, ...]:
    weight = b.node("Transpose", b.stored((3, 8), axis=0), perm=[1, 0])
    return (b.pair(b.node("MatMul", b.pair(b.input("x", ["n", 8])), weight), out="y"),)


def requantized_constant(b: PairBuilder) -> tuple[str, ...]:
    weight = b.pair(b.stored((8, 3), axis=None), 0.02, I8)
    return (b.pair(b.node("MatMul", b.pair(b.input("x", ["n", 8])), weight), out="y"),)


def gemm_twice_quantized(b: PairBuilder) -> tuple[str, ...]:
    weight = b.stored((8, 3), axis=1)
    x = b.node("Gemm", b.pair(b.input("x", ["n", 8])), weight, b.bias(3), name="gemm")
    return (b.pair(b.pair(x, 0.01, b.zero), 0.013, b.zero, out="y"),)


def shared_weight(b: PairBuilder) -> tuple[str, ...]:
    weight, x = b.stored((4, 4, 1, 1)), b.pair(image(b))
    left, right = b.node("Conv", x, weight, name="l"), b.node("Conv", x, weight, name="r")
    return b.pair(left, out="y"), b.pair(right, 0.03, b.zero, out="z")


def shape_of_a_quantized_tensor(b: PairBuilder) -> tuple[str, ...]:
    x = b.pair(image(b))
    return (b.node("Reshape", b.node("Neg", x), b.node("Shape", x), out="y"),)


def saturated_by_relu(b: PairBuilder) -> tuple[str, ...]:
    """A Relu between two pairs that saturates anyway; dropped, the pairs would touch."""
    x = b.node("Conv", b.pair(image(b)), b.stored((2, 4, 1, 1)), name="conv")
    x = b.node("Relu", b.pair(x, 0.03, b.zero), name="relu")
    return (b.pair(x, 0.011, np.uint8(0), out="y"),)


def clipped(b: PairBuilder) -> tuple[str, ...]:
    x = b.node("Conv", b.pair(image(b)), b.stored((2, 4, 1, 1)), name="conv")
    return (b.pair(b.clip(x, 0, 0.9), np.float32(0.9 / 255), np.uint8(0), out="y"),)


def float_weight_between_pairs(b: PairBuilder) -> tuple[str, ...]:
    """ONNX Runtime quantizes such a weight on its own: that is what the model computes."""
    x = b.node("Conv", b.pair(image(b)), b.weight(3, 4, 3, 3), b.weight(3), name="conv")
    return (b.pair(x, 0.02, out="y"),)


PLACES: tuple[Callable[[PairBuilder], tuple[str, ...]], ...] = (
    several_dequantizers,
    two_ports_of_one_tensor,
    several_readers,
    also_read_as_float,
    also_handed_out_as_float,
    handed_out_quantized_and_read_as_float,
    input_handed_out,
    two_scales_of_one_tensor,
    the_same_pair_twice,
    the_same_initializers_twice,
    one_pair_after_the_same,
    one_pair_after_another,
    into_a_body,
    constant_beside_data,
    stored_constant_handed_out,
    moved_weight,
    gemm_twice_quantized,
    shared_weight,
    shape_of_a_quantized_tensor,
    saturated_by_relu,
    clipped,
    float_weight_between_pairs,
)


@pytest.mark.crossed
@pytest.mark.parametrize("zero", [np.uint8(117), np.int8(-11)])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_wherever_pairs_stand(place: Callable[[PairBuilder], tuple[str, ...]], zero: Any) -> None:
    b = PairBuilder()
    b.zero = zero
    plan, exported = assert_exact(finish(b, *place(b)))
    again, _ = assert_exact(proto(exported.model))
    assert sum(1 for _ in quantization_points(again)) == sum(1 for _ in quantization_points(plan))


def test_a_requantized_constant_is_stored_as_its_last_integers() -> None:
    b = PairBuilder()
    model = finish(b, *requantized_constant(b))
    plan = read(model)
    assert_same_outputs(model, write_qdq(plan).model)
    ((end, codes),) = plan.baked.items()
    assert plan.configs[end].scale == np.float32(0.02)
    assert codes.dtype == np.int8


def identities(plan: QuantizedGraph) -> int:
    return sum(node.op_type == "Identity" for node in plan.graph.nodes)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (several_readers, 0),
        (the_same_pair_twice, 0),
        (the_same_initializers_twice, 0),
        (one_pair_after_the_same, 0),
        (also_read_as_float, 0),
        (one_pair_after_another, 1),
        (two_ports_of_one_tensor, 1),
        (into_a_body, 1),
    ],
    ids=lambda case: getattr(case, "__name__", str(case)),
)
def test_identities_only_where_a_plan_has_no_end(
    place: Callable[[PairBuilder], tuple[str, ...]], expected: int
) -> None:
    b = PairBuilder()
    assert identities(read(finish(b, *place(b)))) == expected


def test_both_scales_of_a_requantized_tensor_are_points() -> None:
    b = PairBuilder()
    plan = read(finish(b, *one_pair_after_another(b)))
    scales = [float(p.config.scale or 0) for p in quantization_points(plan)]
    np.testing.assert_allclose(scales, [0.05, 0.11], rtol=1e-6)


@pytest.mark.crossed
@pytest.mark.parametrize("zero", [np.uint8(0), np.int8(-128)])
@pytest.mark.parametrize("factor", [1.0, 1.0000002, 1.001])
@pytest.mark.parametrize("bound", [6.0, 0.9])
def test_a_clip_stays_for_the_runtime_to_leave_out(bound: float, factor: float, zero: Any) -> None:
    b = PairBuilder()
    x = b.node("Conv", b.pair(image(b)), b.stored((2, 4, 1, 1)), b.bias(2), name="conv")
    b.pair(b.clip(x, 0, bound), np.float32(bound / 255 * factor), zero, out="y")
    model = finish(b, "y")
    plan, exported = assert_exact(model)
    assert config(plan, "conv.output[0]").state is QuantState.OVERLAPPED
    assert sum(node.op_type == "Clip" for node in exported.model.graph) == 1
    assert fused_types(proto(exported.model)) == fused_types(model)


@pytest.mark.parametrize("axis", [None, 0])
def test_a_transposed_weight_is_stored_as_it_is_read(axis: int | None) -> None:
    """PyTorch's dense layers of three axes have a Transpose between weight and MatMul."""
    b = PairBuilder()
    x = b.pair(b.input("x", ["batch", 5, 4]), 0.02, np.uint8(128))
    w = b.node("Transpose", b.stored((6, 4), axis=axis), perm=[1, 0], out="wt")
    y = b.node("MatMul", x, w, out="product")
    plan, exported = assert_exact(finish(b, b.pair(y, 0.03, np.uint8(128), out="y")))
    assert [node.op_type for node in plan.graph.nodes] == ["MatMul"]
    assert plan.is_quantized(plan.graph.nodes[0])
    assert "MatMul" not in fused_types(proto(exported.model))
