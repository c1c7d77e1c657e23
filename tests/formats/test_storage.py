"""Whether a file is as small as its plan says, or says that it is not."""

from __future__ import annotations

import functools

import onnx
import pytest

import intact
from intact.errors import IntactError
from intact.plan import NoteKind, QuantizedGraph
from intact.results.result import Result
from tests.models import ModelBuilder, random_inputs

_CODES = 16 * 64 * 9 + 64 * 256
"""Of the two weights of the model below."""

_BESIDE = 2_500
"""Bytes by which the structure around codes may differ between widths."""


def model() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", ["batch", 16, 6, 6])
    x = b.node("Conv", x, b.weight(64, 16, 3, 3), name="conv")
    x = b.node("GlobalAveragePool", b.node("Relu", x))
    b.output(b.node("Gemm", b.node("Flatten", x), b.weight(64, 256)), ["batch", 256])
    return b.build()


@functools.cache
def quantized(target: str, bits: int) -> Result:
    net = model()
    return intact.quantize(
        net,
        data=random_inputs(net, batch=8),
        target=target,
        weight_bits=bits,
        preset="fast",
        progress=None,
    )


def notes(plan: QuantizedGraph) -> list[str]:
    return [n.message for n in plan.notes if n.kind is NoteKind.EXPORT and "bits each" in n.message]


@pytest.mark.crossed
@pytest.mark.parametrize("bits", [2, 4, 6])
@pytest.mark.parametrize(
    "target",
    ["onnxruntime", "openvino", "tflite", "ncnn", "tvm", "nnie"],
)
def test_a_file_larger_than_its_plan_says_so(target: str, bits: int) -> None:
    if target == "openvino":
        pytest.importorskip("openvino")
    result = quantized(target, bits)
    bytes_of_eight = quantized(target, 8).sizes()[1]
    as_planned = bytes_of_eight + _CODES * (bits - 8) // 8
    is_as_planned = result.sizes()[1] <= as_planned + _BESIDE
    assert is_as_planned is not bool(notes(result.plan))


@pytest.mark.parametrize(("target", "bits"), [("tengine", 4), ("tensorrt", 6), ("tflite", 12)])
def test_widths_that_a_format_cannot_hold_are_refused(target: str, bits: int) -> None:
    with pytest.raises(IntactError, match=r"bits|codes"):
        quantized(target, bits)


def test_widths_of_the_target_need_no_word() -> None:
    net = model()
    feeds = random_inputs(net, batch=8)
    for target in ("openvino-avx2", "onnxruntime", "ncnn-winograd"):
        found = intact.quantize(net, data=feeds, target=target, preset="fast", progress=None)
        assert notes(found.plan) == []


@pytest.mark.runtime_fact("openvino")
def test_codes_of_four_bits_stand_two_a_byte_for_openvino() -> None:
    """In a type of their own they would be computed with in floats."""
    pytest.importorskip("openvino")
    feeds = random_inputs(model(), batch=8)
    narrow, wide = quantized("openvino", 4), quantized("openvino", 8)
    assert wide.sizes()[1] - narrow.sizes()[1] > _CODES // 2 - _BESIDE
    found = intact.verify(narrow, data=feeds)
    assert found.layers
    assert not any(layer.mismatches for layer in found.layers)
    assert not found.float_nodes
