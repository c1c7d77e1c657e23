"""Spectra in front of a net stay float where integers lose more, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.plan import NoteKind
from intact.results.result import Result
from tests.models import ModelBuilder

_WINDOW, _BINS, _FRAMES = 64, 24, 40


def net(compress: str = "Log", *, as_matrix: bool = False) -> onnx.ModelProto:
    """A power spectrum of sounds, compressed, and layers behind it."""
    b = ModelBuilder()
    sound = b.input("sound", ["batch", 1, _WINDOW * _FRAMES])
    angles = 2 * np.pi * np.outer(np.arange(_BINS), np.arange(_WINDOW)) / _WINDOW
    window = np.hanning(_WINDOW)
    squares = []
    for name, waves in (("real", np.cos(angles)), ("imaginary", np.sin(angles))):
        kernel = (waves * window).astype(np.float32)
        if as_matrix:
            frames = b.node("Reshape", sound, b.constant(np.array([0, _FRAMES, _WINDOW])))
            part = b.node("MatMul", frames, b.constant(kernel.T), name=name)
            part = b.node("Transpose", part, perm=[0, 2, 1])
        else:
            part = b.node("Conv", sound, b.constant(kernel[:, None]), strides=[_WINDOW], name=name)
        squares.append(b.node("Mul", part, part))
    power = b.node("Add", b.node("Add", *squares), b.scalar(1e-5))
    x = {
        "Log": lambda: b.node("Log", power),
        "Sqrt": lambda: b.node("Sqrt", power),
        "Pow": lambda: b.node("Pow", power, b.scalar(0.2)),
        "Relu": lambda: b.node("Relu", power),
    }[compress]()
    x = b.node("Relu", b.node("Conv", x, b.weight(128, _BINS, 3), name="first"))
    x = b.node("Relu", b.node("Conv", x, b.weight(128, 128, 3), name="second"))
    b.output(b.node("Conv", x, b.weight(4, 128, 1), name="third"))
    return b.build()


def sounds(count: int, seed: int) -> npt.NDArray[np.float32]:
    """Tones that are loud and low, with others that are a hundred times as quiet."""
    random = np.random.default_rng(seed)
    time = np.arange(_WINDOW * _FRAMES) / _WINDOW
    found = np.zeros((count, 1, len(time)))
    for sample in range(count):
        for loudness, low, high in ((1, 2, 5), (0.05, 6, 12), (0.003, 13, 22)):
            found[sample] += loudness * np.sin(2 * np.pi * random.uniform(low, high) * time)
    return found.astype(np.float32)


def quantized(model: onnx.ModelProto, target: str, **options: Any) -> Result:
    return intact.quantize(model, {"sound": sounds(16, 1)}, target=target, **options)


def decibels(result: Result) -> float:
    return float(intact.evaluate(result, {"sound": sounds(8, 2)}).sqnr_db)


def notes(result: Result) -> list[str]:
    return [str(note) for note in result.plan.notes if note.kind is NoteKind.HEAD]


@pytest.mark.parametrize(
    ("target", "compress", "as_matrix"),
    [("onnxruntime", "Log", False), ("onnxruntime", "Log", True), ("tflite", "Log", False)],
)
def test_a_spectrum_that_is_compressed_stays_float(
    target: str, compress: str, *, as_matrix: bool
) -> None:
    """The input too, where it would be integers; 10 dB are no chance."""
    model = net(compress, as_matrix=as_matrix)
    result, integers = (quantized(model, target, quantize_heads=each) for each in (False, True))
    assert decibels(result) > decibels(integers) + 10
    (note,) = notes(result)
    assert note.endswith("--quantize-heads undoes it")
    assert notes(integers) == []
    names = ("real", "imaginary", "first", "second", "third")
    assert [result.plan.decisions[each].quantized for each in names] == [False] * 2 + [True] * 3
    assert all(integers.plan.decisions[each].quantized for each in names)


def test_layers_before_stay_integer_where_that_gains_nothing() -> None:
    """The fifth root of a spectrum has 28 dB with integers before it, where integers make it."""
    (note,) = notes(quantized(net("Pow"), "tflite"))
    assert "float" in note
    assert notes(quantized(net("Pow"), "onnxruntime")) == []


def test_what_layers_read_as_it_is_stays_integer() -> None:
    result = quantized(net("Relu"), "onnxruntime")
    assert notes(result) == []
    assert result.plan.decisions["real"].quantized


def test_a_target_without_floats_is_left_as_it_is() -> None:
    result = quantized(net("Sqrt"), "tflite-micro", formats=["c"])
    assert notes(result) == []
