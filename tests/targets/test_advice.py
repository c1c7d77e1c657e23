"""Advice follows from what targets say of themselves, and never names the one at hand."""

from __future__ import annotations

import numpy as np
import pytest

import intact
from intact.errors import ExportError
from intact.targets import load_target, target_names
from intact.targets.advice import advice, quantize_for, quantize_for_saturating_pairs
from tests.models import ModelBuilder


@pytest.mark.crossed
@pytest.mark.parametrize("format_name", ["ncnn", "tengine", "tensorrt", "tflite", "tvm"])
@pytest.mark.parametrize("current", target_names())
def test_only_a_target_of_another_format_is_sent_elsewhere(format_name: str, current: str) -> None:
    said = quantize_for(format_name, current)
    if load_target(current).formats[:1] == (format_name,):
        assert said == ""
    else:
        assert load_target(said.split()[-1]).formats[0] == format_name


def test_processors_that_saturate_have_a_target_in_their_own_runtime() -> None:
    found = {name: quantize_for_saturating_pairs(load_target(name)) for name in target_names()}
    assert "--target onnxruntime-avx2" in found["onnxruntime"]
    assert "--target openvino-avx2" in found["openvino"]
    for name, said in found.items():
        target = load_target(name)
        if target.arithmetic.pairs is not None:
            assert said == ""
        if said:
            named = load_target(said.rstrip(")").split()[-1])
            assert named.formats[0] == target.formats[0]


def test_phrases_are_joined() -> None:
    assert advice("a", "", "b") == "a, or b"
    assert advice("", "b") == "b"


@pytest.mark.parametrize("target", ["tflite", "onnxruntime"])
def test_no_target_is_named_where_none_helps(target: str) -> None:
    b = ModelBuilder(17)
    x = b.conv(b.input("x", ["batch", 4, 8, 8]), 4, 4)
    b.node("Conv", b.node("Asinh", x), b.weight(2, 4, 1, 1), out="y")
    b.output("y")
    data = np.random.default_rng(0).random((4, 4, 8, 8), np.float32)
    with pytest.raises(ExportError, match="Asinh") as refused:
        intact.quantize(b.build(), data, target=target, formats=["tflite"])
    assert "--" not in refused.value.with_flags
    assert "cut them from the model" in refused.value.with_flags
