"""The benchmark of verification, in small: real networks in every runtime, every value."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from intact.formats.base.report import Verification
from intact.formats.c.run import verify_c
from intact.formats.c.write import write_c
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.tflite.micro import verify_micro
from intact.formats.tflite.read import read_tflite_model
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_read_tflite, verify_tflite
from intact.graph import load_model, normalize
from intact.plan import QuantizedGraph, build_plan
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.program.passes.layout import IoLayout
from intact.targets import load_target
from tests.deployment.networks import lowered, written, wrong
from tests.images import Images, Preprocessing
from tests.plans import Arrays, calibrate

IMAGES = 16
Plans = Callable[[str, str], tuple[QuantizedGraph, Arrays]]


@pytest.fixture(scope="module")
def plans(zoo: Path, cifar: Callable[..., Images]) -> Plans:
    """A function that plans a zoo model for a target, once, and gives test images with it."""

    def prepared(name: str, part: str, count: int) -> Arrays:
        plain = name.startswith("mlperf")
        kind = Preprocessing.PIXELS if plain else Preprocessing.NORMALIZED
        return {"image": cifar(part, count, kind).image}

    @cache
    def plan(name: str, target: str) -> QuantizedGraph:
        graph = normalize(load_model(zoo / f"{name}.onnx"))
        return calibrate(
            build_plan(graph, load_target(target)), prepared(name, "calib", 64), method="mse"
        )

    return lambda name, target: (plan(name, target), prepared(name, "test", IMAGES))


def exact(found: Verification, layers: int) -> None:
    """Hold a report against: so many layers, no value off."""
    assert len(found.layers) == layers
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 10 * IMAGES)]
    assert found.not_compared == found.in_float == {}


@pytest.mark.parametrize(
    ("name", "layers"), [("mobilenetv2-raw", 65), ("mlperf_resnet8", 15), ("resnet20", 33)]
)
def test_onnxruntime(name: str, layers: int, plans: Plans) -> None:
    plan, images = plans(name, "onnxruntime")
    exact(verify_qdq(plan, write_qdq(plan), [images], threads=1), layers)


@pytest.mark.parametrize(
    ("target", "kernels"), [("tflite", Kernels.REF), ("tflite-xnnpack", Kernels.XNNPACK)]
)
@pytest.mark.parametrize(
    ("name", "layers"), [("mobilenetv2-raw", 65), ("mlperf_resnet8", 16), ("resnet20", 33)]
)
def test_litert(name: str, layers: int, target: str, kernels: Kernels, plans: Plans) -> None:
    plan, images = plans(name, target)
    exact(verify_tflite(plan, written(lowered(plan)), [images], kernels), layers)


def test_microcontrollers(plans: Plans) -> None:
    plan, images = plans("mlperf_resnet8", "tflite-micro")
    exact(verify_micro(plan, written(lowered(plan)), [images]), 0)
    program = integer_io(lower(plan, layout=IoLayout.CHANNELS_LAST))
    exact(verify_c(plan, write_c(program), [images]), 0)


@pytest.mark.parametrize(("name", "layers"), [("kws", 13), ("resnet8", 16), ("vww", 31)])
def test_files_that_others_quantized(name: str, layers: int, zoo: Path) -> None:
    content = (zoo / "tflite" / f"mlperf_{name}_int8.tflite").read_bytes()
    for target, kernels in (("tflite", Kernels.REF), ("tflite-xnnpack", Kernels.XNNPACK)):
        model = read_tflite_model(content, load_target(target))
        value = model.plan.graph.inputs[0]
        shape = [length for length in (value.shape or ()) if isinstance(length, int)]
        codes = np.random.default_rng(3).integers(-128, 128, (IMAGES, *shape)).astype(np.int8)
        found = verify_read_tflite(model, content, [{str(value.name): codes}], kernels)
        assert len(found.layers) == layers
        assert wrong(found.layers) == wrong(found.end_to_end) == []
        assert [each.mismatches for each in found.outputs] == [0]
        assert found.outputs[0].values >= 2 * IMAGES
        assert found.not_compared == {}
