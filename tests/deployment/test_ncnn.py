"""Int8 layers in ncnn against the integer engine, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from intact import quantize, verify
from intact.errors import PlanError
from intact.formats.base.report import Verification
from intact.formats.ncnn.run import verify_ncnn
from intact.plan import QuantizedGraph
from tests.formats.ncnn.cases import CASES, build_case, written_from
from tests.models import MODELS, ModelBuilder, random_inputs
from tests.plans import calibrated

pytestmark = pytest.mark.runtime_fact("ncnn")

pytest.importorskip("ncnn")


def verified(model: onnx.ModelProto, plan: QuantizedGraph, batch: int = 3) -> Verification:
    feeds = [random_inputs(model, batch=batch, seed=seed) for seed in (1, 2)]
    found = verify_ncnn(plan, written_from(plan), feeds, threads=1)
    assert found.samples == 2 * batch
    return found


def assert_exact(found: Verification, products: int) -> None:
    assert len(found.layers) == 2 * products
    assert all(layer.values for layer in found.layers)
    differing = {layer.end: layer.largest for layer in found.layers if layer.mismatches}
    assert not differing
    assert not found.in_float


def windows(
    outputs: int, kernel: int, *, end: str = "", bias: bool = True, **attributes: Any
) -> Callable[[ModelBuilder, str], str]:
    def build(b: ModelBuilder, x: str) -> str:
        weight = b.weight(outputs, 16 // attributes.get("group", 1), kernel, kernel)
        x = b.node("Conv", x, weight, *([b.weight(outputs)] if bias else []), **attributes)
        return b.node("Relu", x) if end == "relu" else b.clip(x, 0, 0.75) if end else x

    return build


LAYERS: Mapping[str, Callable[[ModelBuilder, str], str]] = {
    "3x3": windows(19, 3, pads=[1, 1, 1, 1]),
    "3x3, relu": windows(19, 3, end="relu"),
    "3x3, clip": windows(19, 3, end="clip"),
    "3x3, stride 2": windows(20, 3, strides=[2, 2], pads=[0, 0, 1, 1]),
    "no bias": windows(17, 3, bias=False),
    "1x1": windows(33, 1, end="relu"),
    "1x1, stride 2": windows(9, 1, strides=[2, 2]),
    "5x5, dilated": windows(7, 5, dilations=[2, 2], pads=[4, 4, 4, 4]),
    "depthwise": windows(16, 3, group=16, pads=[1, 1, 1, 1]),
    "depthwise, relu": windows(16, 3, group=16, end="relu"),
    "depthwise, clip": windows(16, 3, group=16, end="clip"),
    "depthwise, stride 2": windows(16, 3, group=16, strides=[2, 2], end="relu"),
    "depthwise, strides 2 and 1": windows(16, 3, group=16, strides=[2, 1]),
    "depthwise, stride 3": windows(16, 3, group=16, strides=[3, 3]),
    "depthwise, dilated": windows(16, 3, group=16, dilations=[2, 2]),
    "depthwise 5x5": windows(16, 5, group=16, end="relu"),
    "depthwise 1x1": windows(16, 1, group=16),
    "depthwise without bias": windows(16, 3, group=16, bias=False, end="clip"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_int8_windows_are_exact(name: str) -> None:
    b = ModelBuilder()
    b.output(LAYERS[name](b, b.input("x", ["batch", 16, 11, 12])))
    model = b.build()
    assert_exact(verified(model, calibrated(model, "ncnn")), 1)


@pytest.mark.parametrize(
    "name",
    [
        *("gemm", "gemm, turned", "gemm without bias", "gemm, relu", "matmul", "dense of images"),
        *("conv along rows", "conv along rows, depthwise"),
    ],
)
def test_int8_dense_layers_and_convolutions_of_rows_are_exact(name: str) -> None:
    assert name in CASES
    model = build_case(name)
    assert_exact(verified(model, calibrated(model, "ncnn")), 1)


def test_one_row_by_a_matrix_keeps_its_axes() -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["batch", 1, 8]), b.weight(8, 6))
    b.output(b.node("Softmax", x, axis=1))  # ones; of a vector ncnn takes it along that
    model = b.build()
    found = verified(model, calibrated(model, "ncnn"))
    assert_exact(found, 1)
    assert found.outputs[0].largest < 1e-6


@pytest.mark.parametrize(("name", "products"), [("residual", 4), ("depthwise", 4)])
def test_networks_are_exact_layer_by_layer(name: str, products: int) -> None:
    model = MODELS[name].build(17)
    found = verified(model, calibrated(model, "ncnn"))
    assert_exact(found, products)
    assert found.runtime.startswith("ncnn 1.")
    assert found.outputs_sqnr_db["logits"] > 30  # by default ncnn is less precise
    assert found.agreement is not None


def test_result_that_is_an_output_and_read_further_is_exact() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("x", ["batch", 3, 5, 5]), 3, 4)
    y = b.conv(x, 4, 4)
    b.output(x)
    b.output(y)
    b.output(b.node("Add", x, y, out="sum"))
    model = b.build()
    assert_exact(verified(model, calibrated(model, "ncnn")), 2)


def test_winograd_has_six_bit_weights() -> None:
    model = MODELS["residual"].build(17)
    plan = calibrated(model, "ncnn-winograd")
    largest = {str(end): config.quant_max for end, config in plan.configs.items()}
    assert sorted(v for k, v in largest.items() if k.endswith("input[1]") and v < 200) == [
        31,
        31,
        31,
        127,
    ]
    assert_exact(verified(model, plan), 4)


def test_weights_of_another_model_mismatch() -> None:
    model = MODELS["residual"].build(17)
    plan = calibrated(model, "ncnn")
    written = written_from(plan)
    other = bytearray(written.weights)
    other[8] ^= 1  # a code of the first layer
    feeds = [random_inputs(model, batch=2)]
    found = verify_ncnn(plan, replace(written, weights=bytes(other)), feeds, threads=1)
    wrong = [layer for layer in found.layers if layer.mismatches]
    assert len(wrong) == 1  # teacher-forced: its layer alone
    assert wrong[0].operation == "Convolution"
    assert np.isfinite(wrong[0].largest)


def test_result_is_verified_from_its_folder_unless_it_was_changed(tmp_path: Path) -> None:
    model = MODELS["residual"].build(17)
    feeds = random_inputs(model, batch=6)
    result = quantize(model, feeds, target="ncnn", threads=1)
    folder = tmp_path / "out"
    result.save(folder)
    found = verify(folder, feeds, threads=1)
    assert found.format == "ncnn"
    assert not any(layer.mismatches for layer in found.layers)
    path = folder / "model.int8.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(PlanError, match=r"model\.int8\.bin is not what this plan gives"):
        verify(folder, feeds, threads=1)


def test_a_model_without_integers_is_verified_by_its_outputs() -> None:
    model = build_case("relu")
    found = verified(model, calibrated(model, "ncnn"))
    assert not found.layers
    assert min(found.outputs_sqnr_db.values()) > 100
