"""Nodes of masks and other float nodes in a file: LiteRT computes what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import intact
from intact.engines.session import FloatModel
from intact.errors import ExportError
from intact.formats.base.format import Io
from intact.formats.registry import FORMATS
from intact.formats.tflite.deployed import run_tflite
from intact.formats.tflite.read import assemble
from intact.formats.tflite.reader.decode import open_tflite
from intact.formats.tflite.reader.operators import build_model
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.spellings import NODES, POSITIONS, PRODUCT, SELECTIONS
from intact.formats.tflite.verify import verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.plan import Overrides, QuantizedGraph
from intact.program.deployed import deployed_program
from intact.program.lower import lower
from intact.program.passes.layout import IoLayout
from tests.formats.tflite.files import operators_of
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

pytest.importorskip("ai_edge_litert")

Arrays = dict[str, npt.NDArray[Any]]


def feeds(count: int) -> Arrays:
    random = np.random.default_rng(count)
    mask = (np.arange(6) < random.integers(2, 7, (count, 1))).astype(np.int64)
    return {"x": random.normal(size=(count, 6, 8)).astype(np.float32), "mask": mask}


def masked(form: str) -> onnx.ModelProto:
    """Attention over 6 positions with a mask of int64, as exporters of encoders write it."""
    b = ModelBuilder(17)
    x, mask = b.input("x", ["batch", 6, 8]), b.input("mask", ["batch", 6], TensorProto.INT64)
    mask = b.node("Unsqueeze", mask, b.ints(1))
    lowest = b.scalar(-10000.0)
    if form == "product":
        inverse = b.node("Sub", b.scalar(1.0), b.node("Cast", mask, to=TensorProto.FLOAT))
        added = b.node("Mul", inverse, lowest)
    else:
        absent = b.node("Equal", mask, b.constant(np.array(0)))
        if form == "logic":
            known = b.node("Less", mask, b.constant(np.array(5)))
            absent = b.node("And", absent, b.node("Not", b.node("Not", known)))
            for op_type in ("Greater", "GreaterOrEqual"):
                absent = b.node("Or", absent, b.node(op_type, mask, b.constant(np.array(7))))
            absent = b.node("And", absent, b.node("LessOrEqual", mask, b.constant(np.array(7))))
        if form == "cast":
            absent = b.node("Cast", b.node("Cast", absent, to=TensorProto.FLOAT), to=9)
        added = b.node("Where", absent, lowest, b.scalar(0.0))
    q, k, v = (b.node("MatMul", x, b.weight(8, 8)) for _ in range(3))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]))
    weights = b.node("Softmax", b.node("Add", scores, added), axis=-1)
    b.node("MatMul", weights, v, out="y")
    b.output("y", ["batch", 6, 8])
    return b.build()


@pytest.mark.parametrize("form", ["product", "choice", "logic", "cast"])
def test_masks_are_written(form: str) -> None:
    plan = calibrate(planned(masked(form), "tflite"), feeds(32))
    program = lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    content = write_tflite(program, io=Io.INT8)
    found = verify_tflite(plan, content, [feeds(16)])
    assert found.samples == 16
    assert sum(each.mismatches for each in found.outputs) == 0


@pytest.mark.parametrize(
    ("op_type", "constant"), [("Floor", None), ("Cos", None), ("Sin", None), ("Pow", 3.0)]
)
def test_other_nodes(op_type: str, constant: float | None) -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 6, 8]), b.weight(8, 8))
    y = b.node(op_type, x, *([] if constant is None else [b.scalar(constant)]))
    b.node("MatMul", y, b.weight(8, 4), out="y")
    b.output("y", ["batch", 6, 4])
    data = {"x": feeds(32)["x"]}
    plan = calibrate(planned(b.build(), "tflite"), data)
    program = lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    found = verify_tflite(plan, write_tflite(program), [{"x": feeds(16)["x"]}])
    assert max(each.largest for each in found.outputs) <= 1


def top(b: ModelBuilder, x: str, count: int, **attributes: Any) -> tuple[str, str]:
    node = helper.make_node("TopK", [x, b.ints(count)], ["most", "at"], name="top", **attributes)
    b.nodes.append(node)
    return "most", "at"


def volume(**attributes: Any) -> onnx.ModelProto:
    """A convolution over three axes, in front of what computes with integers."""
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 3, 6, 5, 7])
    y = b.node("Conv", x, b.weight(4, 3, 3, 2, 3), b.weight(4), name="volume", **attributes)
    y = b.node("ReduceMean", b.node("Relu", y), axes=[2], keepdims=0)
    b.outputs.append(helper.make_empty_tensor_value_info(b.node("Conv", y, b.weight(2, 4, 1, 1))))
    return b.build()


@pytest.mark.parametrize(
    ("attributes", "is_padded"),
    [
        ({}, False),
        ({"pads": [1, 0, 1, 1, 1, 1]}, False),
        ({"pads": [1, 1, 1, 1, 1, 1], "strides": [2, 1, 2]}, True),
        ({"dilations": [2, 1, 1]}, False),
    ],
)
@pytest.mark.parametrize("target", ["tflite", "tflite-xnnpack"])
def test_convolutions_over_three_axes_are_written_in_float(
    target: str, attributes: dict[str, Any], is_padded: bool
) -> None:
    data = {"x": np.random.default_rng(0).normal(size=(8, 3, 6, 5, 7)).astype(np.float32)}
    made = intact.quantize(volume(**attributes), data, target=target, io="float")
    content = FORMATS["tflite"].writer.write(made.plan, Io.FLOAT).files["model.int8.tflite"]  # type: ignore[attr-defined]
    before = ["PAD"] if is_padded else []
    assert operators_of(content)[: len(before) + 2] == [*before, "CONV_3D", "QUANTIZE"]
    assert not any(each.mismatches for each in intact.verify(made, data).outputs)


@pytest.mark.parametrize("form", ["MaxPool", "ConvTranspose", "Conv of groups"])
def test_other_windows_over_three_axes_are_refused_as_not_written(form: str) -> None:
    b = ModelBuilder(17)
    x = b.input("x", [1, 4, 4, 4, 4])
    if form == "MaxPool":
        y = b.node("MaxPool", b.node("Relu", x), kernel_shape=[2, 2, 2], name="odd")
    elif form == "ConvTranspose":
        y = b.node("ConvTranspose", x, b.weight(4, 2, 2, 2, 2), name="odd")
    else:
        y = b.node("Conv", x, b.weight(4, 2, 2, 2, 2), group=2, name="odd")
    b.outputs.append(helper.make_empty_tensor_value_info(b.node("Relu", y)))
    with pytest.raises(ExportError, match=r"cannot hold 'odd': intact writes (it for|no groups)"):
        intact.quantize(b.build(), _unread(), target="tflite", io="float")


FORMS: dict[str, Callable[[ModelBuilder, str], str | tuple[str, ...]]] = {
    "And, Not": lambda b, x: b.node(
        "And", b.node("Greater", x, b.scalar(0.2)), b.node("Not", b.node("Equal", x, b.scalar(0.5)))
    ),
    "ArgMax": lambda b, x: b.node("ArgMax", x, axis=1, keepdims=0),
    "ArgMin of kept axes": lambda b, x: b.node("ArgMin", x, axis=-1, keepdims=1),
    "Cast to int32": lambda b, x: b.node("Cast", x, to=TensorProto.INT32),
    "Ceil": lambda b, x: b.node("Ceil", x),
    "CumSum": lambda b, x: b.node("CumSum", x, b.constant(np.array(-1)), reverse=1, exclusive=1),
    "DepthToSpace CRD": lambda b, x: b.node("DepthToSpace", x, blocksize=2, mode="CRD"),
    "Exp of doubles": lambda b, x: b.node(
        "Exp", b.node("Mul", b.node("Cast", x, to=TensorProto.DOUBLE), b.constant(np.array(0.3)))
    ),
    "GatherElements": lambda b, x: b.node(
        "GatherElements", x, b.node("ArgMax", x, axis=1, keepdims=1), axis=1
    ),
    "GatherElements of constants": lambda b, x: b.node(
        "GatherElements", x, b.constant(np.arange(480).reshape(2, 8, 5, 6) % 8 - 4), axis=2
    ),
    "GatherND": lambda b, x: b.node("GatherND", x, b.constant(np.array([[0, -1], [1, 2]]))),
    "GatherND of samples": lambda b, x: b.node(
        "GatherND", x, b.constant(np.array([[[-1], [3], [0]], [[2], [2], [-8]]])), batch_dims=1
    ),
    "GatherND of rows": lambda b, x: b.node(
        "GatherND",
        x,
        b.with_axes("Unsqueeze", b.node("ArgMax", x, axis=2, keepdims=0), [-1]),
        batch_dims=2,
    ),
    "IsNaN": lambda b, x: b.node("IsNaN", b.node("Sqrt", x)),
    "LRN": lambda b, x: b.node("LRN", x, size=3, alpha=0.3, beta=0.6, bias=1.5),
    "Mod": lambda b, x: b.node("Mod", x, b.scalar(1.5), fmod=1),
    "Mod of integers": lambda b, x: b.node(
        "Mod", b.node("Cast", x, to=TensorProto.INT64), b.constant(np.array(-3))
    ),
    "Or": lambda b, x: b.node(
        "Or", b.node("GreaterOrEqual", x, b.scalar(0.5)), b.node("Less", x, b.scalar(-0.5))
    ),
    "Pad": lambda b, x: b.node(
        "Pad", b.node("Ceil", x), b.ints(0, 0, 1, 2, 0, 1, 0, 2), b.scalar(-7.5)
    ),
    "Pow": lambda b, x: b.node("Pow", x, b.scalar(2.0)),
    "ReduceL1": lambda b, x: b.node("ReduceL1", x, axes=[1, 3]),
    "ReduceL2": lambda b, x: b.node("ReduceL2", x, axes=[2], keepdims=0),
    "ReduceLogSum": lambda b, x: b.node("ReduceLogSum", b.node("Exp", x), axes=[1]),
    "ReduceProd": lambda b, x: b.node("ReduceProd", x, axes=[-1], keepdims=0),
    "ReduceSumSquare": lambda b, x: b.node("ReduceSumSquare", x, axes=[1]),
    "Round": lambda b, x: b.node("Round", x),
    "ScatterND": lambda b, x: b.node(
        "ScatterND", x, b.constant(np.array([[1, 2], [0, -1]])), b.weight(2, 4, 6)
    ),
    "ScatterND that adds": lambda b, x: b.node(
        "ScatterND", x, b.constant(np.array([[1, 2], [1, 2]])), b.weight(2, 4, 6), reduction="add"
    ),
    "Sign": lambda b, x: b.node("Sign", x),
    "TopK": lambda b, x: top(b, x, 2, axis=1),
    "TopK of the least": lambda b, x: top(b, x, 3, axis=-1, largest=0),
    "Where": lambda b, x: b.node("Where", b.node("LessOrEqual", x, b.scalar(0.5)), x, b.weight(6)),
}
"""A node of each kind that is written as what LiteRT has, of an input ``[2, 8, 4, 6]``."""


def model_of(form: str) -> onnx.ModelProto:
    b = ModelBuilder(17)
    made = FORMS[form](b, b.input("x", [2, 8, 4, 6]))
    for name in (made,) if isinstance(made, str) else made:
        b.outputs.append(helper.make_empty_tensor_value_info(name))
    return b.build()


def test_every_node_that_has_a_spelling_is_in_a_form() -> None:
    spelled = {each.onnx for each in (*NODES, *POSITIONS, *SELECTIONS, PRODUCT)}
    assert spelled <= {node.op_type for form in FORMS for node in model_of(form).graph.node}


def read_back(plan: QuantizedGraph, content: bytes, feeds: Arrays) -> Arrays:
    """Return what a written file computes once it is read as a graph of floats."""
    program = deployed_program(plan, float_operations=True)
    given = {name: each.as_stored(feeds[name]) for name, each in program.inputs.items()}
    found = FloatModel(assemble(build_model(open_tflite(content)))).run(given)
    return {name: each.as_in_model(found[name]) for name, each in program.outputs.items()}


@pytest.mark.parametrize("form", FORMS)
def test_nodes_in_float_give_what_onnx_runtime_does(form: str) -> None:
    model = model_of(form)
    x = np.random.default_rng(0).normal(0, 2, (2, 8, 4, 6)).astype(np.float32)
    x[0, 0, 0] = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997]  # ties, and what is next to one
    plan = planned(
        model, "tflite", Overrides(keep_float=tuple({each.op_type for each in model.graph.node}))
    )
    content = FORMATS["tflite"].writer.write(plan, Io.FLOAT).files["model.int8.tflite"]  # type: ignore[attr-defined]
    session = ort.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x": x})
    ways = [run_tflite(plan, content, {"x": x}, each) for each in (Kernels.REF, Kernels.XNNPACK)]
    # What is written is read, and means the same.
    for found in (*ways, read_back(plan, content, {"x": x})):
        for value, expected in zip(session.get_outputs(), wanted, strict=True):
            is_wide = expected.dtype == np.float64
            assert found[value.name].dtype == (np.float32 if is_wide else expected.dtype)
            np.testing.assert_allclose(found[value.name], expected, rtol=2e-6, atol=2e-6)


def test_the_magnitude_of_a_constant_is_no_operator() -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", [1, 6, 8]), b.weight(8, 8))
    b.node("Mod", x, b.constant(np.linspace(-1, 2, 6, dtype=np.float32)[:, None]), fmod=1, out="y")
    b.output("y", [1, 6, 8])
    plan = planned(b.build(), "tflite", Overrides(keep_float=("MatMul", "Mod")))
    content = FORMATS["tflite"].writer.write(plan, Io.FLOAT).files["model.int8.tflite"]  # type: ignore[attr-defined]
    assert operators_of(content).count("ABS") == 1


def test_what_types_cannot_hold_is_refused() -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 6, 8]), b.weight(8, 8))
    whole = b.node("Cast", b.node("Cast", x, to=TensorProto.UINT8), to=TensorProto.FLOAT)
    b.node("MatMul", whole, b.weight(8, 4), out="y")
    b.output("y", ["batch", 6, 4])
    plan = calibrate(planned(b.build(), "tflite"), {"x": feeds(8)["x"]})
    program = lower(plan, float_operations=True, layout=IoLayout.CHANNELS_LAST)
    with pytest.raises(ExportError, match="it casts float32 to uint8"):
        write_tflite(program)


def _without_operator(b: ModelBuilder, x: str) -> str:
    first, second = (b.node("Greater", x, b.scalar(each)) for each in (0.0, 0.5))
    return b.node("Cast", b.node("Xor", first, second, name="odd"), to=TensorProto.FLOAT)


def _refused_as_it_is_written(b: ModelBuilder, x: str) -> str:
    whole = b.node("Cast", b.node("Greater", x, b.scalar(0.5)), to=TensorProto.INT64)
    rest = b.node("Mod", whole, b.constant(np.int64(2)), fmod=1, name="odd")
    return b.node("Cast", rest, to=TensorProto.FLOAT)


@pytest.mark.parametrize("make", [_without_operator, _refused_as_it_is_written])
def test_refusals_name_the_node_and_not_the_first_of_its_step(
    make: Callable[[ModelBuilder, str], str],
) -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", [1, 6, 8]), b.weight(8, 8))
    b.output(b.node("MatMul", x, b.weight(8, 4)), [1, 6, 4])
    b.output(make(b, x), [1, 6, 8])
    with pytest.raises(ExportError, match="TFLite cannot hold 'odd': "):
        intact.quantize(b.build(), _unread(), target="tflite", io="float")


def test_what_micro_lacks_is_refused() -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 6, 8]), b.weight(8, 8))
    b.node("Pow", b.node("Abs", x), b.scalar(1.7), out="y", name="power")
    b.output("y", ["batch", 6, 8])
    plan = calibrate(planned(b.build(), "tflite-micro"), {"x": feeds(8)["x"]})
    refused = "'power': TensorFlow Lite Micro has no operator for it"
    with pytest.raises(ExportError, match=refused):
        FORMATS["tflite"].writer.write(plan, Io.INT8)


@pytest.mark.parametrize("function", ["Clip", "Relu", "Abs", "Neg"])
def test_functions_of_whole_numbers_give_what_onnx_runtime_does(function: str) -> None:
    b = ModelBuilder(18)
    x = b.input("x", [1, 4, 8])
    y = b.node("MatMul", x, b.weight(8, 8))
    best = b.node("Sub", b.node("ArgMax", y, axis=2, keepdims=0), b.constant(np.int64(4)))
    ends = [b.constant(np.int64(each)) for each in (-2, 1)] if function == "Clip" else []
    best = b.node(function, best, *ends)
    b.output(b.node("Cast", best, to=TensorProto.FLOAT), [1, 4])
    b.output(y, [1, 4, 8])
    data = {"x": np.random.default_rng(0).normal(size=(8, 4, 8)).astype(np.float32)}
    made = intact.quantize(b.build(), data, target="tflite", io="float")
    verified = intact.verify(made, data)
    assert not any(each.mismatches for each in verified.layers)
    assert not any(each.mismatches for each in verified.outputs)


@pytest.mark.parametrize("form", ["Sign", "Div"])
def test_what_kernels_lack_of_whole_numbers_is_refused(form: str) -> None:
    b = ModelBuilder(18)
    best = b.node("ArgMax", b.node("MatMul", b.input("x", [1, 8]), b.weight(8, 8)), axis=1)
    others = [b.constant(np.int64(2))] if form == "Div" else []
    b.output(b.node("Cast", b.node(form, best, *others, name="odd"), to=TensorProto.FLOAT), [1, 1])
    with pytest.raises(ExportError, match=r"cannot hold 'odd': .*(only|alone)"):
        intact.quantize(b.build(), _unread(), target="tflite", io="float")


@pytest.mark.parametrize("target", ["tflite", "tflite-16x8", "tflite-xnnpack"])
def test_quotients_by_zero_get_the_codes_of_the_ends(target: str) -> None:
    b = ModelBuilder(17)
    ratio = b.node("Div", b.input("x", ["batch", 8]), b.input("y", ["batch", 8]), name="ratio")
    ratio = b.node("Unsqueeze", ratio, b.constant(np.array([1])))
    b.output(b.node("MatMul", ratio, b.constant(np.eye(8, dtype=np.float32))))
    random = np.random.default_rng(0)
    data = {name: random.uniform(0.5, 2, (16, 8)).astype(np.float32) for name in "xy"}
    keep = ("Div",) if target == "tflite-16x8" else ("Reciprocal", "Mul")
    made = intact.quantize(b.build(), data, target=target, keep_float=keep, io="float")
    odd = {
        "x": np.array([[3, -3, 1e30, -1e30, 3, 0, 1, 1]], np.float32),
        "y": np.array([[0, 0, 1e-5, 1e-5, 1e-20, 0, 1, 2]], np.float32),
    }
    verified = intact.verify(made, odd)
    assert not any(each.mismatches for each in verified.layers)
    assert not any(each.mismatches for each in verified.outputs)


def _refused() -> onnx.ModelProto:
    """A model with a node that intact does not write, behind one that it does."""
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", [1, 4, 4]), b.weight(4, 4))
    b.node("Det", x, out="y", name="volume")
    b.output("y", [1])
    return b.build()


REFUSAL = "TFLite cannot hold 'volume': intact writes no operator of TFLite for Det of floats"


def _unread() -> Iterator[Arrays]:
    raise AssertionError("a sample was read")
    yield {}


def test_what_is_not_written_is_refused_before_samples_are_read() -> None:
    with pytest.raises(ExportError, match=REFUSAL):
        intact.quantize(_refused(), _unread(), target="tflite")


@pytest.mark.parametrize("at", ["input", "output"])
def test_ends_in_float_are_refused_before_samples_are_read(at: str) -> None:
    b = ModelBuilder(17)
    x = b.input("x", [1, 4, 4])
    if at == "input":
        x = b.node("Sin", x, name="wave")
    x = b.node("MatMul", x, b.weight(4, 4))
    b.output(b.node("Sin", x, name="wave") if at == "output" else x, [1, 4, 4])
    with pytest.raises(ExportError, match=f"no integers at the ends.*{at} .*'wave'") as found:
        intact.quantize(b.build(), _unread(), target="tflite")
    assert found.value.with_flags.endswith("--io float")
    data = {"x": np.ones((2, 4, 4), np.float32)}
    made = intact.quantize(b.build(), data, target="tflite", io="float")
    assert not any(each.mismatches for each in intact.verify(made, data).layers)


def test_inspection_says_what_will_be_refused() -> None:
    notes = [str(note) for note in intact.inspect(_refused(), target="tflite").notes]
    assert any(REFUSAL in note for note in notes)
    assert not any("refuse" in str(note) for note in intact.inspect(_refused()).notes)
    assert not any(
        "refuse" in str(n) for n in intact.inspect(masked("logic"), target="tflite").notes
    )


def test_steps_that_read_a_scalar_are_compared() -> None:
    b = ModelBuilder(17)
    x = b.node("Conv", b.input("x", [1, 4, 6, 6]), b.weight(4, 4, 1, 1))
    gate = b.node("Sigmoid", b.node("ReduceMax", x, axes=[0, 1, 2, 3], keepdims=0))
    b.output(b.node("Mul", x, gate), [1, 4, 6, 6])
    data = {"x": np.random.default_rng(0).normal(size=(8, 4, 6, 6)).astype(np.float32)}
    made = intact.quantize(b.build(), data, target="tflite-xnnpack")
    verified = intact.verify(made, data)
    assert verified.layers
    assert not any(each.mismatches for each in verified.layers)
