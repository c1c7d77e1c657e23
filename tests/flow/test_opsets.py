"""Models of old opsets: what is written of them computes what ONNX Runtime computes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import intact
from tests import models, opset_nets

CHANGED = (
    "Softmax1",
    "Softmax2",
    "SoftmaxPixel",
    "LogSoftmax1",
    "GroupNormalization",
    "ReduceMean",
    "ReduceMaxDropped",
    "Split",
    "Squeeze",
    "Dropout",
    "Clip",
    "Pad",
    "Slice",
)
"""Forms that change between opset 11 and 21, all of which the targets have."""


@pytest.mark.parametrize("opset", [8, 11, 18])
@pytest.mark.parametrize(
    ("target", "options", "package", "least"),
    [
        ("onnxruntime", {"weight_bits": 4}, "onnxruntime", 10),
        ("openvino", {}, "openvino", 25),
        ("tflite", {}, "ai_edge_litert", 25),
    ],
)
def test_changed_forms_stay_what_they_are_between_integer_layers(
    opset: int, target: str, options: dict[str, Any], package: str, least: float
) -> None:
    pytest.importorskip(package)
    lacks = {"GroupNormalization"} if target == "tflite" else set()
    source = opset_nets.net(opset, lambda name: name in CHANGED and name not in lacks)
    x = np.random.default_rng(1).normal(size=(16, *opset_nets.SHAPE)).astype(np.float32)
    result = intact.quantize(source, x, target=target, preset="fast", **options)
    expected = models.run_model(source, {"x": x})
    found = intact.execute(result, x).outputs
    for name, array in expected.items():
        noise = ((found[name] - array) ** 2).sum()
        assert 10 * np.log10((array**2).sum() / max(noise, 1e-20)) > least, name
