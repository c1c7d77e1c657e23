"""Wrong preprocessing is found, named and mended; right preprocessing has no finding."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from intact.analyze.diagnose.findings import Finding
from intact.analyze.diagnose.preparations import Steps, preparations, rearrange
from intact.analyze.diagnose.preprocessing import preprocessing_findings
from intact.analyze.diagnose.trials import kept_samples
from intact.data.preprocess import Preprocess, preprocess_with
from intact.data.sources import open_samples
from intact.graph import Graph
from intact.graph.normalization import normalize
from intact.numerics.answers import information
from tests.images import CIFAR_MEAN, CIFAR_SCALE, Images, Preprocessing
from tests.models import ModelBuilder

Floats = npt.NDArray[np.float32]

RIGHT = Preprocess(CIFAR_MEAN, CIFAR_SCALE)
NONE = Preprocess()
TURNED = Preprocess(CIFAR_MEAN, tuple(1 / each for each in CIFAR_SCALE))
SMALL = preprocess_with(NONE, {"normalize": "0..1"})


def as_is(pixels: Floats) -> Floats:
    return pixels


def small(pixels: Floats) -> Floats:
    return np.asarray(pixels / 255, np.float32)


def bgr(pixels: Floats) -> Floats:
    return pixels[:, ::-1].copy()


def other_layout(pixels: Floats) -> Floats:
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).reshape(pixels.shape)


def normalized(pixels: Floats) -> Floats:
    scaled: Floats = RIGHT("image", pixels)
    return scaled


@cache
def read(model: Path) -> Graph:
    return normalize(model)


def findings(
    model: Path | onnx.ModelProto,
    pixels: Floats,
    given: Preprocess,
    labels: npt.NDArray[Any] | None = None,
) -> list[Finding]:
    graph = read(model) if isinstance(model, Path) else normalize(model)
    data: dict[str, Any] = {str(graph.inputs[0].name): pixels}
    if labels is not None:
        data["labels"] = labels
    samples = open_samples(data, graph, preprocess=given)
    return preprocessing_findings(graph, samples, preprocess=given, threads=1)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(
    ("name", "prepared", "given"),
    [
        ("mlperf_resnet8", as_is, NONE),
        ("resnet20", as_is, RIGHT),
        ("resnet20", normalized, NONE),
        ("mobilenetv2-raw", as_is, RIGHT),
    ],
)
def test_right_preprocessing_has_no_finding(
    name: str,
    prepared: Callable[[Floats], Floats],
    given: Preprocess,
    labelled: bool,
    zoo: Path,
    cifar: Callable[..., Images],
) -> None:
    images = cifar("test", 128, Preprocessing.PIXELS)
    labels = images.labels if labelled else None
    assert findings(zoo / f"{name}.onnx", prepared(images.image), given, labels) == []


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(
    ("name", "prepared", "given", "mended"),
    [
        ("resnet20", as_is, NONE, 70),
        ("resnet20", small, RIGHT, 70),
        ("resnet20", as_is, TURNED, 70),
        ("resnet20", as_is, SMALL, 70),
        ("resnet20", small, NONE, 70),
        ("resnet20", normalized, RIGHT, 70),
        ("mobilenetv2-raw", as_is, NONE, 70),
        ("mlperf_resnet8", small, NONE, 70),
        ("mlperf_resnet8", as_is, SMALL, 70),
    ],
)
def test_the_remedy_of_wrong_preprocessing_mends_it(
    name: str,
    prepared: Callable[[Floats], Floats],
    given: Preprocess,
    mended: float,
    labelled: bool,
    zoo: Path,
    cifar: Callable[..., Images],
) -> None:
    images = cifar("test", 128, Preprocessing.PIXELS)
    data, labels = prepared(images.image), images.labels
    model = zoo / f"{name}.onnx"
    (found,) = findings(model, data, given, labels if labelled else None)
    assert found.cause == "preprocessing"
    assert found.severity > 1
    options = {n: v for n, v in found.remedies[0].options.items() if v is not None}
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"image": preprocess_with(given, options)("image", data)})
    assert 100 * float((np.asarray(scores).argmax(axis=1) == labels).mean()) > mended


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(
    ("prepared", "text"),
    [(bgr, "array[:, ::-1]"), (other_layout, "array.reshape(N, H, W, C).transpose(0, 3, 1, 2)")],
)
def test_what_no_option_mends_is_said(
    prepared: Callable[[Floats], Floats],
    text: str,
    labelled: bool,
    zoo: Path,
    cifar: Callable[..., Images],
) -> None:
    images = cifar("test", 256, Preprocessing.PIXELS)
    labels = images.labels if labelled else None
    (found,) = findings(zoo / "resnet20.onnx", prepared(images.image), RIGHT, labels)
    assert text in found.remedies[0].text
    assert not found.remedies[0].options


def test_pictures_that_lie_right_are_not_offered_another_layout(
    zoo: Path, cifar: Callable[..., Images]
) -> None:
    images = cifar("test", 256, Preprocessing.PIXELS)
    middle = 8 + np.arange(32) // 2
    cut = images.image[:, :, middle][:, :, :, middle]
    found = findings(zoo / "resnet20.onnx", cut, RIGHT, images.labels)
    assert [each.cause for each in found] == ["preprocessing"]
    assert "layout" not in found[0].evidence + found[0].remedies[0].text
    assert "cut less away" in found[0].remedies[0].text


def pictures(count: int, seed: int = 0) -> Floats:
    """Draw smooth pictures of 0 to 255, ``[count, 3, 8, 8]``."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (count, 3, 2, 2))
    wide = np.repeat(np.repeat(coarse, 4, axis=2), 4, axis=3)
    return np.asarray((wide + np.roll(wide, 1, 2) + np.roll(wide, 1, 3)) / 3, np.float32)


def net(seed: int, moments: tuple[Any, Any] | None) -> onnx.ModelProto:
    """Build an untrained net, with BatchNormalization of the given moments."""
    b = ModelBuilder(seed=seed)
    x = b.conv(b.input("x", ["N", 3, 8, 8]), 3, 8)
    if moments is not None:
        ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
        parts = [b.constant(each.astype(np.float32)) for each in (ones, zeros, *moments)]
        x = b.node("BatchNormalization", x, *parts)
    else:
        b.output(x, ["N", 8, 8, 8])
        return b.build()
    x = b.node("Flatten", b.node("GlobalAveragePool", b.node("Relu", x)))
    b.output(b.node("Gemm", x, b.weight(8, 10), b.weight(10)), ["N", 10])
    return b.build()


def remembering(seed: int, given: Preprocess) -> onnx.ModelProto:
    """Build a net whose BatchNormalization remembers pictures that were prepared so."""
    session = ort.InferenceSession(net(seed, None).SerializeToString())
    (before,) = session.run(None, {"x": given("x", pictures(256, seed=7))})
    array = np.asarray(before)
    return net(seed, (array.mean(axis=(0, 2, 3)), array.var(axis=(0, 2, 3))))


@pytest.mark.parametrize("seed", range(4))
def test_batch_norms_tell_preprocessing_of_any_net(seed: int) -> None:
    imagenet = preprocess_with(NONE, {"normalize": "imagenet"})
    model = remembering(seed, imagenet)
    assert findings(model, pictures(64), imagenet) == []
    for data, given in ((pictures(64), NONE), (small(pictures(64)), imagenet)):
        (found,) = findings(model, data, given)
        assert "BatchNormalization remembers" in found.evidence
    assert findings(remembering(seed, NONE), pictures(64), NONE) == []
    (found,) = findings(remembering(seed, NONE), small(pictures(64)), NONE)
    assert found.remedies[0].options["scale"] == (255.0,)


@pytest.mark.parametrize("seed", range(6))
def test_an_untrained_net_has_no_finding(seed: int) -> None:
    """Its answers tell more, the greater the contrast: that is no sign of anything."""
    b = ModelBuilder(seed=seed)
    x = b.node("Relu", b.conv(b.input("x", ["N", 3, 8, 8]), 3, 8))
    x = b.node("Flatten", x)
    b.output(b.node("Gemm", x, b.weight(512, 10), b.weight(10)), ["N", 10])
    noise = np.random.default_rng(seed).normal(size=(64, 3, 8, 8)).astype(np.float32)
    for data in (np.asarray(pictures(64, seed) / 128 - 1, np.float32), noise):
        found = findings(b.build(), data, NONE)
        assert found == []


def test_a_mean_beyond_all_values_is_found_without_any_judge() -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("x", ["N", 3, 8, 8]), 3, 2), ["N", 2, 8, 8])
    (found,) = findings(b.build(), small(pictures(16)), Preprocess((125.0,), (1 / 64,)))
    assert "a mean of 125 is subtracted" in found.evidence
    options = found.remedies[0].options
    assert options["mean"] == (125 / 255,)
    assert options["scale"] == (255 / 64,)
    assert findings(b.build(), pictures(16), Preprocess((125.0,), (1 / 64,))) == []


def test_chance_and_one_class_are_found_without_a_remedy_that_is_an_option() -> None:
    b = ModelBuilder()
    x = b.input("x", ["N", 4])
    b.output(b.node("Softmax", x), ["N", 4])
    random = np.random.default_rng(0)
    values = random.normal(size=(256, 4)).astype(np.float32)
    (found,) = findings(b.build(), values, NONE, random.integers(0, 4, 256))
    assert "no more than by chance among 4 classes" in found.evidence
    assert found.unit == "points"
    assert findings(b.build(), values, NONE, values.argmax(axis=1)) == []
    values[:, 2] += 100
    (found,) = findings(b.build(), values, NONE)
    assert "class 2 for all 256 samples" in found.evidence
    assert "samples of several classes" in found.remedies[0].text


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.5])
def test_answers_that_are_far_surer_than_right_are_named(wrong: float) -> None:
    b = ModelBuilder()
    b.output(b.node("Softmax", b.input("x", ["N", 10])), ["N", 10])
    random = np.random.default_rng(1)
    labels = random.integers(0, 10, 256)
    values = 5 * np.eye(10, dtype=np.float32)[labels]  # sure of 0.94
    labels = np.where(random.random(256) < wrong, random.integers(0, 10, 256), labels)
    found = findings(b.build(), values, NONE, labels)
    assert bool(found) == (wrong == 0.5)
    for each in found:
        assert "as sure as if it were for 94." in each.evidence
        assert 0 < each.severity < 0.5  # quantizers are looked at all the same
        assert "size, crop" in each.remedies[0].text


def test_samples_that_are_sorted_by_class_are_kept_evenly_spread() -> None:
    b = ModelBuilder()
    b.output(b.node("Relu", b.input("x", ["N", 4])), ["N", 4])
    graph = normalize(b.build())
    labels = np.repeat(np.arange(10), 100)
    values = np.repeat(labels[:, None], 4, axis=1).astype(np.float32)
    kept = kept_samples(open_samples({"x": values, "labels": labels}, graph), 64)
    assert kept.labels is not None
    assert kept.count == 64
    assert len(set(kept.labels[:16].tolist())) >= 8
    np.testing.assert_array_equal(kept.labels, kept.inputs["x"][:, 0])


def test_samples_of_one_shape_are_kept_where_shapes_differ() -> None:
    b = ModelBuilder()
    b.output(b.node("Relu", b.input("x", ["N", "length"])), ["N", "length"])
    data = [{"x": np.full((1, 3 + at % 3), at, np.float32)} for at in range(10)]
    kept = kept_samples(open_samples(data, normalize(b.build())), 64)
    assert kept.inputs["x"].shape == (4, 3)


def test_steps_are_joined_undone_and_applied() -> None:
    values = pictures(2).astype(np.float32)
    first, then = Steps(np.array([3.0]), np.array([0.5])), Steps.of(RIGHT)
    joined = then.after(first).apply(values, 1)
    np.testing.assert_allclose(joined, then.apply(first.apply(values, 1), 1), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(
        then.inverse.apply(then.apply(values, 1), 1), values, rtol=1e-5, atol=1e-3
    )
    np.testing.assert_array_equal(rearrange(other_layout(values).astype(np.float64), 1), values)
    assert not any(each.steps.equals(then) for each in preparations(values, 1, RIGHT))


def test_information_is_none_for_one_answer_and_most_for_sure_ones() -> None:
    assert information(np.ones((8, 4), np.float32)).mean() == 0
    sure = information(100 * np.eye(4, dtype=np.float32)[np.arange(8) % 4])
    np.testing.assert_allclose(sure, 2)
