"""What the plan keeps float between quantizers, ONNX Runtime computes in float."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from intact.engines.exact_sums import saturates_pairs
from intact.engines.simulate import Simulator
from intact.formats.onnx_qdq.executed import executed_of
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.shield import _exact_codes
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import Overrides, QuantizedGraph
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrate, planned

pytestmark = pytest.mark.runtime_fact("onnxruntime")

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def between_quantizers(op_type: str, *, bias: bool, relu: bool) -> onnx.ModelProto:
    """A product named ``middle`` that reads integers and whose result is wanted as integers."""
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 4, 4]), 3, 8))
    extra = [b.weight(8)] if bias else []
    if op_type in {"Conv", "ConvTranspose"}:
        weight = b.weight(8, 8, 1, 1)
        y = b.node(op_type, x, weight, *extra, name="middle")
    else:
        x = b.node("Reshape", x, b.ints(0, 128))
        beside = b.node("Gemm", x, b.weight(128, 8))  # reads integers, so that x has them
        if op_type == "Gemm":
            y = b.node("Gemm", x, b.weight(128, 8), *extra, name="middle")
        else:
            y = b.node("MatMul", x, b.weight(128, 8), name="middle")
            y = b.node("Add", y, *extra) if bias else y
    y = b.node("Relu", y) if relu else y
    if op_type in {"Conv", "ConvTranspose"}:
        b.conv(y, 8, 4)
    else:
        b.node("Gemm", b.node("Add", y, beside), b.weight(8, 4))
    b.nodes[-1].output[0] = "y"
    b.output("y")
    return b.build()


def kept_float(model: onnx.ModelProto, target: str = "onnxruntime") -> QuantizedGraph:
    plan = planned(model, target, Overrides(keep_float=("middle",)))
    return calibrate(plan, dict(random_inputs(model, batch=8)))


def worst_share(plan: QuantizedGraph, feeds: dict[str, npt.NDArray[Any]]) -> float:
    """The largest share of integers of a layer that differ from the simulation."""
    exported, simulator = write_qdq(plan), Simulator(plan, threads=1, teacher_forced=True)
    codes = {end: exported.codes[end] for end in simulator.points}
    _, integers = QdqRuntime(exported.model, codes, threads=1).run(feeds)
    lessons = {
        simulator.teacher_inputs[end]: plan.configs[end].dequantize(array.astype(np.int64))
        for end, array in integers.items()
    }
    _, taught = simulator.run(feeds | lessons, observe=tuple(codes))
    return max(
        float(np.mean(integers[end] != plan.configs[end].quantize(taught[end]))) for end in codes
    )


@pytest.mark.crossed
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op_type", PRODUCTS)
def test_a_product_kept_float_is_computed_in_float(op_type: str, bias: bool, relu: bool) -> None:
    model = between_quantizers(op_type, bias=bias, relu=relu)
    plan = kept_float(model)
    assert not plan.decisions["middle"].quantized
    # Quantized behind the plan's back, a tenth or more of the integers come out differently.
    assert worst_share(plan, dict(random_inputs(model, batch=8, seed=3))) < 2e-3


def test_only_products_between_quantizers_change() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 3, 4, 4]), b.weight(4, 3, 1, 1), name="first")
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), b.weight(4), name="inner")
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), b.weight(4), name="kept")
    b.node("Conv", b.node("Relu", x), b.weight(4, 4, 1, 1), b.weight(4), name="last", out="y")
    b.output("y")
    model = b.build()
    for names, shielded in (
        (("first",), set()),  # reads floats
        (("last",), set()),  # hands floats on
        (("kept",), {"kept"}),
        (("inner", "kept"), set()),  # each has a float neighbour
    ):
        plan = planned(model, "onnxruntime", Overrides(keep_float=names))
        written = write_qdq(calibrate(plan, dict(random_inputs(model)))).model
        found = {
            str(node.name)
            for node in written.graph
            if node.op_type == "Conv" and "_kept_float" in str(_bias_name(node))
        }
        assert found == shielded, names


def test_a_target_that_adds_float_biases_keeps_them() -> None:
    plan = kept_float(between_quantizers("Conv", bias=True, relu=True), "tensorrt")
    middle = next(node for node in write_qdq(plan).model.graph if node.name == "middle")
    assert middle.inputs[2] is not None
    assert middle.inputs[2].is_initializer()


def _bias_name(node: ir.Node) -> str | None:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return None if bias is None else bias.name


@given(arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_codes_times_scales_are_the_same_floats(bias: npt.NDArray[np.float32]) -> None:
    codes, scale = _exact_codes(bias)
    assert (scale > 0).all()
    np.testing.assert_array_equal(codes.astype(np.float32) * scale, bias)


def product_and_sum(rank: int, beside: str) -> onnx.ModelProto:
    """A MatMul of integers, what is added to it in float, and a Gelu, of fixed shapes."""
    b = ModelBuilder(opset=20)
    x = b.input("x", [2, 3, 4, 16][-rank:])
    y = b.node("MatMul", x, b.weight(16, 16), name="product")
    other = {
        "bias": lambda: b.weight(16),
        "row": lambda: b.weight(1, 16),
        "all": lambda: b.weight(4, 16),
        "activation": lambda: x,
    }[beside]()
    b.node("Gelu", b.node("Add", other, y, name="sum"), out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("beside", ["bias", "row", "all", "activation"])
def test_sums_in_float_leave_the_products_before_in_integers(rank: int, beside: str) -> None:
    model = product_and_sum(rank, beside)
    feeds = dict(random_inputs(model))
    target = "onnxruntime-avx2" if saturates_pairs() else "onnxruntime"
    plan = calibrate(planned(model, target), feeds)
    written = write_qdq(plan)
    assert plan.decisions["product"].quantized
    assert executed_of(written, plan).in_float == {}
    simulated = Simulator(plan, threads=1).run(feeds)[0]
    outputs, _ = QdqRuntime(written.model, threads=1).run(feeds)
    for name, array in outputs.items():
        np.testing.assert_allclose(array, simulated[name], rtol=1e-5, atol=1e-5)


def test_a_constant_on_the_left_stays_float() -> None:
    b = ModelBuilder(opset=20)
    b.node("MatMul", b.weight(8, 16), b.input("x", [16, 4]), name="product", out="y")
    b.output("y")
    assert "on the right" in planned(b.build()).decisions["product"].reason
