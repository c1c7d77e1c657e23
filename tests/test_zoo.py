"""The main promise on real models: int8 in ONNX Runtime, as accurate as float."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy.typing as npt
import pytest

import intact
from intact.formats.onnx_qdq.executed import float_leftovers
from intact.results.folder import FILES
from intact.results.result import Result
from tests.images import Images, Preprocessing

CNNS = ("resnet20", "mobilenetv2", "mobilenetv2-raw", "mlperf_resnet8")
TEST_IMAGES = 2000
CALIBRATION_IMAGES = 256


@pytest.fixture(scope="module")
def quantized(zoo: Path, cifar: Callable[..., Images]) -> Callable[[str], Result]:
    """A function that quantizes a zoo model with its default method, once."""

    @cache
    def quantize(name: str) -> Result:
        images = cifar("calib", CALIBRATION_IMAGES, _preprocessing(name))
        return intact.quantize(zoo / f"{name}.onnx", {"image": images.image})

    return quantize


def _preprocessing(name: str) -> Preprocessing:
    return Preprocessing.PIXELS if name.startswith("mlperf") else Preprocessing.NORMALIZED


@pytest.mark.parametrize(("name", "points"), [*((name, 0.6) for name in CNNS), ("vit", 1.0)])
def test_int8_is_as_accurate_as_float(
    name: str,
    points: float,
    quantized: Callable[[str], Result],
    cifar: Callable[..., Images],
) -> None:
    # Twice the loss that the benchmark allows on all 5,000 images: these are 2,000.
    images = cifar("test", TEST_IMAGES, _preprocessing(name))
    data: dict[str, npt.ArrayLike] = {"image": images.image, "labels": images.labels}
    found = intact.evaluate(quantized(name), data)
    assert found.accuracy is not None
    before, after = found.accuracy.top1
    assert before > 65
    assert before - after <= points
    assert found.sqnr_db > 20
    assert found.bytes[0] / found.bytes[1] > 2


@pytest.mark.parametrize("name", CNNS)
def test_the_runtime_leaves_nothing_of_a_cnn_in_float(
    name: str, quantized: Callable[[str], Result]
) -> None:
    result = quantized(name)
    nodes = result.plan.decisions
    assert set(float_leftovers(result.exported.model, nodes).values()) <= {"Softmax"}


def test_every_product_of_the_transformer_is_integer(quantized: Callable[[str], Result]) -> None:
    result = quantized("vit")
    graph = result.plan.graph
    products = [str(n.name) for n in graph.nodes if n.op_type in {"MatMul", "Gemm", "Conv"}]
    assert len(products) == 38
    assert float_leftovers(result.exported.model, products) == {}


@pytest.mark.parametrize("name", ["resnet20", "mlperf_resnet8", "vit"])
def test_the_engine_agrees_with_the_runtime_layer_by_layer(
    name: str, quantized: Callable[[str], Result], cifar: Callable[..., Images]
) -> None:
    images = cifar("test", 16, _preprocessing(name))
    found = intact.verify(quantized(name), {"image": images.image})
    values = sum(layer.values for layer in found.layers)
    assert values > 100_000
    assert sum(layer.mismatches for layer in found.layers) == 0
    assert max(layer.largest for layer in found.layers) <= 1
    assert min(found.outputs_sqnr_db.values()) > 30


def test_the_same_input_gives_the_same_bytes(
    zoo: Path, cifar: Callable[..., Images], tmp_path: Path
) -> None:
    images = cifar("calib", 40, Preprocessing.PIXELS)
    for folder, threads in (("a", 1), ("b", 2)):
        intact.quantize(
            zoo / "mlperf_resnet8.onnx",
            {"image": images.image},
            output=tmp_path / folder,
            threads=threads,
        )
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(FILES)
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
