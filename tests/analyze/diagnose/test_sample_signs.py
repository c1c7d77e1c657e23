"""Calibration samples that tell little are named; inputs that may be constant are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import intact
from intact.analyze.diagnose.findings import Finding
from intact.errors import CalibrationError
from tests.models import ModelBuilder

Array = np.ndarray
RANDOM = np.random.default_rng(3)
NOISE = RANDOM.normal(size=(32, 3, 32, 32)).astype(np.float32)
PHOTOS = np.cumsum(np.cumsum(NOISE, axis=2), axis=3)


def net(shape: tuple[int, ...] = (3, 32, 32)) -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("image", ["batch", *shape])
    x = b.node("Relu", b.node("Conv", x, b.weight(8, 3, 3, 3)))
    b.node("Conv", x, b.weight(4, 8, 1, 1), out="y")
    b.output("y")
    return b.build()


def signs(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Finding]:
    found = intact.quantize(model, feeds, preset="fast", threads=1).findings
    return [each for each in found if each.cause == "calibration_samples"]


ODD: dict[str, tuple[Callable[[], Array], str]] = {
    "zero": (lambda: PHOTOS * 0, "input 'image' is 0 in all elements of all 32 sample(s)"),
    "constant": (lambda: PHOTOS * 0 + 5, "input 'image' is 5 in all"),
    "one zero": (lambda: PHOTOS[:1] * 0, "input 'image' is 0 in all"),
    "the same": (lambda: np.repeat(PHOTOS[:1], 32, axis=0), "all 32 samples are the same"),
    "nearly equal": (lambda: PHOTOS[:1] + 0.01 * NOISE, "(nearly) equal"),
    "one": (lambda: PHOTOS[:1], "1 sample(s) set all ranges"),
    "four": (lambda: PHOTOS[:4], "4 sample(s) set all ranges"),
    "four, repeated": (lambda: np.tile(PHOTOS[:4], (8, 1, 1, 1)), "4 samples, repeated"),
    "noise": (lambda: NOISE, "look like random noise"),
    "even noise": (lambda: RANDOM.random(PHOTOS.shape).astype("f4"), "look like random noise"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_samples_are_named_once_with_what_to_do(name: str) -> None:
    make, said = ODD[name]
    (found,) = signs(net(), {"image": make()})
    assert said in found.evidence
    assert "calibrate on some hundred samples" in found.remedies[0].text


def test_samples_that_differ_are_not_doubted() -> None:
    assert signs(net(), {"image": PHOTOS}) == []
    assert signs(net((3, 8, 8)), {"image": NOISE[..., :8, :8]}) == []  # too small to tell


def stream(rate: bool = True) -> onnx.ModelProto:
    """Frames with a state, a mask and a rate."""
    b = ModelBuilder()
    frames, state = b.input("frames", ["batch", 16]), b.input("state", ["batch", 64])
    mask, hertz = b.input("mask", ["batch", 64]), b.input("rate", ["batch", 1])
    x = b.node("Tanh", b.node("MatMul", frames, b.weight(16, 64)))
    x = b.node("Mul", b.node("Add", x, state), mask)
    x = b.node("Mul", x, b.node("Div", hertz, b.scalar(16000.0))) if rate else x
    b.node("MatMul", x, b.weight(64, 4), out="y")
    b.output("y")
    return b.build()


def frames(count: int = 32) -> dict[str, Array]:
    random = np.random.default_rng(5)
    return {
        "frames": random.normal(size=(count, 16)).astype(np.float32),
        "state": np.zeros((count, 64), np.float32),
        "mask": np.ones((count, 64), np.float32),
        "rate": np.full((count, 1), 16000, np.float32),
    }


def test_inputs_that_may_be_constant_are_not_doubted() -> None:
    assert signs(stream(), frames()) == []


def test_a_constant_input_is_named_where_the_outputs_do_not_vary() -> None:
    feeds = frames()
    varied = RANDOM.normal(size=(32, 64)).astype(np.float32)
    (found,) = signs(stream(), {**feeds, "mask": feeds["mask"] * 0, "state": varied})
    assert found.tensor == "mask"
    assert "the outputs of the float model are the same" in found.evidence


def test_columns_of_unlike_size_are_not_doubted() -> None:
    """A year varies by little of what a table's values do."""
    b = ModelBuilder()
    x = b.node(
        "Sub", b.input("table", ["batch", 3]), b.constant(np.array([2000, 0, 0], np.float32))
    )
    b.node("MatMul", x, b.weight(3, 2), out="y")
    b.output("y")
    columns = [RANDOM.integers(1990, 2026, 64), RANDOM.random(64), RANDOM.random(64)]
    assert signs(b.build(), {"table": np.stack(columns, axis=1).astype(np.float32)}) == []


def logarithm() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("Log", b.input("x", ["batch", 8]), out="logarithm")
    b.node("MatMul", x, b.weight(8, 4), out="y")
    b.output("y")
    return b.build()


def test_a_tensor_with_nan_is_named() -> None:
    drawn = RANDOM.normal(size=(32, 8)).astype(np.float32)
    (found,) = signs(logarithm(), {"x": drawn})
    assert found.tensor == "logarithm"
    assert "are NaN" in found.evidence


def test_what_fails_on_such_samples_tells_so() -> None:
    drawn = -1 - RANDOM.random((32, 8)).astype(np.float32)
    with pytest.raises(CalibrationError) as raised:
        signs(logarithm(), {"x": drawn})
    assert "100 % of the values of tensor 'logarithm' are NaN" in str(raised.value)
    assert "tensor 'logarithm': no finite value was observed" in str(raised.value)


def classifier(classes: int = 10) -> onnx.ModelProto:
    """The brightest of so many quarters of an image is its class."""
    b = ModelBuilder()
    x = b.node("Flatten", b.input("image", ["batch", 1, 1, classes * 2]))
    pairs = np.kron(np.eye(classes), np.ones((2, 1))).astype(np.float32)
    b.node("MatMul", x, b.constant(pairs), out="y")
    b.output("y")
    return b.build()


def brightest(classes: Array, count: int = 10) -> dict[str, Array]:
    values = RANDOM.random((len(classes), 1, 1, count * 2)).astype(np.float32)
    for row, each in zip(values, classes, strict=True):
        row[..., 2 * each : 2 * each + 2] += 6
    return {"image": values}


@pytest.mark.parametrize("labelled", [True, False])
def test_samples_of_one_class_are_named(labelled: bool) -> None:
    def found(classes: Array) -> list[Finding]:
        labels = {"labels": classes} if labelled else {}
        return signs(classifier(), brightest(classes) | labels)

    (one,) = found(np.full(32, 3))
    assert ("by their labels" if labelled else "100 % of 8 samples the same class") in one.evidence
    assert "samples of all classes" in one.remedies[0].text
    assert found(np.arange(32) % 10) == []


def test_one_class_by_labels_of_something_else_is_not_named() -> None:
    assert signs(classifier(), brightest(np.arange(32) % 10) | {"labels": np.zeros(32, int)}) == []
