"""Too few and unlike calibration samples are found; alike ones are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import intact
from intact.analyze.diagnose.calibration_samples import calibration_findings, range_shifts
from intact.analyze.diagnose.findings import Finding
from intact.data.sources import open_samples
from intact.graph import Graph
from intact.results.result import Result
from tests.images import Images, Preprocessing
from tests.models import ModelBuilder, residual_net

Floats = npt.NDArray[np.float32]


def found_in(result: Result, data: dict[str, Floats]) -> list[Finding]:
    assert result.statistics is not None
    samples = open_samples(data, result.plan.graph)
    return calibration_findings(result.plan, result.statistics, samples)


@pytest.mark.parametrize(
    ("name", "calibrated"), [("mlperf_resnet8", 64), ("mlperf_resnet8", 512), ("resnet20", 64)]
)
def test_alike_samples_have_no_finding(
    name: str, calibrated: int, zoo: Path, cifar: Callable[..., Images]
) -> None:
    kind = Preprocessing.PIXELS if name.startswith("mlperf") else Preprocessing.NORMALIZED
    data = {"image": cifar("calib", calibrated, kind).image}
    result = intact.quantize(zoo / f"{name}.onnx", data, samples=None)
    assert found_in(result, {"image": cifar("test", 64, kind).image}) == []


def drawn(count: int, seed: int, size: float = 1.0) -> dict[str, Floats]:
    shape = (count, 3, 8, 8)
    random = np.random.default_rng(seed)
    strength = np.exp(random.normal(size=(count, 1, 1, 1)))
    values = size * strength * random.normal(size=shape)
    return {input_name(): values.astype(np.float32)}


def input_name() -> str:
    return str(residual_net().graph.input[0].name)


def quantized(count: int, size: float = 1.0) -> Result:
    return intact.quantize(residual_net(), drawn(count, 1, size))


def test_few_samples_are_found_and_more_are_the_remedy() -> None:
    (found,) = found_in(quantized(2), drawn(64, 2))
    assert found.cause == "calibration_samples"
    assert "range of the 2 that calibration saw" in found.evidence
    assert found.remedies[0].options == {"samples": 512}
    assert found_in(quantized(256), drawn(64, 2)) == []


@pytest.mark.parametrize("size", [0.05, 20.0])
def test_unlike_samples_are_found(size: float) -> None:
    (found,) = found_in(quantized(128, size), drawn(64, 2))
    assert "standard errors" in found.evidence
    assert found.severity > 0.3
    assert "samples like those" in found.remedies[0].text


def test_the_samples_of_the_calibration_themselves_have_no_finding() -> None:
    assert found_in(quantized(64), drawn(64, 1)) == []


def test_statistics_of_another_model_tell_nothing() -> None:
    result = quantized(2)
    assert result.statistics is not None
    result.statistics.model_hash = "another"
    assert found_in(result, drawn(32, 2)) == []
    assert isinstance(result.plan.graph, Graph)


def test_means_are_of_each_sample_whatever_its_length() -> None:
    b = ModelBuilder()
    y = b.node("Relu", b.node("MatMul", b.input("x", ["N", "length", 4]), b.weight(4, 4)))
    b.output(y)
    random = np.random.default_rng(0)

    def sequences(count: int) -> list[dict[str, Floats]]:
        lengths = [*random.integers(8, 64, count - 1), 2]  # the last one is the shortest
        return [{"x": random.normal(1, 1, (1, length, 4)).astype(np.float32)} for length in lengths]

    result = intact.quantize(b.build(), sequences(64))
    assert result.statistics is not None
    samples = open_samples(sequences(48), result.plan.graph)
    found = range_shifts(result.plan, result.statistics, samples)
    assert found
    assert all(each.shift < 5 for each in found)
