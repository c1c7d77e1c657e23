"""Boxes that layers read and move on, one after the other, stay float where 8 bits move them."""

from __future__ import annotations

import numpy as np
import onnx

import intact
from intact.data.detections import LIKE
from tests.models import ModelBuilder

PLACES, STEPS = 8, 3


def refining(seed: int = 1) -> onnx.ModelProto:
    """A net whose layers read boxes and move them: logits that reach far, for edges of images."""
    build = ModelBuilder(seed=seed)
    random = build.random
    x = build.node("Relu", build.conv(build.input("x", ["n", 3, 8, 8]), 3, 4))
    x = build.node("Flatten", x)
    size = int(np.prod([4, 8, 8]))
    middles = random.uniform(0.25, 0.75, (PLACES, 2))
    sizes = random.uniform(0.02, 0.2, (PLACES, 2))
    boxes = np.concatenate([middles, sizes], 1).astype(np.float32)
    at = np.log(boxes / (1 - boxes))
    at[0, 0] = -9.0  # the edge of an image
    moves = build.node(
        "Gemm", x, build.constant(random.normal(0, 0.02, (size, PLACES * 4)).astype("f4"))
    )
    logits = build.node(
        "Add",
        build.node("Reshape", moves, build.ints(-1, PLACES, 4)),
        build.constant(at[None].astype(np.float32)),
    )
    for _ in range(STEPS):
        box = build.node("Clip", build.node("Sigmoid", logits), build.scalar(1e-4))
        read = build.node("Flatten", box)
        hidden = build.node("Relu", build.node("Gemm", read, build.weight(PLACES * 4, 16)))
        moved = build.node(
            "Gemm", hidden, build.constant(random.normal(0, 0.03, (16, PLACES * 4)).astype("f4"))
        )
        odds = build.node("Div", box, build.node("Sub", build.scalar(1.0001), box))
        back = build.node("Log", odds)
        logits = build.node("Add", build.node("Reshape", moved, build.ints(-1, PLACES, 4)), back)
    middle, half = build.split(build.node("Sigmoid", logits), [2, 2], 2)
    half = build.node("Mul", half, build.scalar(0.5))
    ends = build.node("Sub", middle, half), build.node("Add", middle, half)
    corners = build.node("Concat", *ends, axis=2)
    build.node("Mul", corners, build.scalar(64.0), out="boxes")
    scores = build.node("Gemm", x, build.weight(size, PLACES))
    build.node("Sigmoid", build.node("Reshape", scores, build.ints(-1, PLACES, 1)), out="scores")
    build.output("boxes", ["n", PLACES, 4])
    build.output("scores", ["n", PLACES, 1])
    return build.build()


def test_boxes_that_layers_refine_stay_float() -> None:
    random = np.random.default_rng(0)
    samples, others = ({"x": random.normal(size=(32, 3, 8, 8)).astype("f4")} for _ in range(2))
    found = intact.quantize(refining(), samples, target="tflite", preset="fast")
    notes = [str(each) for each in found.plan.notes if "mAP to float" in str(each)]
    assert len(notes) == 1
    assert notes[0].endswith("--quantize-heads undoes it")
    kept = intact.evaluate(found, others, metric="detections").metrics
    undone = intact.quantize(
        refining(), samples, target="tflite", preset="fast", quantize_heads=True
    )
    lost = intact.evaluate(undone, others, metric="detections").metrics
    assert lost[LIKE][1] < 70
    assert kept[LIKE][1] > 85
