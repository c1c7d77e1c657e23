"""A network that shifts alone can compute, and its plans."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx

from intact.plan import QuantizedGraph
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned

IMAGE = (3, 8, 8)


def network(*, image: str = "image", curved: bool = False) -> onnx.ModelProto:
    """Convolutions, a pool, an addition, a mean of 16 and a dense layer on ``[batch, 3, 8, 8]``.

    Args:
        image: The input's name.
        curved: With a Softmax behind.
    """
    b = ModelBuilder()
    x = b.input(image, ["batch", *IMAGE])
    x = b.node("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), name="stem", pads=[1, 1, 1, 1])
    x = b.node("MaxPool", b.node("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    y = b.node("Conv", x, b.weight(8, 1, 3, 3), name="depthwise", group=8, pads=[1, 1, 1, 1])
    y = b.node("Conv", b.node("Relu", y), b.weight(8, 8, 1, 1), b.weight(8), name="pointwise")
    x = b.node("Relu", b.node("Add", x, y, out="sum"))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight(5, 8), b.weight(5), out="logits", name="dense", transB=1)
    if curved:
        x = b.node("Softmax", x, out="probabilities", axis=1)
    b.output(x, ["batch", 5])
    return b.build()


def images(count: int, seed: int = 7, image: str = "image") -> Arrays:
    """Inputs of the network."""
    drawn = np.random.default_rng(seed).normal(size=(count, *IMAGE))
    return {image: drawn.astype(np.float32)}


@cache
def plan_for(target: str, *, curved: bool = False) -> QuantizedGraph:
    """The network's calibrated plan; not to be changed."""
    return calibrate(planned(network(curved=curved), target), images(32, seed=1))
