"""What the quantizer on each edge is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from intact.errors import PlanError
from intact.plan import NoteKind, Overrides, QuantizedGraph, TensorEnd, quantization_points
from intact.plan.inference import (
    DTYPE_INFERENCES,
    SCALE_INFERENCES,
    EdgeTypes,
    infer_edges,
    infers_dtype,
    infers_scale,
)
from intact.targets import DType
from tests.models import ModelBuilder
from tests.plans import HEADER, calibrated, config, conv, image, own_target, planned

FLOATS = (None, DType.FLOAT32)


def edge(plan: QuantizedGraph, end: str) -> EdgeTypes:
    return infer_edges(plan)[TensorEnd.parse(end)]


def exact(scale: npt.ArrayLike | None) -> list[Fraction]:
    return [Fraction(float(each)) for each in np.asarray(scale, np.float64).reshape(-1)]


def scale_at(plan: QuantizedGraph, end: str) -> list[Fraction]:
    return exact(config(plan, end).scale)


def residual() -> onnx.ModelProto:
    """Conv-Relu, Conv, their sum, and a mean over 64 elements."""
    b = ModelBuilder()
    x = conv(b, image(b), "first")
    x = b.node("Relu", x, name="relu")
    y = conv(b, x, "second")
    x = b.node("Add", x, y, name="add")
    b.node("GlobalAveragePool", x, name="mean", out="out")
    b.output("out")
    return b.build()


@pytest.fixture
def plan() -> QuantizedGraph:
    return calibrated(residual(), "integer-pow2")


def test_every_point_has_its_types(plan: QuantizedGraph) -> None:
    assert list(infer_edges(plan)) == [point.end for point in quantization_points(plan)]


def test_the_product_arrives_behind_the_relu(plan: QuantizedGraph) -> None:
    (data,), (weight,) = scale_at(plan, "first.input[0]"), scale_at(plan, "first.input[1]")
    found = edge(plan, "relu.output[0]")
    assert exact(found.in_scale) == [data * weight]
    assert (found.in_dtype, found.out_dtype) == (DType.INT32, DType.INT8)


def test_floats_arrive_from_inputs_and_weights(plan: QuantizedGraph) -> None:
    for end in ("first.input[0]", "first.input[1]", "second.input[1]"):
        found = edge(plan, end)
        assert (found.in_scale, found.in_dtype) == FLOATS
        assert found.out_dtype is DType.INT8


def test_a_sum_has_the_scale_of_both(plan: QuantizedGraph) -> None:
    found = edge(plan, "add.output[0]")
    assert exact(found.in_scale) == scale_at(plan, "add.input[0]")
    assert exact(found.in_scale) == scale_at(plan, "add.input[1]")
    assert found.in_dtype is DType.INT32


def test_a_mean_of_64_elements(plan: QuantizedGraph) -> None:
    (data,) = scale_at(plan, "mean.input[0]")
    assert exact(edge(plan, "mean.output[0]").in_scale) == [data / 64]


def test_scales_by_channel_lie_along_the_channels() -> None:
    b = ModelBuilder()
    conv(b, image(b), "conv")
    b.output("conv_out")
    plan = calibrated(b.build(), "tflite")
    found = edge(plan, "conv.output[0]")
    (data,) = scale_at(plan, "conv.input[0]")
    assert found.in_scale is not None
    assert found.in_scale.shape == (4, 1, 1)
    assert exact(found.in_scale) == [data * each for each in scale_at(plan, "conv.input[1]")]


@pytest.mark.parametrize("on_the_left", [False, True])
def test_scales_by_channel_of_a_product(tmp_path: Path, on_the_left: bool) -> None:
    b = ModelBuilder()
    x, weight = b.input("x", [5, 5]), b.weight(5, 5)
    b.node("MatMul", *((weight, x) if on_the_left else (x, weight)), name="product", out="out")
    b.output("out")
    target = own_target(tmp_path, '[[op]]\nops = ["MatMul"]\n')
    found = edge(calibrated(b.build(), target), "product.output[0]").in_scale
    assert found is not None
    assert found.shape == (() if on_the_left else (5,))  # one scale for a weight on the left


def test_moved_codes_keep_scale_and_type() -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    x = b.node("MaxPool", x, name="pool", kernel_shape=[2, 2])
    b.node("Flatten", x, name="flat", out="out")
    b.output("out")
    plan = calibrated(b.build(), "integer-pow2")
    for end in ("pool.output[0]", "flat.output[0]"):
        found = edge(plan, end)
        assert exact(found.in_scale) == scale_at(plan, "conv.output[0]")
        assert found.in_dtype is DType.INT8


@pytest.mark.parametrize("op_type", ["Sigmoid", "Softmax", "Tanh"])
def test_a_curved_function_has_no_integers_before(op_type: str) -> None:
    b = ModelBuilder()
    b.node(op_type, conv(b, image(b), "conv"), name="curve", out="out")
    b.output("out")
    plan = calibrated(b.build(), "tflite")
    found = edge(plan, "curve.output[0]")
    assert (found.in_scale, found.in_dtype) == FLOATS


def test_a_float_bias_leaves_no_integers(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Conv", image(b), b.weight(4, 4, 1, 1), b.weight(4), name="conv", out="out")
    b.output("out")
    rules = '[[op]]\nops = ["Conv"]\n'
    header = HEADER.replace("[arithmetic]", '[bias]\ndtype = "float32"\n[arithmetic]')
    found = edge(
        calibrated(b.build(), own_target(tmp_path, rules, header=header)), "conv.output[0]"
    )
    assert (found.in_scale, found.in_dtype) == FLOATS
    found = edge(calibrated(b.build(), own_target(tmp_path, rules)), "conv.output[0]")
    assert found.in_dtype is DType.INT32


def test_free_sums_of_two_scales_are_floats(tmp_path: Path) -> None:
    rules = '[[op]]\nops = ["Conv", "Relu", "Add"]\n'
    found = edge(calibrated(residual(), own_target(tmp_path, rules)), "add.output[0]")
    assert (found.in_scale, found.in_dtype, found.out_dtype) == (*FLOATS, DType.UINT8)
    unified = rules.replace(', "Add"', "") + '[[op]]\nops = ["Add"]\nscales = "unify_inputs"\n'
    plan = calibrated(residual(), own_target(tmp_path, unified))
    found = edge(plan, "add.output[0]")
    assert exact(found.in_scale) == scale_at(plan, "add.input[0]")
    assert found.in_dtype is DType.INT32


def test_several_scales_where_the_target_has_one_make_floats(tmp_path: Path) -> None:
    target = own_target(
        tmp_path,
        """
        [[op]]
        ops = ["Conv", "Relu"]
        [[op]]
        ops = ["Add"]
        scales = "unify_inputs"
        """,
    )
    plan = calibrated(residual(), target, Overrides(bits={"add.input[1]": 4}))
    assert NoteKind.TIE in [note.kind for note in plan.notes]
    found = edge(plan, "add.output[0]")
    assert (found.in_scale, found.in_dtype) == FLOATS


def test_bits_need_not_be_those_of_the_type() -> None:
    plan = calibrated(residual(), "integer-pow2", Overrides(bits={"first.weight": 6}))
    assert edge(plan, "first.input[1]").out_dtype is DType.INT8


def test_a_second_quantizer_takes_the_codes_of_the_first() -> None:
    plan = calibrated(residual(), "tflite", Overrides(bits={"second.input": 4}))
    found = edge(plan, "second.input[0]")
    assert exact(found.in_scale) == scale_at(plan, "relu.output[0]")
    assert (found.in_dtype, found.out_dtype) == (DType.INT8, DType.INT8)


def test_the_first_description_that_holds_the_widths(tmp_path: Path) -> None:
    target = own_target(
        tmp_path,
        """
        [[op]]
        ops = ["Conv"]
        inputs = ["uint8", "int8"]
        outputs = ["uint8"]
        alternatives = [{ inputs = ["int16", "int8"], outputs = ["int16"] }]
        """,
    )
    b = ModelBuilder()
    conv(b, image(b), "conv")
    b.output("conv_out")
    wide = calibrated(b.build(), target, Overrides(bits={"conv.input": 16}))
    assert edge(wide, "conv.output[0]").in_dtype is DType.INT32
    assert edge(wide, "conv.input[0]").out_dtype is DType.UINT16
    # No description takes a weight of 16 bits: it is computed in float.
    wider = calibrated(b.build(), target, Overrides(weight_bits=16, bits={"conv.input": 16}))
    assert edge(wider, "conv.output[0]").in_dtype is DType.FLOAT32


def test_logarithmic_codes_are_no_multiples_of_a_scale(tmp_path: Path) -> None:
    header = HEADER.replace('granularity = "per_channel"', 'spacing = "exponential"')
    target = own_target(tmp_path, '[[op]]\nops = ["Conv"]\n', header=header)
    b = ModelBuilder()
    conv(b, image(b), "conv")
    b.output("conv_out")
    found = edge(calibrated(b.build(), target), "conv.output[0]")
    assert (found.in_scale, found.in_dtype) == FLOATS


def test_a_plan_without_scales_is_refused() -> None:
    with pytest.raises(PlanError, match="calibrate the plan first"):
        infer_edges(planned(residual(), "integer-pow2"))


@pytest.fixture
def registered() -> Iterator[None]:
    """Put back what the test registers."""
    scale, dtype = SCALE_INFERENCES["GlobalAveragePool"], DTYPE_INFERENCES["GlobalAveragePool"]
    yield
    SCALE_INFERENCES["GlobalAveragePool"], DTYPE_INFERENCES["GlobalAveragePool"] = scale, dtype


@pytest.mark.usefixtures("registered")
def test_others_can_register_an_operator() -> None:
    plan = calibrated(residual(), "integer-pow2")

    @infers_scale("GlobalAveragePool")
    def third(node: ir.Node, scales: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        assert node.name == "mean"
        return np.asarray(scales[0] / 3)

    @infers_dtype("GlobalAveragePool")
    def narrow(node: ir.Node, taken: Sequence[DType], accumulator: DType) -> DType:
        assert (node.name, taken, accumulator) == ("mean", [DType.INT8], DType.INT32)
        return DType.INT16

    found = edge(plan, "mean.output[0]")
    assert found.in_scale == config(plan, "mean.input[0]").scale.astype(np.float64) / 3  # type: ignore[union-attr]
    assert found.in_dtype is DType.INT16
