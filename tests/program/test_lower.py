"""Lowering: every step computes what its nodes do, and transposes move without a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
import onnx
import pytest

from intact.engines.integer import IntegerEngine
from intact.engines.simulate import Simulator
from intact.graph import normalize
from intact.numerics.metrics import sqnr_db
from intact.ops import functions
from intact.plan import Overrides, QuantizedGraph
from intact.program import Program
from intact.program.lower import lower, translate
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Bounds,
    Concat,
    Convolution,
    Dequantize,
    Elementwise,
    FloatNodes,
    FullyConnected,
    Function,
    Pool,
    Quantize,
    Reduce,
    Requantize,
    Reshape,
    Softmax,
    Transpose,
)
from intact.program.passes.layout import IoLayout
from intact.targets import load_target
from tests.gallery.catalogue import GALLERY
from tests.models import (
    MODELS,
    ModelBuilder,
    depthwise_net,
    random_inputs,
    residual_net,
    transposed_net,
)
from tests.plans import calibrate, calibrated, planned

TARGETS = ("tflite", "onnxruntime", "tensorrt")
Plans = Callable[[str, str], QuantizedGraph]


@pytest.fixture(scope="module")
def plans() -> Plans:
    """A function that gives the calibrated plan of a gallery model, once."""

    @cache
    def make(name: str, target: str) -> QuantizedGraph:
        described = GALLERY[name]
        return calibrate(planned(described.model, target), dict(described.source(16, 1)))

    return make


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize(("high", "how"), [(1.27, "float_once"), (1.0, "fixed_point")])
def test_arithmetic_may_depend_on_a_zero_point(high: float, how: str, unsigned: bool) -> None:
    """Codes from -1.28 to 1.27 have zero point 0, or 128 without a sign."""
    target = load_target("tflite-xnnpack")
    if unsigned:
        target = msgspec.structs.replace(target, activation=target.activation.unsigned())
    b = ModelBuilder()
    left, right = (b.input(name, ["batch", 3, 4, 4]) for name in ("left", "right"))
    b.output(b.node("MatMul", left, right))
    ends = np.linspace(-1.28, high, 48, dtype=np.float32).reshape(1, 3, 4, 4)
    plan = calibrate(planned(b.build(), target), {"left": ends - 1, "right": ends})
    (product,) = (s for s in lower(plan).steps if isinstance(s.operation, BatchMatMul))
    assert product.arithmetic.requantize.kind == how


def types(program: Program) -> Counter[type]:
    return Counter(type(step.operation) for step in program.steps)


@pytest.mark.crossed
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GALLERY)
def test_a_program_follows_the_simulation(name: str, target: str, plans: Plans) -> None:
    plan, feeds = plans(name, target), dict(GALLERY[name].source(4, 2))
    wanted, _ = Simulator(plan, threads=1).run(feeds)
    found = IntegerEngine(lower(plan), threads=1).run(feeds).outputs
    assert found.keys() == wanted.keys()
    for output, array in wanted.items():
        assert found[output].shape == array.shape
        assert sqnr_db(array, found[output]) > 20, output


# "clutter" adds 1e-12 to 0: scales that no fixed-point addition bridges.
@pytest.mark.parametrize("name", [name for name in MODELS if name != "clutter"])
def test_odd_models_follow_the_simulation(name: str) -> None:
    """Bodies, functions, shared inputs, odd names."""
    model = MODELS[name].build(17)
    plan, feeds = calibrated(model, "tflite"), dict(random_inputs(model, batch=3))
    wanted, _ = Simulator(plan, threads=1).run(feeds)
    found = IntegerEngine(lower(plan), threads=1).run(feeds).outputs
    for output, array in wanted.items():
        np.testing.assert_equal(found[output].shape, array.shape)
        assert sqnr_db(array, found[output]) > 20 or not array.any(), output


@pytest.mark.parametrize("name", GALLERY)
def test_moving_transposes_changes_no_bit(name: str, plans: Plans) -> None:
    plan, feeds = plans(name, "tflite"), dict(GALLERY[name].source(3, 3))
    plain, moved = translate(plan), lower(plan)
    assert types(moved)[Transpose] <= types(plain)[Transpose]
    wanted = IntegerEngine(plain, threads=1).run(feeds).outputs
    found = IntegerEngine(moved, threads=1).run(feeds).outputs
    for output, array in wanted.items():
        np.testing.assert_array_equal(found[output], array)


@pytest.mark.parametrize("name", GALLERY)
def test_a_program_hangs_together(name: str, plans: Plans) -> None:
    for layout in IoLayout:
        program = lower(plans(name, "tflite"), layout=layout, float_operations=True)
        known = {tensor.name for tensor in program.inputs.values()}
        for step in program.steps:
            assert {tensor.name for tensor in step.activations} <= known
            for tensor in step.outputs:
                assert tensor.name not in known
                known.add(tensor.name)
            for each in step.inputs:
                if each is not None and each.data is not None:
                    assert each.data.shape == each.shape
        assert {t.name for t in program.outputs.values() if not t.is_constant} <= known
        names = [tensor.name for tensor in program.tensors()]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("build", [residual_net, depthwise_net, transposed_net])
def test_nothing_is_transposed_inside_a_convolutional_network(
    build: Callable[[], onnx.ModelProto],
) -> None:
    model = build()
    program = lower(calibrated(model, "tflite"), layout=IoLayout.CHANNELS_LAST)
    assert types(program)[Transpose] == 0
    (image,) = program.inputs.values()
    assert image.permutation == (0, 2, 3, 1)
    inside = lower(calibrated(model, "tflite"))
    assert types(inside)[Transpose] <= 2  # behind the input, before an image output
    assert isinstance(inside.steps[0].operation, Quantize)  # codes are moved, not floats


def test_channels_last_gives_the_same_numbers() -> None:
    model = transposed_net()
    plan, feeds = calibrated(model, "tflite"), dict(random_inputs(model, batch=2))
    wanted = IntegerEngine(lower(plan), threads=1).run(feeds).outputs["pixels"]
    program = lower(plan, layout=IoLayout.CHANNELS_LAST)
    turned = {"image": np.ascontiguousarray(feeds["image"].transpose(0, 2, 3, 1))}
    found = IntegerEngine(program, threads=1).run(turned).outputs["pixels"]
    np.testing.assert_array_equal(program.outputs["pixels"].as_in_model(found), wanted)


def test_activations_are_fused_with_their_bounds() -> None:
    program = lower(calibrated(depthwise_net(), "tflite"))
    bounds = [
        step.operation.bounds for step in program.steps if isinstance(step.operation, Convolution)
    ]
    assert bounds == [Bounds(0, 6), Bounds(0, 6), Bounds()]
    groups = [s.operation.groups for s in program.steps if isinstance(s.operation, Convolution)]
    assert groups == [1, 8, 1]


def test_steps_name_their_nodes_and_tensors() -> None:
    plan = calibrated(residual_net(), "tflite")
    program = lower(plan)
    named = [name for step in program.steps for name in step.nodes]
    assert sorted(named) == sorted(str(node.name) for node in plan.graph.nodes)
    values = {str(value.name) for value in plan.graph.values}
    assert {t.value for t in program.tensors()} <= values | {""}
    final = program.outputs["logits"]
    assert final.encoding is None
    assert "logits" in {tensor.name for tensor in program.tensors() if tensor.encoding is not None}


def dense_after(size: int, channels: int = 3) -> ModelBuilder:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 2, size, size]), 2, channels)
    flat = b.node("Flatten", x)
    b.node("Gemm", flat, b.weight(5, channels * size * size), out="y", transB=1)
    b.output("y", ["batch", 5])
    return b


@pytest.mark.parametrize("size", [1, 4])
def test_a_dense_layer_takes_what_is_stored(size: int) -> None:
    """Flattening moves no element: the weights' columns are in the order of the stored ones."""
    model = dense_after(size).build()
    plan, feeds = calibrated(model, "tflite"), dict(random_inputs(model, batch=3))
    program = lower(plan, layout=IoLayout.CHANNELS_LAST)
    assert types(program)[Transpose] == 0
    wanted = IntegerEngine(translate(plan), threads=1).run(feeds).outputs["y"]
    found = IntegerEngine(lower(plan), threads=1).run(feeds).outputs["y"]
    np.testing.assert_array_equal(found, wanted)


def test_a_flattened_image_that_others_read_is_transposed() -> None:
    b = dense_after(4)
    b.output(next(node.output[0] for node in b.nodes if node.op_type == "Flatten"))
    model = b.build()
    plan, feeds = calibrated(model, "tflite"), dict(random_inputs(model, batch=3))
    assert types(lower(plan, layout=IoLayout.CHANNELS_LAST))[Transpose] == 1
    wanted = IntegerEngine(translate(plan), threads=1).run(feeds).outputs
    for name, array in IntegerEngine(lower(plan), threads=1).run(feeds).outputs.items():
        np.testing.assert_array_equal(array, wanted[name])


def axis_work(b: ModelBuilder) -> str:
    """Operators whose axes have to be renumbered between two convolutions."""
    x = b.conv(b.input("image", ["batch", 4, 6, 8]), 4, 6)
    left, right = b.split(x, [2, 4], 1)
    x = b.node("Concat", right, left, axis=-3)
    x = b.node("Pad", x, b.ints(0, 0, 1, 2, 0, 0, 3, 4))
    x = b.node("Slice", x, b.ints(1, 0), b.ints(9, 100), b.ints(2, 3), b.ints(2, 1))
    x = b.node("Gather", x, b.ints(5, 0, 3, 3), axis=1)
    x = b.node("Mul", x, b.constant(np.array([0.5, 1, 2, 3], np.float32).reshape(4, 1, 1)))
    x = b.node("Tile", x, b.ints(1, 1, 1, 2))
    x = b.node("Add", x, b.mean(x, [3], keepdims=1))
    x = b.node("MaxPool", x, kernel_shape=[2, 2])
    x = b.conv(x, 4, 4)
    return b.mean(x, [1, 2], keepdims=0)


def test_axes_are_renumbered() -> None:
    b = ModelBuilder()
    b.node("Softmax", axis_work(b), out="y", axis=-1)
    b.output("y")
    model = b.build()
    plan, feeds = calibrated(model, "tflite"), dict(random_inputs(model, batch=2))
    program = lower(plan, layout=IoLayout.CHANNELS_LAST)
    assert types(program)[Transpose] == 0
    wanted = IntegerEngine(translate(plan), threads=1).run(feeds).outputs["y"]
    np.testing.assert_array_equal(
        IntegerEngine(lower(plan), threads=1).run(feeds).outputs["y"], wanted
    )
    simulated, _ = Simulator(plan, threads=1).run(feeds)
    assert sqnr_db(simulated["y"], wanted) > 20


def test_what_has_no_operation_runs_in_float_and_is_named() -> None:
    b = ModelBuilder(13)
    x = b.conv(b.input("image", ["batch", 4, 6, 6]), 4, 4)
    x = b.node(
        "Resize", x, "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="cubic", name="cubic"
    )
    b.conv(x, 4, 4)
    b.nodes[-1].output[0] = "y"
    b.output("y")
    model = b.build()
    plan = calibrated(model, "tflite")
    program = lower(plan)
    assert list(program.in_float) == ["cubic"]
    assert "cubic" in program.in_float["cubic"]
    assert [s.nodes for s in program.steps if isinstance(s.operation, FloatNodes)] == [("cubic",)]
    assert types(program)[Dequantize] == 2
    feeds = dict(random_inputs(model, batch=2))
    simulated, _ = Simulator(plan, threads=1).run(feeds)
    found = IntegerEngine(program, threads=1).run(feeds).outputs["y"]
    assert sqnr_db(simulated["y"], found) > 30


def test_float_nodes_are_operations_where_a_format_holds_both() -> None:
    model = residual_net()
    overrides = Overrides(keep_float=("Add", "Gemm"))
    plan = calibrated(model, "tflite", overrides)
    assert types(lower(plan))[FloatNodes] == 2
    program = lower(plan, float_operations=True)
    assert types(program)[FloatNodes] == 0
    floats = [s for s in program.steps if s.outputs[0].encoding is None and s.nodes]
    assert {type(step.operation) for step in floats} == {Elementwise, FullyConnected}


def test_readers_with_other_scales_are_requantized_for() -> None:
    """One tensor, two grids: the second comes from the codes of the first."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 6, 6])
    y = b.node("Concat", b.conv(x, 4, 4), b.node("Sigmoid", x), axis=1)
    b.node("Relu", y, out="y")
    b.output("y")
    model = b.build()
    plan = calibrated(model, "onnxruntime")
    program = lower(plan)
    found = IntegerEngine(program, threads=1).run(dict(random_inputs(model, batch=2)))
    simulated, _ = Simulator(plan, threads=1).run(dict(random_inputs(model, batch=2)))
    assert sqnr_db(simulated["y"], found.outputs["y"]) > 30
    for step in program.steps:
        if isinstance(step.operation, Concat) and step.outputs[0].encoding is not None:
            wanted = step.outputs[0].encoding
            assert all(t.encoding and wanted.same_as(t.encoding) for t in step.activations)


def test_chains_that_are_one_operation() -> None:
    """A difference times itself, and the reciprocal of a root."""
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 4, 6, 6]), 4, 4)
    one = b.node("Add", b.node("Relu", x), b.constant(np.float32(1.0)))
    b.node("Reciprocal", b.node("Sqrt", one), out="y")
    b.output("y")
    program = lower(calibrated(b.build(), "tflite"))
    kinds = [s.operation.kind for s in program.steps if isinstance(s.operation, Function)]
    assert functions.rsqrt in kinds
    adds = [s.operation.kind for s in program.steps if isinstance(s.operation, Elementwise)]
    assert adds == [Binary.ADD]


def test_global_pools_and_softmax() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 4, 6, 6]), 4, 4)
    x = b.node("GlobalAveragePool", b.node("AveragePool", x, kernel_shape=[2, 2]))
    b.node("Softmax", b.node("Flatten", x), out="y", axis=1)
    b.output("y")
    program = lower(calibrated(b.build(), "tflite"), layout=IoLayout.CHANNELS_LAST)
    assert types(program) == {
        Quantize: 1,
        Convolution: 1,
        Pool: 1,
        Reduce: 1,
        Reshape: 1,
        Softmax: 1,
        Dequantize: 1,
    }
    reduction = next(s.operation for s in program.steps if isinstance(s.operation, Reduce))
    assert reduction.axes == (1, 2)
    softmax = next(step for step in program.steps if isinstance(step.operation, Softmax))
    encoding = softmax.outputs[0].encoding
    assert encoding is not None
    assert (float(encoding.scale), int(encoding.zero_point)) == (1 / 256, -128)


def test_the_model_of_a_plan_is_not_changed() -> None:
    plan = calibrated(residual_net(), "tflite")
    before = plan.graph.hash
    lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    assert plan.graph.hash == before == normalize(plan.graph.model).hash
    assert Requantize not in types(lower(plan))


def test_codes_are_moved_before_they_become_floats() -> None:
    """So that a file of integers can hand them out; other readers keep what they read."""
    model = transposed_net()
    program = lower(calibrated(model, "tflite"))
    last, before = program.steps[-1], program.steps[-2]
    assert isinstance(last.operation, Dequantize)
    assert isinstance(before.operation, Transpose)
    assert program.outputs["pixels"] is last.outputs[0]
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 4, 6, 6]), 4, 4)
    b.nodes[-1].output[0] = "seen"
    b.node("Erf", "seen", out="curve")
    b.output("seen")
    b.output("curve")
    assert x
    plan, feeds = calibrated(b.build(), "tflite"), dict(random_inputs(b.build(), batch=2))
    wanted, _ = Simulator(plan, threads=1).run(feeds)
    for name, array in IntegerEngine(lower(plan), threads=1).run(feeds).outputs.items():
        assert sqnr_db(wanted[name], array) > 30
