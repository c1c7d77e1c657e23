"""Inputs and outputs with the axes of images have their channels last, whatever stands there."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.integer.engine import IntegerEngine
from intact.errors import UsageError
from intact.program import Program
from intact.program.lower import lower
from intact.program.passes.layout import IoLayout
from intact.results.sources import deployment_of
from intact.targets import load_target
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import calibrated

SHAPE = (5, 7, 6)  # of an image's channels, height and width

KEEPING = ("Relu", "Floor", "Sin", "Pow", "Where", "Concat", "ReduceMax", "Softmax", "Not")
OTHER = ("Reshape", "Transpose", "MatMul", "Flatten")


def _made(b: ModelBuilder, x: str, kind: str) -> str:
    two = b.scalar(2.0)
    match kind:
        case "Pow":
            return b.node("Pow", x, two)
        case "Where":
            return b.node("Where", b.node("Greater", x, two), x, two)
        case "Not":  # several float nodes in a row
            return b.node("Where", b.node("Not", b.node("Greater", x, two)), b.node("Sin", x), x)
        case "Concat":
            return b.node("Concat", x, b.node("Floor", x), axis=1)
        case "ReduceMax":
            return b.with_axes("ReduceMax", x, [2], input_since=18, keepdims=1)
        case "Softmax":
            return b.node("Softmax", x, axis=2)
        case "Reshape":
            return b.node("Reshape", x, b.ints(0, 6, 7, 5))
        case "Transpose":
            return b.node("Transpose", x, perm=[0, 2, 1, 3])
        case "MatMul":
            return b.node("MatMul", x, b.weight(6, 3))
    return b.node(kind, x)


def net(kind: str) -> ModelBuilder:
    """A convolution in front of an operator."""
    b = ModelBuilder()
    _made(b, b.conv(b.input("x", [1, *SHAPE]), 5, 5), kind)
    b.nodes[-1].output[0] = "y"
    b.output("y")
    return b


def program_of(b: ModelBuilder, layout: IoLayout, *, floats: bool) -> Program:
    return lower(calibrated(b.build(), "tflite"), float_operations=floats, layout=layout)


@pytest.mark.crossed
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("kind", [*KEEPING, *OTHER])
def test_an_output_has_its_channels_last_where_its_axes_are_kept(kind: str, floats: bool) -> None:
    program = program_of(net(kind), IoLayout.CHANNELS_LAST, floats=floats)
    wanted = (0, 2, 3, 1) if kind in KEEPING else None
    assert program.outputs["y"].permutation == wanted
    program = program_of(net(kind), IoLayout.MODEL, floats=floats)
    assert program.outputs["y"].permutation is None
    assert program.inputs["x"].permutation is None


@pytest.mark.parametrize("kind", ["Relu", "Floor", "Where", "Not", "Transpose"])
def test_an_input_has_its_channels_last_likewise(kind: str) -> None:
    b = ModelBuilder()
    x = b.input("x", [1, *SHAPE])
    middle = _made(b, x, kind)
    channels = 7 if kind == "Transpose" else 5
    b.node("Conv", middle, b.weight(3, channels, 1, 1), out="y")
    b.output("y")
    program = program_of(b, IoLayout.CHANNELS_LAST, floats=True)
    assert program.inputs["x"].permutation == (None if kind == "Transpose" else (0, 2, 3, 1))


@pytest.mark.parametrize("kind", KEEPING)
def test_both_layouts_hold_the_same_numbers(kind: str) -> None:
    b = net(kind)
    feeds = random_inputs(b.build())
    found = []
    for layout in IoLayout:
        program = program_of(b, layout, floats=False)
        source, result = program.inputs["x"], program.outputs["y"]
        axes = source.permutation or range(4)
        outputs = IntegerEngine(program).run({"x": feeds["x"].transpose(axes)}).outputs
        found.append(result.as_in_model(outputs["y"]))
    np.testing.assert_array_equal(found[0], found[1])


def test_a_layout_is_refused_where_a_format_has_one_alone() -> None:
    with pytest.raises(UsageError, match="layout model does nothing for onnx_qdq"):
        deployment_of(load_target("onnxruntime"), None, "int8", "model")
    assert deployment_of(load_target("tflite"), None, "int8", "model").layout == "model"


@pytest.mark.parametrize("layout", IoLayout)
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 2, 1)])
@pytest.mark.parametrize("inner", [False, True])
def test_an_output_of_moved_floats_stands_for_itself(
    layout: IoLayout, order: tuple[int, ...], inner: bool
) -> None:
    """And not for what it was moved of, with the axes of that."""
    b = ModelBuilder()
    x = b.input("x", [1, *SHAPE])
    floats = b.node("Transpose", b.node("Sin", b.conv(x, 5, 5)), perm=[0, 2, 3, 1])
    back = b.node("Transpose", floats, perm=[0, 3, 1, 2])
    b.node("Transpose", back, perm=list(order))
    b.nodes[-1].output[0] = "y"
    for name in ("y", *((floats, b.nodes[-3].input[0]) if inner else ())):
        b.output(name)
    model = b.build()
    program = program_of(b, layout, floats=True)
    for name, expected in run_model(model, random_inputs(model)).items():
        tensor = program.outputs[name]
        stored = tensor.permutation or range(4)
        assert [tensor.shape[axis] for axis in np.argsort(stored)] == list(expected.shape)
        assert tensor in {each.name: each for each in program.tensors()}.values()
