"""Hybrid files: float activations, weights of codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact.config import QuantState
from intact.engines.session import FloatModel
from intact.formats.tflite.read import read_tflite
from intact.targets import load_target
from tests.formats.tflite.read_layers import SAME, some_scales
from tests.formats.tflite.small_files import FileBuilder, reference

TARGET = load_target("tflite")


def hybrid(b: FileBuilder, **dense: Any) -> bytes:
    """Return a file with a convolution and a dense layer, both with int8 weights."""
    x = b.input((1, 6, 6, 3), "float32", name="image")
    weight = b.codes((4, 3, 3, 3), scale=some_scales(4))
    bias = b.tensor((4,), "float32", data=[0.5, -0.2, 0.1, 0])
    y = b.op("CONV_2D", [x, weight, bias], b.tensor((1, 3, 3, 4), "float32"), "Conv2DOptions",
             padding=SAME, strideH=2, strideW=2, dilationHFactor=1, dilationWFactor=1,
             fusedActivationFunction=1, version=5)  # fmt: skip
    y = b.op("RESHAPE", [y, b.ints(1, 36)], b.tensor((1, 36), "float32"))
    weight = b.codes((5, 36), scale=0.02)
    out = b.tensor((1, 5), "float32", name="scores")
    b.op("FULLY_CONNECTED", [y, weight, -1], out, "FullyConnectedOptions", version=4, **dense)
    return b.build(out)


def test_a_hybrid_file_is_a_float_model_with_its_weights() -> None:
    data = hybrid(FileBuilder(), asymmetricQuantizeInputs=True)
    plan = read_tflite(data, TARGET)
    image = np.random.default_rng(0).normal(size=(1, 6, 6, 3)).astype(np.float32)
    (found,) = FloatModel(plan.graph).run({"image": image}).values()
    interpreter = reference(data)
    interpreter.set_tensor(0, image)
    interpreter.invoke()
    expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.05  # LiteRT rounds what it multiplies
    weights = list(plan.baked)
    assert [plan.configs[end].state for end in weights] == [QuantState.BAKED] * 2
    assert any("at run time" in note.message for note in plan.notes)
