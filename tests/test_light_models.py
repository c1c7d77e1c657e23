"""Well-known networks as the `onnx` package ships them: opset 9, and inputs for all weights.

Their weights are ConstantOfShape nodes that all yield one number, so their results say nothing.
Most tests give them drawn weights and look at the scores before the last Softmax, which drawn
weights saturate; the rest of the file stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.backend.test
import pytest
from onnx import helper, numpy_helper

import intact
from intact.flow.result import Result
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.numerics.metrics import sqnr_db
from tests.models import run_model

FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"

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


def images(model: onnx.ModelProto, count: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Coarse random images with some noise, for the one input that is no weight."""
    weights = {tensor.name for tensor in model.graph.initializer}
    (port,) = (value for value in model.graph.input if value.name not in weights)
    _, channels, height, width = (dim.dim_value for dim in port.type.tensor_type.shape.dim)
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, channels, height // 16, width // 16))
    fine = coarse.repeat(16, axis=2).repeat(16, axis=3)
    fine += 0.3 * random.normal(size=fine.shape)
    return {port.name: fine.astype(np.float32)}


def with_drawn_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the weights, ConstantOfShape or not, by drawn ones, and leave out the Softmax."""
    random = np.random.default_rng(0)
    readers = {name: (node, k) for node in model.graph.node for k, name in enumerate(node.input)}
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    shapes = {name: array.shape for name, array in constants.items() if array.dtype == np.float32}
    kept = []
    for node in model.graph.node:
        if node.op_type == "Softmax":
            (model.graph.output[0].name,) = node.input
            break
        if node.op_type == "ConstantOfShape":
            name, shape = node.output[0], constants[node.input[0]].tolist()
            shapes[name] = tuple(shape)
            port = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            model.graph.input.append(port)
        else:
            kept.append(node)
    for name in sorted(shapes.keys() & readers.keys()):
        constants[name] = _drawn(random, shapes[name], _role(name, readers)).astype(np.float32)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


def _role(name: str, readers: dict[str, tuple[onnx.NodeProto, int]]) -> str:
    """Return the operator and the slot that a weight ends in."""
    node, slot = readers[name]
    while node.op_type == "Unsqueeze":
        node, slot = readers[node.output[0]]
    return f"{node.op_type}[{slot}]"


def _drawn(
    random: np.random.Generator, shape: tuple[int, ...], role: str
) -> npt.NDArray[np.float64]:
    if len(shape) > 1:
        return np.asarray(random.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape))
    if role in {"BatchNormalization[1]", "BatchNormalization[4]", "Mul[1]"}:  # scale, variance
        return random.uniform(0.7, 1.3, shape)
    return random.normal(0, 0.1, shape)


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
