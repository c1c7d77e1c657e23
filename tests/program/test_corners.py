"""Cases at the edges of what models may hold, each against the simulation and both layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.numerics.metrics import sqnr_db
from intact.plan import QuantizedGraph
from intact.program import Program
from intact.program.lower import lower, translate
from intact.program.operations import FloatNodes, PRelu, Transpose
from tests.models import ModelBuilder, random_inputs
from tests.plans import Arrays, calibrated


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def compare(model: onnx.ModelProto, target: str, batch: int = 3) -> tuple[QuantizedGraph, Program]:
    """Run a model every way; return its plan and program."""
    plan, feeds = calibrated(model, target), dict(random_inputs(model, batch=batch, seed=4))
    program = lower(plan)
    wanted, _ = Simulator(plan, threads=1).run(feeds)
    plain = IntegerEngine(translate(plan), threads=1).run(feeds).outputs
    moved = IntegerEngine(program, threads=1).run(feeds).outputs
    for name, array in wanted.items():
        assert plain[name].shape == moved[name].shape == array.shape, name
        assert sqnr_db(array, plain[name]) > 18, name
        np.testing.assert_array_equal(plain[name], moved[name])
    names = [step.name for step in program.steps]
    assert len(set(names)) == len(names)
    return plan, program


def image(b: ModelBuilder, channels: int = 4) -> str:
    return b.conv(b.input("x", ["batch", 3, 8, 8]), 3, channels)


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(-9, -10, -1), (-(2**63), -(2**63), -1), (7, -(2**63), -2), (9, -9, -3)],
)
def test_backward_slices_begin_at_an_element(start: int, stop: int, step: int) -> None:
    """ONNX clamps the start of a backward slice to the first element, Python goes before it."""
    b = ModelBuilder()
    x = image(b)
    limits = [b.ints(n) for n in (start, stop, -1, step)]
    b.node("Relu", b.node("Slice", x, *limits), out="y")
    b.output("y")
    compare(b.build(), "tflite")


def test_a_constant_of_higher_rank_adds_axes() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", [2, 3, 8]), b.weight(3, 3, 3))
    b.node("Add", x, b.constant(normal(2, 1, 1, 1)), out="y")
    b.output("y")
    compare(b.build(), "tflite")


@pytest.mark.parametrize("target", ["tflite", "onnxruntime", "tensorrt"])
def test_new_names_are_not_those_of_the_model(target: str) -> None:
    """Tensors of the model may be called as a transpose of another would be."""
    b = ModelBuilder()
    y = b.node("Relu", b.input("x", ["batch", 3, 8, 8]), out="x_0_2_3_1")
    z = b.node("Conv", y, b.weight(4, 3, 3, 3), out="x_2")
    b.node("Tanh", z, out="x_2_0_3_1_2")
    b.output("x_2")
    b.output("x_2_0_3_1_2")
    _, program = compare(b.build(), target)
    outputs = [tensor.name for step in program.steps for tensor in step.outputs]
    assert len(set(outputs)) == len(outputs)


@pytest.mark.parametrize("target", ["tflite", "onnxruntime"])
def test_scalars_stay_scalars(target: str) -> None:
    b = ModelBuilder()
    x = image(b)
    mean, largest = (b.node(kind, x, keepdims=0) for kind in ("ReduceMean", "ReduceMax"))
    b.node("Add", mean, largest, out="y")
    b.node("Mul", x, mean, out="z")
    b.output("y")
    b.output("z")
    compare(b.build(), target)


def test_the_largest_of_nothing_is_the_lowest_code() -> None:
    b = ModelBuilder()
    b.node("ReduceMax", image(b), out="y", keepdims=0)
    b.output("y")
    model = b.build()
    program = lower(calibrated(model, "tflite"))
    (name,) = (t.name for t in program.tensors() if t.value == "y" and t.encoding is not None)
    empty = {"x": np.zeros((0, 3, 8, 8), np.float32)}
    seen = IntegerEngine(program, threads=1).run(empty, observe=[name]).tensors[name]
    assert seen.tolist() == -128


def test_nodes_that_read_a_constant_in_two_forms_are_two_islands() -> None:
    """The product reads the vector quantized, the sum as it is."""
    b = ModelBuilder()
    x, vector = b.node("Relu", image(b)), b.constant(normal(8))
    b.node("Erf", b.node("MatMul", x, vector), out="y")
    b.node("Add", x, vector, out="z")
    b.output("y")
    b.output("z")
    plan, program = compare(b.build(), "onnxruntime")
    feeds: Arrays = dict(random_inputs(b.build(), batch=3, seed=4))
    wanted, _ = Simulator(plan, threads=1).run(feeds)
    found = IntegerEngine(program, threads=1).run(feeds).outputs["z"]
    np.testing.assert_allclose(found, wanted["z"], rtol=1e-6)
    assert sum(isinstance(step.operation, FloatNodes) for step in program.steps) == 2


@pytest.mark.parametrize("shape", [(4, 1, 1), (8,), ()])
def test_slopes_are_integers(shape: tuple[int, ...]) -> None:
    b = ModelBuilder()
    x = b.node("PRelu", image(b), b.constant(normal(*shape) / 4))
    b.node("Conv", x, b.weight(4, 4, 1, 1), out="y")
    b.output("y")
    _, program = compare(b.build(), "tflite")
    assert not program.in_float
    assert any(isinstance(step.operation, PRelu) for step in program.steps)
    assert sum(isinstance(step.operation, Transpose) for step in program.steps) == 2


def _ints(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


Inputs = tuple[npt.NDArray[Any] | None, ...]

# Constant inputs behind the data, and attributes.
UNRANKED: dict[str, tuple[Inputs, dict[str, Any]]] = {
    "ReduceMean": ((), {"axes": [1], "keepdims": 0}),
    "ReduceMax": ((), {"axes": [-1]}),
    "Transpose": ((), {"perm": [0, 2, 1, 3]}),
    "DepthToSpace": ((), {"blocksize": 2}),
    "GlobalAveragePool": ((), {}),
    "MaxPool": ((), {"kernel_shape": [2, 2]}),
    "Softmax": ((), {"axis": 1}),
    "Sigmoid": ((), {}),
    "Pad": ((_ints(0, 0, 1, 1, 0, 0, 1, 1),), {}),
    "Slice": ((_ints(1), _ints(3), _ints(2)), {}),
    "Gather": ((_ints(-1, 0),), {"axis": 1}),
    "Conv": ((normal(4, 4, 1, 1),), {}),
    "MatMul": ((normal(8, 3),), {}),
    "Resize": ((None, np.ones(4, np.float32)), {"mode": "nearest"}),
}


@pytest.mark.parametrize("kind", UNRANKED)
def test_a_rank_that_is_not_known_is_no_scalar(kind: str) -> None:
    """What has axes runs in float behind a Reshape to a computed shape."""
    b = ModelBuilder()
    x = image(b)
    lengths = b.node("Shape", x)
    end = b.node("Add", b.node("Slice", lengths, b.ints(0), b.ints(1)), b.ints(4))
    x = b.node("Reshape", x, b.node("Slice", lengths, b.ints(0), end))
    constants, options = UNRANKED[kind]
    inputs = [x, *("" if array is None else b.constant(array) for array in constants)]
    b.nodes.append(helper.make_node(kind, inputs, ["y"], name="it", **options))
    b.output("y")
    plan, program = compare(b.build(), "tflite")
    if plan.is_quantized(plan.graph.node("it")) and kind != "Sigmoid":
        assert "rank" in program.in_float["it"]
