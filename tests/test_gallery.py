"""Families of models from end to end: quantized, deployed, compared with float and simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import intact
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.graph import OpKind, op_spec
from intact.numerics.metrics import sqnr_db
from intact.plan import load_plan, save_plan
from intact.results.result import Result
from tests.gallery.catalogue import GALLERY, REASONS, TARGETS, GalleryModel
from tests.gallery.data import Arrays
from tests.models import run_model

CALIBRATION_SAMPLES, TEST_SAMPLES = 128, 16

# The share of integers that may differ from the integer engine, by one step. On the hardware that a
# target describes, none; a file for other hardware is computed otherwise by ONNX Runtime: float
# biases are rounded to integers, ties go to even where the target rounds up.
RARE = {"onnxruntime": 0.0, "onnxruntime-avx2": 0.0, "tensorrt": 2e-3, "integer-pow2": 5e-2}
HERE = ("onnxruntime", "onnxruntime-avx2")
"""Targets whose arithmetic ONNX Runtime has on any processor."""

each_model = pytest.mark.parametrize("name", GALLERY)
each_target = pytest.mark.parametrize("target", TARGETS)


@dataclass(frozen=True)
class Deployed:
    """A quantized gallery model with inputs that calibration did not see."""

    described: GalleryModel
    result: Result
    feeds: Arrays

    def run(self, feeds: Arrays) -> dict[str, np.ndarray]:
        outputs, _ = QdqRuntime(self.result.exported.model, threads=1).run(feeds)
        return outputs


@pytest.fixture(scope="module")
def deployed() -> Callable[[str, str], Deployed]:
    """A function that quantizes a gallery model for a target, once."""

    @cache
    def quantize(name: str, target: str) -> Deployed:
        described = GALLERY[name]
        samples = described.source(CALIBRATION_SAMPLES, 1)
        result = intact.quantize(
            described.model, samples, target=target, formats=["onnx_qdq"], threads=1
        )
        return Deployed(described, result, described.source(TEST_SAMPLES, 2))

    return quantize


@each_target
@each_model
def test_the_deployed_model_follows_the_float_model(
    name: str, target: str, deployed: Callable[[str, str], Deployed]
) -> None:
    model = deployed(name, target)
    onnx.checker.check_model(ir.to_proto(model.result.exported.model))
    wanted, found = run_model(model.described.model, model.feeds), model.run(model.feeds)
    assert list(found) == list(wanted)
    floor = model.described.floors[TARGETS.index(target)]
    for output, array in wanted.items():
        assert found[output].shape == array.shape
        assert array.std() > 0.05  # it has something to follow
        assert sqnr_db(array, found[output]) > floor, output


@each_target
@each_model
def test_the_engine_agrees_with_the_runtime(
    name: str, target: str, deployed: Callable[[str, str], Deployed]
) -> None:
    model = deployed(name, target)
    found = intact.verify(model.result, model.feeds, threads=1)
    values = sum(layer.values for layer in found.layers)
    assert values > 8_000
    assert max(layer.largest for layer in found.layers) <= 1
    assert sum(layer.mismatches for layer in found.layers) <= RARE[target] * values
    assert min(found.outputs_sqnr_db.values()) > 24
    if target in HERE:
        assert found.float_nodes == {}


@each_target
@each_model
def test_every_product_is_integer(
    name: str, target: str, deployed: Callable[[str, str], Deployed]
) -> None:
    plan = deployed(name, target).result.plan
    products = [
        node
        for node in plan.graph.nodes
        if (spec := op_spec(node)) is not None and spec.kind is OpKind.COMPUTE
    ]
    assert products
    floats = {node.op_type for node in products if not plan.is_quantized(node)}
    assert floats <= ({"ConvTranspose"} if target in HERE else set())


@each_model
def test_what_stays_float_says_why(name: str, deployed: Callable[[str, str], Deployed]) -> None:
    model = deployed(name, "onnxruntime")
    plan = model.result.plan
    found: dict[str, set[str]] = {}
    for node in plan.graph.nodes:
        decision = plan.decisions[str(node.name)]
        if not decision.quantized:
            known = [key for key, text in REASONS.items() if text in decision.reason]
            assert len(known) == 1, decision.reason
            found.setdefault(known[0], set()).add(node.op_type)
    assert found == {key: set(ops.split()) for key, ops in model.described.floats.items()}


@each_target
@each_model
def test_the_plan_is_saved_and_loaded_to_the_same_bytes(
    name: str, target: str, deployed: Callable[[str, str], Deployed], tmp_path: Path
) -> None:
    plan = deployed(name, target).result.plan
    save_plan(plan, tmp_path / "first.json")
    save_plan(load_plan(tmp_path / "first.json", plan.graph), tmp_path / "second.json")
    first, second = (tmp_path / f"{name}.json" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


@each_model
def test_other_batch_sizes_give_the_same_results(
    name: str, deployed: Callable[[str, str], Deployed]
) -> None:
    model = deployed(name, "onnxruntime")
    together = model.run(model.feeds)
    for output, array in model.run({key: each[:1] for key, each in model.feeds.items()}).items():
        assert sqnr_db(together[output][:1], array) > 40  # the runtime's floats may differ


def test_a_model_of_any_size_runs_at_sizes_that_it_was_not_calibrated_at(
    deployed: Callable[[str, str], Deployed],
) -> None:
    model = deployed("any_size", "onnxruntime")
    for height, width in ((16, 24), (33, 21)):
        image = np.resize(model.feeds["image"], (2, 3, height, width))
        wanted = run_model(model.described.model, {"image": image})["classes"]
        found = model.run({"image": image})["classes"]
        assert found.shape == wanted.shape == (2, 5, height, width)
        assert sqnr_db(wanted, found) > 30
