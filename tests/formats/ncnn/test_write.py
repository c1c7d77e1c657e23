"""The files: their bytes, names and splits, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import onnx
import pytest

from intact.errors import ExportError, PlanError
from intact.formats.base.format import Io, WrittenFiles
from intact.formats.ncnn.builder import Layer
from intact.formats.ncnn.model import NcnnModel
from intact.formats.registry import export
from intact.plan import Overrides, QuantizedGraph
from tests.formats.ncnn.cases import outputs_of, written_from
from tests.models import MODELS, ModelBuilder, random_inputs, run_model
from tests.plans import calibrated, planned


def layers(model: NcnnModel) -> list[list[str]]:
    magic, counts, *lines = model.param.splitlines()
    assert magic == "7767517"
    rows = [line.split() for line in lines]
    tops = {blob for row in rows for blob in row[4 + int(row[2]) : 4 + int(row[2]) + int(row[3])]}
    assert counts == f"{len(lines)} {len(tops)}"
    return rows


def one_conv(*, outputs: int = 2) -> onnx.ModelProto:
    b = ModelBuilder()
    weight = np.zeros((outputs, 3, 1, 1), np.float32)
    weight[0, :, 0, 0] = [1.27, -0.64, 0.005]  # scale 0.01: codes 127, -64, 1 (a tie)
    weight[1:] = 2.0
    bias = b.constant(np.array([0.5, -0.25], np.float32)[:outputs])
    x = b.node("Conv", b.input("x", ["batch", 3, 4, 5]), b.constant(weight), bias, name="c")
    b.output(b.node("Relu", x, out="y"))
    return b.build()


def test_bin_of_one_layer_is_exact() -> None:
    plan = calibrated(one_conv(), "ncnn")
    written = written_from(plan)
    data = plan.input_config(plan.graph.node("c"), 0).params
    weight = plan.input_config(plan.graph.node("c"), 1).params
    assert data is not None
    assert weight is not None
    one = np.float32(1)
    assert written.weights == b"".join(
        [
            struct.pack("<I", 0x000D4B38),
            plan_codes([127, -64, int(np.float32(0.005) / weight.scale[0] + 0.5), 127, 127, 127]),
            struct.pack("<2f", 0.5, -0.25),
            (one / weight.scale).astype("<f4").tobytes(),
            (one / data.scale).astype("<f4").tobytes(),
        ]
    )
    assert [" ".join(row) for row in layers(written)] == [
        "Input x 0 1 x 0=5 1=4 2=3",
        "Convolution c 1 1 x y 0=2 1=1 2=1 3=1 4=0 5=1 6=6 8=2 9=1 11=1 12=1 13=1 14=0 15=0 16=0",
    ]


def plan_codes(codes: list[int]) -> bytes:
    """Codes, padded to four bytes."""
    return np.array(codes, np.int8).tobytes() + b"\0" * (-len(codes) % 4)


def test_float_layer_has_the_tag_zero() -> None:
    plan = calibrated(one_conv(), "ncnn", Overrides(keep_float=("Conv",)))
    written = written_from(plan)
    assert written.weights[:8] == struct.pack("<If", 0, 1.27)
    assert "8=" not in " ".join(layers(written)[1])
    assert written.table == ""


def test_equal_plans_give_equal_bytes() -> None:
    model = MODELS["residual"].build(17)
    first, second = (written_from(calibrated(model, "ncnn")) for _ in range(2))
    assert (first.param, first.weights, first.table) == (second.param, second.weights, second.table)


def test_blobs_that_are_read_twice_are_split() -> None:
    rows = layers(written_from(calibrated(MODELS["residual"].build(17), "ncnn")))
    read = [blob for row in rows for blob in row[4 : 4 + int(row[2])]]
    assert len(read) == len(set(read))
    assert [row[2:4] for row in rows if row[0] == "Split"] == [["1", "2"]]


def test_an_output_that_is_read_further_keeps_its_name() -> None:
    pytest.importorskip("ncnn")
    b = ModelBuilder()
    x = b.node("Relu", b.input("x", ["batch", 3]), out="y")
    b.output(x)
    b.output(b.node("Add", x, b.node("Sigmoid", x), out="z"))
    model = b.build()
    written = written_from(planned_float(model))
    assert written.outputs == {"y": "y", "z": "z"}
    feeds = random_inputs(model)
    found = outputs_of(written, feeds)
    for name, expected in run_model(model, feeds).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5)


def test_relu_of_an_output_stays_a_layer() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 3, 4, 4]), b.weight(2, 3, 1, 1), out="y")
    b.output(x)
    b.output(b.node("Relu", x, out="z"))
    written = written_from(calibrated(b.build(), "ncnn"))
    kinds = [row[0] for row in layers(written)]
    assert kinds == ["Input", "Convolution", "Split", "ReLU"]
    tops = {top for row in layers(written) for top in row[4 + int(row[2]) :]}
    assert {"y", "z"} <= tops


def test_an_output_that_is_an_input_is_a_blob_of_its_own() -> None:
    pytest.importorskip("ncnn")
    b = ModelBuilder()
    x = b.input("x", ["batch", 3])
    b.output(b.node("Exp", x, out="y"))
    b.output(x, ["batch", 3])
    model = b.build()
    written = written_from(planned_float(model))
    assert written.outputs == {"y": "y", "x": "x_output"}
    assert "'x' is 'x_output'" in written.notes[0].message
    feeds = random_inputs(model)
    found = outputs_of(written, feeds)
    np.testing.assert_array_equal(found["x"], feeds["x"])
    np.testing.assert_allclose(found["y"], np.exp(feeds["x"]), rtol=1e-5)


def planned_float(model: onnx.ModelProto) -> QuantizedGraph:
    """A plan of a model that has no products: nothing is quantized."""
    return planned(model, "ncnn")


def test_odd_names_become_words() -> None:
    pytest.importorskip("ncnn")
    model = MODELS["odd_names"].build(17)
    plan = calibrated(model, "ncnn")
    written = written_from(plan)
    names = [name for row in layers(written) for name in row[1:2] + row[4 : 4 + int(row[2])]]
    assert all(name.isascii() and name.isprintable() and len(name) <= 255 for name in names)
    renamed = [name for name, blob in {**written.inputs, **written.outputs}.items() if name != blob]
    assert renamed
    assert "one word of printable ASCII" in written.notes[0].message
    feeds = random_inputs(model)
    assert set(outputs_of(written, feeds)) == set(run_model(model, feeds))


def test_names_that_become_one_word_stay_apart() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.input("a b", ["batch", 3]), out="a_b", name="n 1")
    b.output(b.node("Neg", x, out="a\tb", name="n_1"))
    rows = layers(written_from(planned_float(b.build())))
    assert [row[4:] for row in rows] == [
        ["a_b", "0=3"],
        ["a_b", "a_b_2"],
        ["a_b_2", "a_b_3", "0=1"],
    ]
    assert len({row[1] for row in rows}) == 3


def test_everything_unsupported_is_listed() -> None:
    b = ModelBuilder()
    x = b.node("Asinh", b.input("x", ["batch", 3, 4, 4]), name="asinh")
    x = b.node("Concat", x, x, axis=0, name="batches")
    x = b.node("Transpose", x, perm=[1, 0, 2, 3], name="turn")
    b.output(b.node("Relu", x))
    with pytest.raises(ExportError) as found:
        written_from(planned_float(b.build()))
    reason = str(found.value)
    for each in (
        "'asinh': intact writes no ncnn layer for Asinh",
        "'batches': it works along the batch",
        "'turn'",
    ):
        assert each in reason
    assert "Relu" not in reason


@pytest.mark.parametrize("moved", [False, True])
def test_indices_made_of_data_are_unsupported(moved: bool) -> None:
    b = ModelBuilder()
    x = b.node("ArgMax", b.input("x", ["batch", 4, 5]), axis=2, keepdims=0, name="best")
    if moved:
        x = b.node("Unsqueeze", x, b.constant(np.array([1])), name="moved")
    b.output(b.node("Gather", b.weight(5, 3), x))
    with pytest.raises(ExportError, match=r"'(moved|best)': whole numbers that a layer reads"):
        written_from(planned_float(b.build()))


def test_plans_for_other_hardware_are_unsupported() -> None:
    plan = calibrated(MODELS["residual"].build(17), "onnxruntime")
    with pytest.raises(ExportError, match="nothing else") as found:
        written_from(plan)
    said = str(found.value)
    assert said.count("nothing else") == 1  # of however many places
    assert all(str(each) in said for each in plan.configs if "Relu_relu_4.output" in str(each))


def test_narrow_activations_are_unsupported_and_narrow_weights_are_not() -> None:
    with pytest.raises(ExportError, match=r"-7\.\.7 are fewer"):
        written_from(calibrated(one_conv(), "ncnn", Overrides(bits={"c.input[0]": 4})))
    written = written_from(calibrated(one_conv(), "ncnn", Overrides(bits={"c.input[1]": 4})))
    assert np.abs(np.frombuffer(written.weights[4:10], np.int8)).max() == 7


def test_groups_of_several_channels_are_unsupported_in_int8() -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("x", ["batch", 4, 5, 5]), 4, 8, group=4))
    with pytest.raises(ExportError, match="one scale for each group"):
        written_from(calibrated(b.build(), "ncnn"))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ([2, 3, 4, 4], "holds 2 samples"),
        (["batch"], "has 1 axes"),
        (["batch", 2, 3, 4, 5, 6], "has 6 axes"),
    ],
)
def test_shapes_that_no_blob_has_are_unsupported(shape: list[int | str], reason: str) -> None:
    b = ModelBuilder()
    b.output(b.node("Relu", b.input("x", shape)))
    with pytest.raises(ExportError, match=reason):
        written_from(planned_float(b.build()))


def test_inputs_of_other_types_and_constant_outputs_are_unsupported() -> None:
    b = ModelBuilder()
    b.output(b.node("Cast", b.input("x", ["batch", 3], onnx.TensorProto.DOUBLE), to=1))
    b.output(b.node("Identity", b.weight(3), out="fixed"))
    with pytest.raises(ExportError) as found:
        written_from(planned_float(b.build()))
    assert "'x': an input that is not float32" in str(found.value)
    assert "'fixed': an output that is a constant" in str(found.value)


def test_open_lengths_are_left_open_where_no_layer_asks() -> None:
    pytest.importorskip("ncnn")
    b = ModelBuilder()
    b.output(b.node("Relu", b.conv(b.input("x", ["batch", 3, "h", "w"]), 3, 4)))
    model = b.build()
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 3, 5, 6)).astype(np.float32)}
    written = written_from(calibrated(model, "ncnn"))
    assert layers(written)[0][4:] == ["x"]
    (found,) = outputs_of(written, feeds).values()
    assert found.shape == (1, 4, 5, 6)


def test_wide_sums_are_noted() -> None:
    b = ModelBuilder()
    weight = b.constant(np.ones((2, 40, 3, 3), np.float32))  # 360 * 127 * 127 > 2^31 / 576
    b.output(b.node("Conv", b.input("x", ["batch", 40, 6, 6]), weight, name="wide"))
    (note,) = written_from(calibrated(b.build(), "ncnn")).notes
    assert note.node == "wide"
    assert "3728270" in note.message
    assert "winograd" in note.remedy
    assert not written_from(calibrated(b.build(), "ncnn-winograd")).notes


def test_wide_sums_of_windows_without_winograd_are_not_noted() -> None:
    b = ModelBuilder()
    weight = b.constant(np.ones((2, 40, 5, 5), np.float32))
    b.output(b.node("Conv", b.input("x", ["batch", 40, 6, 6]), weight))
    assert not written_from(calibrated(b.build(), "ncnn")).notes


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-30, 3.4028235e38, 16777215.0])
def test_floats_of_the_param_keep_their_bits(number: float) -> None:
    exact = float(np.float32(number))
    _, _, text = Layer("Clip", "c", (), (), {0: exact}).line().rpartition("=")
    assert np.float32(text) == np.float32(exact)


def test_plan_without_scales_is_an_error() -> None:
    with pytest.raises(PlanError, match="calibrate"):
        written_from(planned(one_conv(), "ncnn"))


def test_format_has_three_files() -> None:
    plan = calibrated(one_conv(), "ncnn")
    exported = export(plan, ["ncnn"], Io.INT8)["ncnn"]
    assert isinstance(exported, WrittenFiles)
    assert list(exported.files) == ["model.int8.param", "model.int8.bin", "model.table"]
    table = exported.files["model.table"]
    assert exported.nbytes() == sum(map(len, exported.files.values())) - len(table)
