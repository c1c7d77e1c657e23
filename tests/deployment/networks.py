"""A small network of which every kind of layer can be told apart, its plans, and faults in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import onnx

from intact.formats.base.comparison import LayerComparison
from intact.formats.base.format import Io
from intact.formats.tflite.write import write_tflite
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Step
from intact.program.lower import lower
from intact.program.passes.layout import IoLayout
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned

CONVS = ("stem", "depthwise", "pointwise")


def network(*, curved: bool = False) -> onnx.ModelProto:
    """Convolutions, a pool, an addition, a mean and a dense layer on ``image [batch, 3, 8, 6]``.

    Args:
        curved: With a Softmax behind.
    """
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 6])
    x = b.node("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), name="stem", pads=[1, 1, 1, 1])
    x = b.node("Relu", x, out="stem_out")
    x = b.node("MaxPool", x, out="pooled", kernel_shape=[2, 2], strides=[2, 2])
    y = b.node("Conv", x, b.weight(8, 1, 3, 3), name="depthwise", group=8, pads=[1, 1, 1, 1])
    y = b.node("Relu", y, out="depthwise_out")
    y = b.node("Conv", y, b.weight(8, 8, 1, 1), b.weight(8), name="pointwise", out="pointwise_out")
    x = b.node("Add", x, y, out="sum")
    x = b.mean(x, [2, 3], keepdims=0)
    x = b.node("Gemm", x, b.weight(5, 8), b.weight(5), out="logits", name="dense", transB=1)
    if curved:
        x = b.node("Softmax", x, out="probabilities", axis=1)
    b.output(x, ["batch", 5])
    return b.build()


def images(count: int, seed: int = 7) -> Arrays:
    """Inputs of the network."""
    shape = (count, 3, 8, 6)
    return {"image": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}


def batches(count: int, size: int = 16) -> list[Arrays]:
    """Inputs of the network, cut."""
    image = images(count)["image"]
    return [{"image": image[start : start + size]} for start in range(0, count, size)]


@cache
def plan_for(target: str, *, curved: bool = False) -> QuantizedGraph:
    """The network's calibrated plan; not to be changed."""
    return calibrate(planned(network(curved=curved), target), images(32, seed=1))


def written(program: Program, io: Io = Io.INT8) -> bytes:
    """Return a program as a ``.tflite``."""
    return write_tflite(program, io=io)


def lowered(plan: QuantizedGraph) -> Program:
    """Return a plan as it is written."""
    return lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)


def with_wrong_weight(program: Program, node: str) -> Program:
    """Return a program in which one code of a node's weight has its largest bit flipped."""

    def flip(codes: Array) -> Array:
        wrong = codes.copy()
        wrong.flat[wrong.size // 2] ^= np.int8(64)
        return wrong

    return _with_constant(program, node, 1, flip)


def with_wrong_bias(program: Program, node: str) -> Program:
    """Return a program in which the first code of a node's bias is far off."""

    def add(codes: Array) -> Array:
        wrong = codes.copy()
        wrong[0] += 1 << 12
        return wrong

    return _with_constant(program, node, 2, add)


def _with_constant(
    program: Program, node: str, slot: int, change: Callable[[Array], Array]
) -> Program:
    def changed(step: Step) -> Step:
        tensor = step.inputs[slot] if node in step.nodes else None
        if tensor is None or tensor.data is None:
            return step
        inputs = list(step.inputs)
        # A name of its own: another step may share the constant.
        inputs[slot] = replace(tensor, name=f"{tensor.name}_wrong", data=change(tensor.data))
        return replace(step, inputs=tuple(inputs))

    return program.with_steps(tuple(changed(step) for step in program.steps))


def wrong(layers: list[LayerComparison]) -> list[str]:
    """Return the tensors that differ anywhere."""
    return [layer.tensor for layer in layers if layer.mismatches]
