"""Sums of 8-bit products in ONNX Runtime: exact on every processor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest

from intact.engines.cpu import detect_cpu
from intact.engines.exact_sums import OPTION, exact_sums, saturates_pairs, shares_weights
from tests.formats.onnx_qdq.pairs import PairBuilder

pytestmark = pytest.mark.runtime_fact("onnxruntime")


def test_the_runtime_saturates_where_the_processor_does() -> None:
    cpu = detect_cpu()
    if cpu.saturates_pairs is None:
        pytest.skip(f"what {cpu.name} does is not known")
    assert saturates_pairs() == cpu.saturates_pairs


def convolutions(*, shared: bool) -> tuple[ir.Model, npt.NDArray[np.int8]]:
    """Two 1x1 convolutions behind each other, of eight channels, whose pairs saturate."""
    b = PairBuilder()
    codes = b.random.integers(100, 128, (8, 8, 1, 1)).astype(np.int8)
    scales, zeros = np.full(8, 0.01, np.float32), np.zeros(8, np.int8)
    x = b.pair(b.input("x", ["n", 8, 4, 4]), 1.0, np.uint8(0))
    weights = [b.dequantize(b.constant(codes), scales, zeros, axis=0)]
    weights.append(weights[0] if shared else b.dequantize(b.constant(codes), scales, zeros, axis=0))
    for weight, scale in zip(weights, (8.0, 64.0), strict=True):
        x = b.pair(b.node("Conv", x, weight), scale, np.uint8(0))
    b.output(x)
    return ir.from_proto(b.build()), codes


def run(
    model: ir.Model, options: ort.SessionOptions, x: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    options.log_severity_level = 4
    content = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return np.asarray(found)


@pytest.mark.parametrize("shared", [False, True])
def test_sums_are_exact_also_of_shared_weights(shared: bool) -> None:
    model, codes = convolutions(shared=shared)
    assert shares_weights(model) == shared
    x = np.random.default_rng(0).integers(200, 256, (2, 8, 4, 4)).astype(np.float32)
    options = ort.SessionOptions()
    found = run(exact_sums(model, options), options, x)
    want = x
    for scale in (8.0, 64.0):
        sums = np.einsum("oi,nihw->nohw", codes[:, :, 0, 0].astype(np.float64), want)
        want = scale * np.clip(np.rint(sums * 0.01 / scale), 0, 255)
    np.testing.assert_array_equal(found, want)


def test_options_and_model_are_not_touched_where_sums_are_exact_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("intact.engines.exact_sums.saturates_pairs", lambda: False)
    model, _ = convolutions(shared=True)
    options = ort.SessionOptions()
    assert exact_sums(model, options) is model
    with pytest.raises(RuntimeError):  # it has no such entry
        options.get_session_config_entry(OPTION)


def test_no_weights_are_copied_that_one_node_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact.engines.exact_sums.saturates_pairs", lambda: True)
    model, _ = convolutions(shared=False)
    options = ort.SessionOptions()
    assert exact_sums(model, options) is model
    assert options.get_session_config_entry(OPTION) == "1"


def test_factors_that_nodes_share_are_copied_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact.engines.exact_sums.saturates_pairs", lambda: True)
    b = PairBuilder()
    factor = b.dequantize(b.constant(np.array(64, np.int8)), np.float32(0.5), np.int8(0))
    x = b.pair(b.input("x", ["n", 4]), 1.0, np.int8(0))
    for _ in range(2):
        x = b.pair(b.node("Mul", x, factor), 32.0, np.int8(0))
    b.output(x)
    model = ir.from_proto(b.build())
    assert shares_weights(model)
    codes = np.array([[-128, -1, 0, 3]], np.float32)
    found = run(exact_sums(model, ort.SessionOptions()), ort.SessionOptions(), codes)
    options = ort.SessionOptions()
    np.testing.assert_array_equal(run(exact_sums(model, options), options, codes), found)
    np.testing.assert_array_equal(found, [[-4096, -1024, 0, 3072]])


def test_a_zero_point_that_nodes_share_is_no_weight() -> None:
    b = PairBuilder()
    zero, scale = b.constant(np.array(0, np.int8)), b.constant(np.float32(1.0))
    x = b.input("x", ["n", 4])
    for _ in range(2):
        x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)
        x = b.node("Relu", x)
    b.output(x)
    assert not shares_weights(ir.from_proto(b.build()))


def test_a_zero_point_that_weights_share_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact.engines.exact_sums.saturates_pairs", lambda: True)
    b = PairBuilder()
    zero, scale = b.constant(np.array(0, np.int8)), b.constant(np.float32(1.0))
    x = b.input("x", ["n", 4])
    for number in (80, -90):  # the runtime leaves those within 64 alone
        x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)
        constant = b.node("DequantizeLinear", b.constant(np.array(number, np.int8)), scale, zero)
        x = b.node("Add", x, constant)
    b.output(x)
    model = ir.from_proto(b.build())
    assert shares_weights(model)
    options = ort.SessionOptions()
    codes = np.array([[-20, -1, 0, 3]], np.float32)
    np.testing.assert_array_equal(run(exact_sums(model, options), options, codes), codes - 10)
