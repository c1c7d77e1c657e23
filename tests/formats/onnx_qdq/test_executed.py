"""What ONNX Runtime makes of a plan: each kind of float node between pairs, and pairs in a row.

The runtime's optimizer knows some thirty operators between pairs. Each is kept float here, between
convolutions of integers, and ONNX Runtime is asked by the graph that it rewrites the model to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from intact.engines.exact_sums import saturates_pairs
from intact.engines.simulate import Simulator
from intact.errors import ExportError
from intact.formats.base.format import CHANGED
from intact.formats.onnx_qdq import shield, write
from intact.formats.onnx_qdq.executed import executed_of, loaded
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import QdqModel, write_qdq
from intact.graph import load_model, normalize
from intact.graph.edit import Editor
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.results.first_run import run_once
from intact.results.result import Result
from intact.targets import DType
from tests.models import ModelBuilder, random_inputs
from tests.plans import Arrays, calibrate, planned

pytestmark = pytest.mark.runtime_fact("onnxruntime")

SIZE, WIDTH = 8, 8
Maker = Callable[[ModelBuilder, str], str]

OTHERWISE = 2
"""Values of some ten thousand that may differ by the order in which floats are added."""


def kept(op_type: str, *shapes: tuple[int, ...], **attributes: Any) -> Maker:
    """A node with weights."""

    def make(b: ModelBuilder, x: str) -> str:
        weights = [b.weight(*shape) for shape in shapes]
        return b.node(op_type, x, *weights, name="kept", **attributes)

    return make


def with_ints(op_type: str, *tensors: tuple[int, ...], **attributes: Any) -> Maker:
    """A node with axes, sizes or indices."""

    def make(b: ModelBuilder, x: str) -> str:
        ints = [b.ints(*each) for each in tensors]
        return b.node(op_type, x, *ints, name="kept", **attributes)

    return make


def of_two(op_type: str, **attributes: Any) -> Maker:
    def make(b: ModelBuilder, x: str) -> str:
        return b.node(op_type, x, _beside(b, x), name="kept", **attributes)

    return make


def _beside(b: ModelBuilder, x: str) -> str:
    return b.node("Conv", x, b.weight(WIDTH, WIDTH, 1, 1), b.weight(WIDTH), name="beside it")


def concat(b: ModelBuilder, x: str) -> str:
    both = b.node("Concat", x, _beside(b, x), name="kept", axis=1)
    return b.node("Conv", both, b.weight(WIDTH, 2 * WIDTH, 1, 1))


def where(b: ModelBuilder, x: str) -> str:
    condition = b.constant(np.arange(SIZE) % 2 == 0)
    return b.node("Where", condition, x, _beside(b, x), name="kept")


def split(b: ModelBuilder, x: str) -> str:
    outs = ["first", "second"]
    b.nodes.append(helper.make_node("Split", [x, b.ints(3, 5)], outs, axis=1, name="kept"))
    b.node("Conv", "second", b.weight(2, 5, 1, 1), out="other")
    b.output("other")
    return b.node("Conv", "first", b.weight(WIDTH, 3, 1, 1))


def reduced(op_type: str) -> Maker:
    def make(b: ModelBuilder, x: str) -> str:
        since = 13 if op_type == "ReduceSum" else 18
        return b.with_axes(op_type, x, [2, 3], input_since=since, keepdims=1, name="kept")

    return make


def resized(mode: str) -> Maker:
    def make(b: ModelBuilder, x: str) -> str:
        scales = b.constant(np.array([1, 1, 2, 2], np.float32))
        return b.node("Resize", x, "", scales, name="kept", mode=mode)

    return make


def reshaped(op_type: str, *tensors: tuple[int, ...], **attributes: Any) -> Maker:
    """Of another shape for a while."""

    def make(b: ModelBuilder, x: str) -> str:
        y = with_ints(op_type, *tensors, **attributes)(b, x)
        return b.node("Reshape", y, b.ints(0, WIDTH, SIZE, SIZE))

    return make


def dense(op_type: str, *, bias: bool = False, added: bool = False) -> Maker:
    """A dense layer of rows; others read them in integers."""

    def make(b: ModelBuilder, x: str) -> str:
        places = WIDTH * SIZE * SIZE
        rows = b.node("Reshape", x, b.ints(0, places))
        b.node("Gemm", rows, b.weight(places, 4), out="rows")
        b.output("rows")
        extra = [b.weight(places)] if bias else []
        y = b.node(op_type, rows, b.weight(places, places), *extra, name="kept")
        y = b.node("Add", y, b.weight(places), name="kept too") if added else y
        return b.node("Reshape", y, b.ints(0, WIDTH, SIZE, SIZE))

    return make


def clipped(b: ModelBuilder, x: str) -> str:
    return b.node("Clip", x, b.scalar(-1), b.scalar(1), name="kept")


def power(b: ModelBuilder, x: str) -> str:
    return b.node("Pow", x, b.scalar(2), name="kept")


def arg_max(b: ModelBuilder, x: str) -> str:
    b.output(b.node("ArgMax", x, name="kept", axis=1, out="where"), dtype=TensorProto.INT64)
    return x


def before(make: Maker, op_type: str, *shapes: tuple[int, ...]) -> Maker:
    """Something behind, kept too."""

    def made(b: ModelBuilder, x: str) -> str:
        weights = [b.weight(*shape) for shape in shapes]
        return b.node(op_type, make(b, x), *weights, name="kept too")

    return made


CONV, TRANSPOSED = kept("Conv", (WIDTH, WIDTH, 1, 1)), kept("ConvTranspose", (WIDTH, WIDTH, 1, 1))
CHANNELS = (WIDTH, 1, 1)

KINDS: dict[str, Maker] = {
    "Conv": CONV,
    "Conv with bias": kept("Conv", (WIDTH, WIDTH, 1, 1), (WIDTH,)),
    "Conv, Relu": before(CONV, "Relu"),
    "Conv, Add": before(CONV, "Add", CHANNELS),
    "Conv, Mul": before(CONV, "Mul", CHANNELS),
    "ConvTranspose": TRANSPOSED,
    "ConvTranspose, Relu": before(TRANSPOSED, "Relu"),
    "Gemm": dense("Gemm", bias=True),
    "MatMul": dense("MatMul"),
    "MatMul, Add": dense("MatMul", added=True),
    "MatMul of two": of_two("MatMul"),
    "Add": of_two("Add"),
    "Mul": of_two("Mul"),
    "Sub": of_two("Sub"),
    "Div": of_two("Div"),
    "Max": of_two("Max"),
    "Add of a constant": kept("Add", CHANNELS),
    "Pow": power,
    "Softmax": kept("Softmax", axis=1),
    "LogSoftmax": kept("LogSoftmax", axis=1),
    "Sigmoid": kept("Sigmoid"),
    "LeakyRelu": kept("LeakyRelu", alpha=0.1),
    "Tanh": kept("Tanh"),
    "Relu": kept("Relu"),
    "Clip": clipped,
    "PRelu": kept("PRelu", CHANNELS),
    "HardSigmoid": kept("HardSigmoid"),
    "Elu": kept("Elu"),
    "AveragePool": kept("AveragePool", kernel_shape=[2, 2]),
    "MaxPool": kept("MaxPool", kernel_shape=[2, 2]),
    "GlobalAveragePool": kept("GlobalAveragePool"),
    "GlobalMaxPool": kept("GlobalMaxPool"),
    "ReduceMean": reduced("ReduceMean"),
    "ReduceMax": reduced("ReduceMax"),
    "ReduceMin": reduced("ReduceMin"),
    "ReduceSum": reduced("ReduceSum"),
    "Concat": concat,
    "Where": where,
    "Split": split,
    "Resize, nearest": resized("nearest"),
    "Resize, linear": resized("linear"),
    "Flatten": reshaped("Flatten", axis=1),
    "Unsqueeze": reshaped("Unsqueeze", (1,)),
    "Transpose": kept("Transpose", perm=[0, 1, 3, 2]),
    "Gather": with_ints("Gather", tuple(range(WIDTH)), axis=1),
    "Slice": with_ints("Slice", (0,), (6,), (2,)),
    "Expand": with_ints("Expand", (1, WIDTH, SIZE, SIZE)),
    "Tile": with_ints("Tile", (1, 1, 1, 2)),
    "ArgMax": arg_max,
    "InstanceNormalization": kept("InstanceNormalization", (WIDTH,), (WIDTH,)),
    "LayerNormalization": kept("LayerNormalization", (SIZE,), (SIZE,)),
}
SAME = {
    *("ArgMax", "Concat", "Expand", "Flatten", "Gather", "LeakyRelu", "MaxPool", "ReduceMax"),
    *("ReduceMin", "Relu", "Resize, nearest", "Sigmoid", "Slice", "Split", "Tile", "Transpose"),
    *("Unsqueeze", "Where"),
}
"""Kinds whose kernels of codes give the numbers of the floats: they may run."""
ALSO_OUTPUT = {"Conv", "Conv, Relu", "ConvTranspose", "ConvTranspose, Relu", "MatMul of two"}
CASES = [*((name, False) for name in KINDS), *((name, True) for name in sorted(ALSO_OUTPUT))]


def between_convolutions(make: Maker, *, is_output: bool = False) -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 3, SIZE, SIZE]), 3, WIDTH)
    y = make(b, x)
    b.node("Conv", y, b.weight(4, WIDTH, 1, 1), b.weight(4), out="y", name="behind")
    b.node("Conv", x, b.weight(4, WIDTH, 1, 1), out="z", name="beside")  # x is in integers
    b.output("y")
    b.output("z")
    if is_output:
        b.output(y)
    return b.build()


def plan_of(model: onnx.ModelProto) -> QuantizedGraph:
    names = {str(node.name) for node in normalize(model).nodes} & {"kept", "kept too"}
    plan = planned(model, "onnxruntime", Overrides(keep_float=tuple(sorted(names))))
    assert names
    assert not any(plan.decisions[name].quantized for name in names)
    return calibrate(plan, dict(random_inputs(model, batch=4)))


def differing(plan: QuantizedGraph, feeds: Arrays) -> int:
    """Count the integers that differ from the simulation, which gets the runtime's own."""
    exported, simulator = write_qdq(plan), Simulator(plan, threads=1, teacher_forced=True)
    codes = {end: exported.codes[end] for end in simulator.points}
    _, integers = QdqRuntime(exported.model, codes, threads=1).run(feeds)
    lessons: dict[str, npt.NDArray[Any]] = {
        name: plan.configs[end].dequantize(integers[end].astype(np.int64))
        for end, name in simulator.teacher_inputs.items()
    }
    _, taught = simulator.run(feeds | lessons, observe=tuple(codes))
    pairs = ((integers[end], plan.configs[end].quantize(taught[end])) for end in codes)
    return sum(int(np.count_nonzero(one != other)) for one, other in pairs)


@pytest.mark.parametrize(("kind", "is_output"), CASES)
def test_what_is_planned_in_float_has_the_numbers_of_floats(kind: str, is_output: bool) -> None:
    model = between_convolutions(KINDS[kind], is_output=is_output)
    plan = plan_of(model)
    executed = executed_of(write_qdq(plan), plan)
    assert executed.changed == ()
    if kind not in SAME:
        assert executed.in_integers.keys().isdisjoint({"kept", "kept too"})
    assert differing(plan, dict(random_inputs(model, batch=8, seed=3))) <= OTHERWISE


def two_pairs() -> ir.Model:
    """What a convolution gives, quantized twice in a row."""
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 3, SIZE, SIZE]), 3, WIDTH)
    for scale, zero in ((0.02, 100), (0.011, 120)):
        grid = b.scalar(scale), b.constant(np.uint8(zero))
        codes = b.node("QuantizeLinear", x, *grid, name=f"quantize {zero}")
        x = b.node("DequantizeLinear", codes, *grid)
    b.node("Sin", x, out="y")
    b.output("y")
    return load_model(b.build())


def test_two_pairs_in_a_row_stay_two() -> None:
    plan, model = plan_of(between_convolutions(CONV)), two_pairs()
    feeds = dict(random_inputs(between_convolutions(CONV), batch=8, seed=3))
    codes = {TensorEnd.output(n.name or ""): str(n.outputs[0].name) for n in model.graph}
    shown = {end: name for end, name in codes.items() if end.node.startswith("quantize")}
    expected = QdqRuntime(model, shown, threads=1).run(feeds)[0]["y"]  # they are not joined then
    joined = QdqModel(model)
    assert executed_of(joined, plan).changed[0] == "quantize 100"
    assert np.mean(QdqRuntime(model, threads=1).run(feeds)[0]["y"] != expected) > 0.1
    editor = Editor(model)
    shield.keep_as_planned(plan, editor)
    kept_apart = QdqModel(editor.finish())
    assert executed_of(kept_apart, plan).changed == ()
    found = QdqRuntime(kept_apart.model, threads=1).run(feeds)[0]["y"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bias", [DType.INT32, DType.FLOAT32])
@pytest.mark.parametrize("keeps_floats", [False, True])
def test_floats_are_kept_where_the_target_says_that_its_runtime_does_not(
    bias: DType, keeps_floats: bool
) -> None:
    plan = plan_of(between_convolutions(KINDS["Softmax"]))
    scheme = msgspec.structs.replace(plan.target.bias, dtype=bias)
    target = msgspec.structs.replace(plan.target, bias=scheme, keeps_floats=keeps_floats)
    model = write_qdq(replace(plan, target=target)).model
    assert any(node.op_type == "Max" for node in model.graph) != keeps_floats


@pytest.fixture
def unshielded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written as if the runtime took nothing otherwise than it is planned."""
    monkeypatch.setattr(write, "keep_as_planned", lambda *_: None)


@pytest.mark.usefixtures("unshielded")
def test_what_the_runtime_rounds_otherwise_is_named() -> None:
    model = between_convolutions(KINDS["Softmax"])
    plan = plan_of(model)
    exported = write_qdq(plan)
    result = Result(plan, None, {"onnx_qdq": exported})
    feeds = dict(random_inputs(model, batch=1, seed=3))
    run_once(result, feeds)
    assert [n.node for n in result.plan.notes if CHANGED in n.message] == ["kept"]
    found = verify_qdq(plan, exported, [dict(random_inputs(model, batch=8))])
    assert found.integer_nodes == {"kept": "QLinearSoftmax"}
    assert [line for line in found.executed_otherwise() if "kept" in line][-1].startswith(CHANGED)


@pytest.mark.usefixtures("unshielded")
def test_a_product_that_becomes_a_float_gemm_is_named() -> None:
    b = ModelBuilder(opset=20)
    y = b.node("MatMul", b.input("x", [1, 4, 16]), b.weight(16, 16), name="product")
    b.node("Gelu", b.node("Add", y, b.weight(16)), out="y")
    b.output("y")
    model = b.build()
    plan = calibrate(planned(model), dict(random_inputs(model)))
    assert executed_of(write_qdq(plan), plan).in_float == {"product": "Gemm"}


@pytest.mark.usefixtures("unshielded")
def test_wrong_numbers_are_laid_to_kernels_of_the_runtimes_own() -> None:
    b = ModelBuilder()
    bias = b.constant(np.array([-100] + [0] * (WIDTH - 1), np.float32))
    x = b.node("Conv", b.input("image", ["batch", 3, SIZE, SIZE]), b.weight(WIDTH, 3, 1, 1), bias)
    # The first channel is dead. One scale for all, for its weights too, rounds the others to zero.
    weight = np.asarray(b.random.normal(size=(WIDTH, WIDTH, 1, 1)), np.float32)
    weight[0] = 1000
    y = b.node("ConvTranspose", b.node("Relu", x), b.constant(weight), name="kept", out="y")
    b.node("Conv", y, b.weight(4, WIDTH, 1, 1), out="z")
    b.output("z")
    b.output("y")
    model = b.build()
    plan = calibrate(planned(model), dict(random_inputs(model, batch=4)))
    result = Result(plan, None, {"onnx_qdq": write_qdq(plan)})
    with pytest.raises(ExportError, match=f"{re.escape(CHANGED)}: kept") as refused:
        run_once(result, dict(random_inputs(model, batch=1)))
    assert "--keep-float" not in refused.value.with_flags


def test_one_session_runs_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_session(*arguments: Any, **options: Any) -> ort.InferenceSession:
        opened.append(arguments)
        return session(*arguments, **options)

    session = ort.InferenceSession
    plan = plan_of(between_convolutions(CONV))
    exported = write_qdq(plan)
    saturates_pairs()  # asked once, with a session
    monkeypatch.setattr(ort, "InferenceSession", open_session)
    loaded(exported, plan, threads=1, exact=False)
    executed_of(exported, plan)
    assert len(opened) == 1
