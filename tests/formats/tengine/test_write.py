"""Tengine's tables of scales, byte for byte and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.config import JsonValue, QuantState
from intact.errors import ExportError, PlanError
from intact.formats.base.format import Io, WrittenFiles
from intact.formats.tengine.format import EFFECTIVE_FILE, MODEL_FILE, TENGINE
from intact.formats.tengine.tables import (
    BIASES_FILE,
    WEIGHTS_FILE,
    parse_table,
    table_name,
    write_effective_table,
    write_tables,
)
from intact.plan import (
    Overrides,
    QuantizedGraph,
    TensorEnd,
    load_plan,
    quantization_points,
    save_plan,
)
from intact.plan.own_scales import own_params
from tests.models import MODELS, ModelBuilder, depthwise_net, random_inputs, residual_net
from tests.plans import calibrate, calibrated, files_of, planned

RUNNABLE = [name for name in MODELS if name not in ("clutter", "odd_names", "control_flow")]


def two_channels(names: tuple[str, ...] = ("data", "conv1", "relu1", "prob")) -> onnx.ModelProto:
    """A model of two weights, so that every figure of its tables is found by hand."""
    b = ModelBuilder()
    x = b.input(names[0], ["batch", 1, 2, 2])
    weight = b.constant(np.array([[[[127.0]]], [[[-0.762]]]], np.float32), "weight1")
    bias = b.constant(np.array([1.0, -2.0], np.float32), "bias1")
    x = b.node("Conv", x, weight, bias, name="c", out=names[1])
    x = b.node("Relu", x, name="r", out=names[2])
    x = b.node("Softmax", b.node("Flatten", x, name="f", out="flat"), out=names[3], name="s")
    b.output(names[3], ["batch", 8])
    return b.build()


def two_channel_plan(target: str = "tengine", method: str = "minmax") -> QuantizedGraph:
    feeds = {"data": np.array([[[[-0.5, 0.25], [0.1, 0.0]]]], np.float32)}
    return calibrate(planned(two_channels(), target), feeds, method)


def test_byte_for_byte() -> None:
    tables, notes = write_tables(two_channel_plan())
    # 0.5 / 127 = 0.00393700..., the convolution's extremes -0.5 * 127 + 1 = -62.5 and 32.75 by 127
    # are 0.49212598... and 0.25787401...; Softmax 1 / 127.
    assert tables["table_minmax.scale"] == (
        b"data 0.003937 0\nconv1 0.492126 0\nrelu1 0.257874 0\nflat 0.257874 0\nprob 0.007874 0\n"
    )
    # 127 / 127 and 0.762 / 127, then times 0.003937.
    assert tables[WEIGHTS_FILE] == b"weight1 1.00000000 0.00600000 \n"
    assert tables[BIASES_FILE] == b"bias1 0.00393700 0.00002362 \n"
    assert notes == ()
    # What the convolution computes with is the scale that Flatten passes back through Relu.
    effective, notes = write_effective_table(two_channel_plan())
    assert effective == tables["table_minmax.scale"].replace(b"conv1 0.492126", b"conv1 0.257874")
    assert notes == ()


def test_byte_for_byte_in_uint8() -> None:
    tables, _ = write_tables(two_channel_plan("tengine-u8"))
    # 0.75 / 255 and int(0.5 / 0.0029411765) = 170 (of 170.0); 95.25 / 255 and
    # int(62.5 / 0.37352943) = 167 (of 167.3); 32.75 / 255.
    assert tables["table_minmax.scale"] == (
        b"data 0.002941 170\nconv1 0.373529 167\nrelu1 0.128431 0\nflat 0.128431 0\n"
        b"prob 0.003922 0\n"
    )
    assert tables[WEIGHTS_FILE] == b"weight1 0.50102746 \n"


@pytest.mark.parametrize("method", ["minmax", "kl", "aciq", "mse"])
def test_the_name_is_that_of_the_method(method: str) -> None:
    plan = two_channel_plan(method=method)
    assert table_name(plan) == f"table_{method}.scale"
    assert f"table_{method}.scale" in TENGINE.writer.files


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["tengine", "tengine-u8"])
@pytest.mark.parametrize("name", RUNNABLE)
def test_what_is_written_is_read_back(name: str, target: str) -> None:
    plan = calibrated(MODELS[name].build(17), target)
    tables, _ = write_tables(plan)
    written = tables[table_name(plan)]
    if not written:
        return
    own = parse_table(written, "table")
    for value in plan.graph.values:
        if str(value.name) in own:
            params = own_params(plan, value)
            assert params is not None
            assert own[str(value.name)].scale == params.scale
    table = parse_table(write_effective_table(plan)[0], "table")
    seen = 0
    for point in quantization_points(plan):
        params, tensor = point.config.params, str(point.value.name)
        if point.is_constant or params is None:
            continue
        given = table.scales[tensor]
        assert given.scale == params.scale, tensor
        if any(scale.zero_point for scale in table.scales.values()):
            assert given.zero_point == params.zero_point
        seen += 1
    assert seen
    for file in (WEIGHTS_FILE, BIASES_FILE):
        if tables[file]:
            parse_table(tables[file], file)


def test_every_tensor_between_has_a_line() -> None:
    plan = calibrated(depthwise_net(), "tengine")
    names = [
        line.split()[0] for line in write_tables(plan)[0]["table_minmax.scale"].split(b"\n")[:-1]
    ]
    computed = [str(value.name) for node in plan.graph.nodes for value in node.outputs]
    assert [name.decode() for name in names] == ["image", *computed]
    hidden = [c for c in plan.configs.values() if c.state is QuantState.OVERLAPPED]
    assert hidden


def test_a_table_as_calibration_gives_the_same_plan(tmp_path: Path) -> None:
    model, path = residual_net(), tmp_path / "model.onnx"
    onnx.save(model, path)
    feeds = random_inputs(model, batch=16)
    first = intact.quantize(path, data=feeds, target="tengine")
    first.save(tmp_path / "first")
    table = tmp_path / "first" / "table_minmax.scale"
    again = intact.quantize(path, target="tengine", scales=table)
    for end, config in first.plan.configs.items():
        other = again.plan.configs[end]
        assert config.state is other.state
        assert (config.params is None) == (other.params is None)
        if config.params is not None and other.params is not None:
            assert np.array_equal(config.params.scale, other.params.scale)
            assert np.array_equal(config.params.zero_point, other.params.zero_point)
    again.save(tmp_path / "again")
    written = (tmp_path / "again" / "table_given.scale").read_bytes()
    assert written == table.read_bytes()
    for name in (WEIGHTS_FILE, BIASES_FILE, MODEL_FILE):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    assert again.plan.notes == first.plan.notes == ()  # what is only kept is not noted as unused


def test_both_tables_as_calibration_give_the_same_model(tmp_path: Path) -> None:
    model = residual_net()
    formats, feeds = ("tengine", "tengine_effective"), random_inputs(model, batch=16)
    first = intact.quantize(model, feeds, target="tengine", formats=formats)
    first.save(tmp_path / "first")
    loaded = intact.load_result(tmp_path / "first")
    assert files_of(loaded, "tengine_effective") == files_of(first, "tengine_effective")
    tables = [tmp_path / "first" / name for name in ("table_minmax.scale", EFFECTIVE_FILE)]
    assert tables[0].read_bytes() != tables[1].read_bytes()
    for table in tables:
        again = intact.quantize(model, target="tengine", scales=table, formats=formats)
        assert files_of(again, "tengine")[MODEL_FILE] == files_of(first, "tengine")[MODEL_FILE]
        assert files_of(again, "tengine_effective") == files_of(first, "tengine_effective")
        assert files_of(again, "tengine")["table_given.scale"] == table.read_bytes()


def test_a_plan_that_is_saved_keeps_own_scales(tmp_path: Path) -> None:
    plan = two_channel_plan()
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", plan.graph)
    assert write_tables(again) == write_tables(plan)


def test_a_result_is_read_back(tmp_path: Path) -> None:
    plan = two_channel_plan()
    written = TENGINE.writer.write(plan, Io.INT8)
    assert isinstance(written, WrittenFiles)
    written.save(tmp_path)
    read = TENGINE.writer.read(tmp_path, plan)
    assert isinstance(read, WrittenFiles)
    assert read.files == written.files
    assert read.nbytes() == written.nbytes() == len(written.files[MODEL_FILE])


def test_a_graph_that_is_no_tmfile_still_has_its_tables(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Tanh", b.conv(b.input("image", ["batch", 2, 4, 4]), 2, 2), name="tanh", out="t")
    b.node("Relu", b.conv(x, 2, 2), out="y", name="relu")
    b.output("y")
    plan = calibrated(b.build(), "tengine")
    written = TENGINE.writer.write(plan, Io.INT8)
    assert isinstance(written, WrittenFiles)
    assert MODEL_FILE not in written.files
    messages = [note.message for note in written.notes]
    assert any(MODEL_FILE in message and "tanh" in message for message in messages)
    written.save(tmp_path)
    read = TENGINE.writer.read(tmp_path, plan)
    assert isinstance(read, WrittenFiles)
    assert read.files == written.files


def test_all_that_cannot_be_said_is_listed() -> None:
    model = two_channels(("my data", "conv1", "relu 1", "prob"))
    overrides = Overrides(bits={"c.input[1]": 4})
    feeds = {"my data": np.ones((2, 1, 2, 2), np.float32)}
    plan = calibrate(planned(model, "tengine", overrides), feeds)
    with pytest.raises(ExportError) as caught:
        write_tables(plan)
    text = str(caught.value)
    assert "'my data', 'relu 1': its name has a space" in text
    assert "'weight1': it has 4 bits" in text


def test_several_ways_are_refused() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 4, 4])
    for name in ("one", "two"):
        b.node("Conv", x, b.weight(2, 2, 1, 1), name=name, out=name)
        b.output(name)
    model = b.build()
    plan = calibrated(model, "tengine", Overrides(bits={"two.input[0]": 6}))
    with pytest.raises(ExportError, match="'image': it is quantized in several ways"):
        write_tables(plan)


def test_what_other_targets_lose_is_noted() -> None:
    plan = calibrated(residual_net(), "tensorrt")
    _, notes = write_tables(plan)
    assert any("six decimals" in note.message for note in notes)
    _, notes = write_tables(calibrated(residual_net(), "onnxruntime"))
    assert any("six decimals" in note.message for note in notes)


def plan_of_signs(target: str, *, negative: bool) -> QuantizedGraph:
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 4, 4])
    b.node("Relu", b.conv(b.node("Relu", b.conv(x, 2, 2)), 2, 2), out="y")
    b.output("y")
    drawn = np.random.default_rng(0).normal(size=(4, 2, 4, 4)).astype(np.float32)
    return calibrate(planned(b.build(), target), {"image": drawn if negative else np.abs(drawn)})


@pytest.mark.parametrize("target", ["tflite", "onnxruntime", "openvino"])
def test_int8_with_zero_points_and_mixed_signs_are_a_table_of_uint8(target: str) -> None:
    plan = plan_of_signs(target, negative=True)
    table = parse_table(write_tables(plan)[0]["table_minmax.scale"], "table")
    points = {str(p.value.name): p for p in quantization_points(plan) if not p.is_constant}
    assert {"image"} <= points.keys() <= table.scales.keys()
    for name, point in points.items():
        params, given = point.config.params, table.scales[name]
        assert params is not None
        assert not given.signed
        zero = params.zero_point + (128 if point.config.quant_min < 0 else 0)
        assert given.zero_point == zero, name


def test_a_table_of_uint8_without_zero_points_is_noted() -> None:
    tables, _ = write_tables(plan_of_signs("tengine-u8", negative=False))
    assert tables["table_minmax.scale"].count(b" 0\n") == 3  # and before Relu
    effective, notes = write_effective_table(plan_of_signs("tengine-u8", negative=False))
    assert effective.count(b" 0\n") == 5
    assert any("all zero points are 0" in note.message for note in notes)
    for target, negative in (("tengine-u8", True), ("tengine", False)):
        assert write_tables(plan_of_signs(target, negative=negative))[1] == ()


def test_a_model_of_another_target_is_noted() -> None:
    notes = {
        name: TENGINE.writer.write(plan_of_signs(name, negative=True), Io.INT8).notes
        for name in TWO
    }
    assert notes["tengine"] == ()
    assert any("as target integer-pow2 does" in note.message for note in notes["integer-pow2"])


TWO = ("tengine", "integer-pow2")


@pytest.mark.parametrize("kept", ["a", [1.0], [-1.0, 0], [0.5, 1 << 80], [0.5, "0"], {}])
def test_an_own_scale_that_is_none_is_refused(kept: JsonValue) -> None:
    plan = two_channel_plan()
    plan.configs[TensorEnd.output("c")].detail["own"] = kept
    with pytest.raises(PlanError, match=r"^c\.output\[0\]: .*quantize again$"):
        write_tables(plan)
