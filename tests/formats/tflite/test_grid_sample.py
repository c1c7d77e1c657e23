"""GridSample of a detector with deformable attention: LiteRT computes what ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import intact
from tests.models import ModelBuilder

pytest.importorskip("ai_edge_litert")


def deformable(mode: str, padding: str) -> onnx.ModelProto:
    """Values sampled where a layer of the queries points, as RT-DETR does."""
    b = ModelBuilder(17)
    image, queries = b.input("image", [1, 3, 8, 6]), b.input("queries", [1, 5, 8])
    values = b.node("Reshape", b.node("Conv", image, b.weight(8, 3, 1, 1)), b.ints(2, 4, 8, 6))
    points = b.node("MatMul", queries, b.weight(8, 16))
    grid = b.node("Reshape", points, b.ints(2, 5, 4, 2))
    found = b.node(
        "GridSample", values, grid, mode=mode, padding_mode=padding, align_corners=0, name="sample"
    )
    summed = b.node("ReduceSum", found, b.ints(-1), keepdims=0)
    flat = b.node("Transpose", b.node("Reshape", summed, b.ints(1, 8, 5)), perm=[0, 2, 1])
    b.output(b.node("MatMul", flat, b.weight(8, 4)), [1, 5, 4])
    return b.build()


@pytest.mark.parametrize("target", ["tflite", "tflite-16x8", "tflite-xnnpack"])
@pytest.mark.parametrize(("mode", "padding"), [("bilinear", "zeros"), ("nearest", "reflection")])
def test_deformable_attention_is_written_and_verified(target: str, mode: str, padding: str) -> None:
    random = np.random.default_rng(0)
    shapes = {"image": (16, 3, 8, 6), "queries": (16, 5, 8)}
    data = {name: random.normal(size=each).astype(np.float32) for name, each in shapes.items()}
    made = intact.quantize(deformable(mode, padding), data, target=target, io="float")
    verified = intact.verify(made, data)
    assert verified.layers
    assert not any(each.mismatches for each in verified.layers)
    assert not any(each.mismatches for each in verified.outputs)


def test_a_warp_that_divides_by_zero_reads_where_the_image_begins() -> None:
    b = ModelBuilder(17)
    image, warp = b.input("image", [1, 2, 4, 5]), b.input("warp", [1, 3, 3, 3])
    places, weights = b.split(warp, [2, 1], 3)
    values = b.node("Conv", image, b.weight(2, 2, 3, 3), pads=[1, 1, 1, 1])
    b.output(b.node("GridSample", values, b.node("Div", places, weights)), [1, 2, 3, 3])
    random = np.random.default_rng(0)
    data = {
        "image": random.normal(size=(16, 2, 4, 5)).astype(np.float32),
        "warp": random.uniform(0.2, 1, (16, 3, 3, 3)).astype(np.float32),
    }
    data["warp"][5, 1, 1] = 0
    data["warp"][6, 1, 1] = [0, 1, 0]
    made = intact.quantize(b.build(), data, target="tflite", io="float")
    assert not any(each.mismatches for each in intact.verify(made, data).outputs)


@pytest.mark.parametrize("target", ["tflite", "tflite-16x8"])
def test_an_open_batch_stays_open(target: str) -> None:
    b = ModelBuilder(17)
    image, grid = b.input("image", ["N", 2, 4, 5]), b.input("grid", ["N", 3, 3, 2])
    values = b.node("Conv", image, b.weight(2, 2, 3, 3), pads=[1, 1, 1, 1])
    b.output(b.node("GridSample", values, grid), ["N", 2, 3, 3])
    random = np.random.default_rng(0)
    data = {
        "image": random.normal(size=(16, 2, 4, 5)).astype(np.float32),
        "grid": random.uniform(-1.5, 1.5, (16, 3, 3, 2)).astype(np.float32),
    }
    made = intact.quantize(b.build(), data, target=target, io="float")
    assert [value.shape and value.shape[0] for value in made.plan.graph.inputs] == ["N", "N"]
    verified = intact.verify(made, data)
    assert not any(each.mismatches for each in verified.layers)
    assert verified.outputs
