"""Networks of uneven weights, and what equalizing has to keep of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx

from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from intact.improve.rewrite.equalize import equalize
from tests.models import ModelBuilder, random_inputs


def uneven(
    b: ModelBuilder, inputs: int, outputs: int, kernel: int = 3, group: int = 1, bias: float = 1.0
) -> list[str]:
    """Weight whose channels differ by orders of magnitude, and a bias of this spread."""
    rng = b.random
    weight = rng.normal(size=(outputs, inputs // group, kernel, kernel))
    weight *= 10.0 ** rng.uniform(-2, 2, (outputs, 1, 1, 1))
    weight *= 10.0 ** rng.uniform(-1, 1, (1, inputs // group, 1, 1))
    biases = rng.normal(size=outputs) * bias
    return [b.constant(weight.astype(np.float32)), b.constant(biases.astype(np.float32))]


def conv(
    b: ModelBuilder, x: str, inputs: int, outputs: int, name: str, bias: float = 1.0, **how: int
) -> str:
    kernel, group = how.get("kernel", 3), how.get("group", 1)
    parameters = uneven(b, inputs, outputs, kernel, group, bias)
    return b.node("Conv", x, *parameters, name=name, group=group, pads=[kernel // 2] * 4)


Between = Callable[[ModelBuilder, str], str]
"""Adds nodes behind a tensor of six channels and returns what comes out."""

KEEPS: dict[str, Between] = {
    "nothing": lambda b, x: b.node("Identity", x),  # normalizing removes it
    "abs": lambda b, x: b.node("Abs", x),
    "relu": lambda b, x: b.node("Relu", x),
    "leaky": lambda b, x: b.node("LeakyRelu", x, alpha=0.2),
    "prelu": lambda b, x: b.node("PRelu", x, b.weight(6, 1, 1)),
    "open clip": lambda b, x: b.clip(x, 0, np.inf),
    "max pool": lambda b, x: b.node("MaxPool", x, kernel_shape=[2, 2]),
    "mean pool": lambda b, x: b.node(
        "AveragePool", b.node("Relu", x), kernel_shape=[3, 3], pads=[1] * 4
    ),
}
ENDS: dict[str, Between] = {
    "relu6": lambda b, x: b.clip(x, 0, 6),
    "sigmoid": lambda b, x: b.node("Sigmoid", x),
    "add": lambda b, x: b.node("Add", x, b.weight(6, 8, 8)),
    "two readers": lambda b, x: b.node("Mul", x, x),
    "raised clip": lambda b, x: b.clip(x, -0.5, np.inf),
    "slope": lambda b, x: b.node("PRelu", b.node("Tanh", b.conv("image", 4, 6)), x),
    "swapped": lambda b, x: b.node("Transpose", x, perm=[0, 1, 3, 2]),
}


def pair(between: Between, *, show: bool = False) -> onnx.ModelProto:
    b = ModelBuilder(seed=3)
    x = conv(b, b.input("image", ["batch", 4, 8, 8]), 4, 6, "first")
    if show:
        b.output(x)
    conv(b, between(b, x), 6, 5, "second")
    b.nodes[-1].output[0] = "y"
    b.output("y")
    return b.build()


def mobile(relu: Between = KEEPS["relu"], last: str = "Gemm") -> onnx.ModelProto:
    """Three MobileNet blocks and a classifier."""
    b = ModelBuilder(seed=1)
    x = relu(b, conv(b, b.input("image", ["batch", 3, 16, 16]), 3, 8, "stem"))
    for k, (inputs, outputs) in enumerate(((8, 12), (12, 12), (12, 20))):
        x = relu(b, conv(b, x, inputs, inputs, f"depth{k}", group=inputs))
        x = relu(b, conv(b, x, inputs, outputs, f"point{k}", kernel=1))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    if last == "Gemm":
        b.node("Gemm", x, b.weight(4, 20), b.weight(4), name="dense", out="y", transB=1)
    else:
        b.node("MatMul", x, b.weight(20, 4), name="dense", out="y")
    b.output("y", ["batch", 4])
    return b.build()


def outputs(graph: Graph, model: onnx.ModelProto) -> dict[str, npt.NDArray[np.float32]]:
    return FloatModel(graph, threads=1).run(random_inputs(model, batch=4, seed=9))


def assert_same(model: onnx.ModelProto) -> tuple[Graph, Graph]:
    """Check that nothing but weights and biases changes, and no result; return both graphs."""
    before = normalize(model)
    digest = before.hash
    after = equalize(before)
    assert before.hash == digest
    assert [node.name for node in before.nodes] == [node.name for node in after.nodes]
    assert {v.name for v in before.values} == {v.name for v in after.values}
    wanted, found = outputs(before, model), outputs(after, model)
    for name, array in wanted.items():
        largest = float(np.abs(array).max(initial=1e-30))
        assert np.abs(found[name] - array).max(initial=0) <= 3e-5 * largest, name
    return before, after


def reaches(graph: Graph, node: str, axes: tuple[int, ...]) -> npt.NDArray[np.float32]:
    weight = graph.constant(graph.node(node).inputs[1])
    assert weight is not None
    found: npt.NDArray[np.float32] = np.abs(weight).max(axis=axes)
    return found
