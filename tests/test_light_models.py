"""Well-known networks as the `onnx` package ships them: opset 9, and inputs for all weights.

Their weights are ConstantOfShape nodes that all yield one number, so their results say nothing.
Most tests give them drawn weights and look at the scores before the last Softmax, which drawn
weights saturate; the rest of the file stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import pytest

import intact
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.numerics.metrics import sqnr_db
from intact.results.result import Result
from tests.light import FOLDER, images, with_drawn_weights
from tests.models import run_model

FLOORS = {
    "squeezenet": 26,
    "shufflenet": 30,
    "inception_v1": 30,
    "inception_v2": 27,
    "resnet50": 30,
    "densenet121": 29,
}
"""SQNR of the scores' differences from their mean, in dB: some five below what was measured."""

SLOW = {"inception_v2", "resnet50", "densenet121"}

each_network = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FLOORS],
)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Result]]:
    """A function that gives a network with drawn weights its file and its quantization, once."""

    @cache
    def quantize(name: str) -> tuple[Path, Result]:
        path = tmp_path_factory.mktemp(name) / f"{name}.onnx"
        model = with_drawn_weights(onnx.load(FOLDER / f"light_{name}.onnx"))
        onnx.save(model, path)
        return path, intact.quantize(path, images(model, 3, seed=1))

    return quantize


@each_network
def test_it_is_quantized_and_follows_the_float_model(
    name: str, networks: Callable[[str], tuple[Path, Result]]
) -> None:
    path, result = networks(name)
    model = onnx.load(path)
    feeds = images(model, 1, seed=2)
    ((output, wanted),) = run_model(model, feeds).items()
    found, _ = QdqRuntime(result.exported.model).run(feeds)
    assert wanted.std() > 0.05
    assert sqnr_db(wanted - wanted.mean(), found[output] - wanted.mean()) > FLOORS[name]


@each_network
def test_the_simulation_agrees_with_the_runtime(
    name: str, networks: Callable[[str], tuple[Path, Result]]
) -> None:
    path, result = networks(name)
    found = intact.verify(result, images(onnx.load(path), 1, seed=2))
    values = sum(layer.values for layer in found.layers)
    assert values > 1_000_000
    assert sum(layer.mismatches for layer in found.layers) <= 1e-4 * values
    assert max(layer.largest for layer in found.layers) <= 1
    assert found.float_nodes == {}


@each_network
def test_every_product_is_integer(
    name: str, networks: Callable[[str], tuple[Path, Result]]
) -> None:
    plan = networks(name)[1].plan
    products = [node for node in plan.graph.nodes if node.op_type in {"Conv", "Gemm"}]
    assert len(products) > 25
    assert [node.name for node in products if not plan.is_quantized(node)] == []


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_network_as_it_is_shipped_is_quantized_and_runs(name: str) -> None:
    path = FOLDER / f"light_{name}.onnx"
    data = images(onnx.load(path), 2, seed=1)
    result = intact.quantize(path, data)
    plan = result.plan
    assert all(plan.is_quantized(n) for n in plan.graph.nodes if n.op_type in {"Conv", "Gemm"})
    found = intact.verify(result, data, samples=1)
    assert max(layer.largest for layer in found.layers) <= 1
    assert min(found.outputs_sqnr_db.values()) > 40
    assert found.float_nodes == {}
