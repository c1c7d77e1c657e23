"""What fuzzing found, by hand and as small as it gets."""

from __future__ import annotations

import logging
import os
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact import quantize, verify
from intact.calibrate.observe.observer import find_layout
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.data.images.labels import csv_labels
from intact.data.preprocess import read_preprocess
from intact.data.signature import input_specs
from intact.data.sources import open_samples
from intact.errors import CalibrationError, IntactError, ModelError, PlanError
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.scales import read_scales
from intact.formats.tengine.tmfile.read import read_tmfile
from intact.formats.tflite.reader.decode import open_tflite as read_tflite
from intact.graph import normalize
from intact.plan import load_plan, save_plan
from intact.recipe.file import read_recipe
from intact.recipe.options import QuantizeCommand
from intact.results.folder import check_output
from intact.results.result import Result
from intact.search.logs.log import read_log
from intact.targets import load_target
from tests.fuzz.seeds import convolution, quantized_pairs
from tests.models import ModelBuilder, control_flow, random_inputs

Change = Callable[[onnx.ModelProto], object]


def _relu(**input_type: Any) -> onnx.ModelProto:
    b = ModelBuilder()
    b.node("Relu", b.input("x", input_type.pop("shape", ["n", 2])), out="y", name="relu")
    b.output("y")
    return b.build()


def no_data(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = [2**40]  # onnx-ir makes zeros of a tensor without data


def minus_one(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [-1]  # numpy takes it for "as many as there are"


def short_data(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = bytes(3)


def other_data(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_type = TensorProto.INT64
    tensor.float_data[:] = [1.0]


def long_location(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="a" * 300)


def attribute(name: str, **fields: Any) -> Change:
    return lambda model: model.graph.node[0].attribute.add(name=name, **fields)


def cast_to_nothing(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Cast", ["image"], ["c"], to=-(2**31)))
    model.graph.output.add(name="c")


def no_groups(model: onnx.ModelProto) -> None:
    node = model.graph.node[0]
    del node.attribute[:]
    node.op_type = "ConvTranspose"
    node.attribute.append(helper.make_attribute("group", 0))


def one_input(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[1:]


def unmade_in_branch(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for branch in node.attribute:
            if branch.HasField("g"):
                branch.g.output[0].name = "nobody"


def empty_constant(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Constant", [], ["c"], mode="x"))
    model.graph.node.append(helper.make_node("Neg", ["c"], ["d"]))
    model.graph.output.add(name="d")


@pytest.mark.parametrize(
    ("model", "change", "says"),
    [
        (convolution, no_data, "no data"),
        (convolution, minus_one, "dimensions"),
        (convolution, short_data, "malformed tensor"),
        (convolution, other_data, "malformed tensor"),
        (convolution, long_location, "is not a path"),
        (convolution, attribute("more", type=onnx.AttributeProto.UNDEFINED), "no type or no value"),
        (convolution, attribute("more", type=onnx.AttributeProto.GRAPH), "no type or no value"),
        (convolution, attribute("group", type=onnx.AttributeProto.FLOAT), "type FLOAT, not INT"),
        (
            convolution,
            attribute("group", type=onnx.AttributeProto.INT, ref_attr_name="of"),
            "attribute of a function",
        ),
        (convolution, no_groups, "has group 0"),
        (convolution, cast_to_nothing, "not an element type"),
        (convolution, one_input, "requires 2 to 3"),
        (convolution, lambda m: m.graph.node[0].output.append("more"), "has 2 outputs"),
        (control_flow, unmade_in_branch, "no node produces"),
        (convolution, empty_constant, "no value"),
    ],
)
def test_models(
    model: Callable[[], onnx.ModelProto], change: Change, says: str, tmp_path: Path
) -> None:
    proto = model()
    change(proto)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=says):
        normalize(path)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(convolution().SerializeToString().replace(b"logits", b"log\xffts"))
    with pytest.raises(ModelError, match="not UTF-8"):
        normalize(path)


def test_what_a_library_logs_is_not_printed_beside_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = convolution()
    model.graph.node[-1].input[0] = "nobody"
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError, match="'nobody'"):
        normalize(model)
    assert not caplog.records


def test_a_function_with_an_attribute_of_its_caller_has_a_hash() -> None:
    b = ModelBuilder()
    b.domains["own"] = 1
    body = helper.make_node("LeakyRelu", ["x"], ["y"])
    body.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    imports = [helper.make_opsetid("", 17)]
    b.functions.append(
        helper.make_function("own", "Leaky", ["x"], ["y"], [body], imports, ["slope"])
    )
    b.node("Leaky", b.input("x", ["n", 2]), domain="own", out="y", slope=0.1)
    b.output("y")
    model = b.build()
    first = normalize(model).hash
    model.functions[0].node[0].attribute[0].ref_attr_name = "other"
    assert normalize(model).hash != first


@pytest.mark.parametrize("shape", [[0, 2], [-5, 2], ["n", -5]])
def test_inputs_that_no_samples_fit(shape: list[Any]) -> None:
    with pytest.raises(ModelError, match="the impossible shape"):
        input_specs(normalize(_relu(shape=shape)))


def test_an_input_without_an_element_type() -> None:
    model = _relu()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    with pytest.raises(ModelError, match="takes"):
        input_specs(normalize(model))


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31m", "a\u2028b", "x" * 5000, "\ud800"])
def test_whatever_a_name_holds_the_message_is_one_line(text: str) -> None:
    message = str(IntactError(f"node {text} is wrong", remedy="rename it"))
    assert message.isprintable()
    assert message.startswith("node ")
    assert message.endswith("; rename it")
    assert len(message) < 1000


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result's folder."""
    folder = tmp_path_factory.mktemp("saved") / "out"
    quantize(convolution(), random_inputs(convolution(), batch=4), output=folder, threads=1)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A result's folder to damage."""
    return Path(shutil.copytree(saved, tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        ("zeros", np.zeros((9, 9), np.int64), "zeros is int64"),
        ("zeros", np.zeros(3, np.int64), "zeros is int64"),
        ("minimum", np.array(["a"]), "minimum is <U1"),
        ("names", np.array([["a"]]), "names is <U1"),
        ("bin_ends", np.array([5]), "bin_ends is int64"),
        ("version", np.array("x"), "invalid literal"),
        ("counts", None, "counts"),
    ],
)
def test_statistics(folder: Path, name: str, array: Any, says: str) -> None:
    path = folder / "statistics.npz"
    with np.load(path) as file:
        arrays = dict(file)
    del arrays[name]
    np.savez(path, **arrays, **({} if array is None else {name: array}))
    with pytest.raises(CalibrationError, match=says):
        Statistics.load(path)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("bin_ends", lambda ends: ends[::-1], "overlap"),
        ("bin_ends", lambda ends: ends + 1000, "overlap"),
        ("names", lambda names: np.repeat(names[:1], len(names)), "overlap"),
        ("counts", lambda counts: -counts.astype(np.int64), "counts below 0"),
        ("minimum", lambda numbers: numbers * np.nan, "no number"),
    ],
)
def test_statistics_that_contradict_themselves(
    folder: Path, name: str, change: Callable[[Any], Any], says: str
) -> None:
    path = folder / "statistics.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **(arrays | {name: change(arrays[name])}))
    with pytest.raises(CalibrationError, match=says):
        Statistics.load(path)


def test_statistics_that_ask_for_memory(folder: Path) -> None:
    path = folder / "statistics.npz"
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,), }\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version.npy", array)
    with pytest.raises(CalibrationError, match="1099511627776"):
        Statistics.load(path)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".npz", "nul\0", "nul\0.npz"])
@pytest.mark.parametrize(
    "read",
    [
        normalize,
        lambda name: open_samples(name, normalize(convolution())),
        load_target,
        Result.load,
        lambda name: check_output(Path(name)),
        lambda name: Statistics.load(Path(name)),
        read_preprocess,
        read_scales,
        lambda name: csv_labels(Path(name), []),
    ],
)
def test_names_that_no_file_can_have(read: Callable[[str], object], name: str) -> None:
    with pytest.raises(IntactError):
        read(name)


@pytest.mark.parametrize(
    "data",
    [
        b'{"version": "0.6.1", "activation_encodings": {"a\xff": []}}',
        b'{"version": "2.0.0", "encodings": [{"name": "a\xff", "output_dtype": "uint8"}]}',
        b'{"tensorrt": {"blob_range": {"\xec": 1}}}',
        b'{"tensorrt\xff": {}}',
    ],
)
def test_tables_in_json_that_are_not_utf_8(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(data)
    with pytest.raises(IntactError):  # msgspec raises UnicodeDecodeError, none of its own errors
        read_scales(path)


def test_integers_with_a_header_that_does_not_end(tmp_path: Path) -> None:
    plan = read_qdq(quantized_pairs(), load_target("onnxruntime"))
    save_plan(plan, tmp_path / "plan.json")
    header = b"{'descr': '|u1', 'shape': (((1,\n"
    with zipfile.ZipFile(tmp_path / "weights.npz", "w") as archive:
        data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        archive.writestr("ends.npy", data)
    with pytest.raises(PlanError, match="cannot be read as integers"):
        load_plan(tmp_path / "plan.json", plan.graph)


def test_a_plan_with_text_that_is_not_utf8(folder: Path) -> None:
    path = folder / "plan.json"
    path.write_bytes(path.read_bytes().replace(b'"reason":"', b'"reason":"\xff', 1))
    with pytest.raises(PlanError, match="cannot be read as a plan"):
        load_plan(path, normalize(convolution()))


def test_a_deployed_model_with_other_outputs(folder: Path) -> None:
    path = folder / "model.int8.onnx"
    model = onnx.load(path)
    model.graph.output.add(name=model.graph.node[0].output[0])
    onnx.save(model, path)
    with pytest.raises(PlanError, match="its outputs are"):
        verify(folder, samples=2)


def test_a_deployed_model_whose_nodes_are_in_another_order_is_verified(folder: Path) -> None:
    path = folder / "model.int8.onnx"
    model = onnx.load(path)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)
    assert verify(folder, samples=2).outputs_sqnr_db["logits"] > 0


def test_one_long_name_does_not_lengthen_the_others(tmp_path: Path) -> None:
    names = ["x" * (1 << 20), *(f"tensor{number}" for number in range(400))]
    statistics = Statistics("hash", {name: TensorStatistics() for name in names})
    tracemalloc.start()
    path = tmp_path / "statistics.npz"
    path.write_bytes(statistics.to_bytes())
    found = Statistics.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(found.tensors) == sorted(names)
    assert found.hash() == statistics.hash()
    assert peak < 500 << 20  # padded, the names alone are 1.6 GiB


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
@pytest.mark.parametrize(
    "read",
    [
        normalize,
        lambda name: open_samples(name, normalize(convolution())),
        load_target,
        lambda name: Statistics.load(Path(name)),
        lambda name: load_plan(Path(name), normalize(convolution())),
        read_preprocess,
        read_scales,
        read_tflite,
        lambda name: read_tmfile(Path(name)),
        lambda name: list(read_log(name)),
        lambda name: csv_labels(Path(name), []),
        lambda name: read_recipe(name, "quantize", QuantizeCommand),
    ],
)
def test_files_that_never_end(
    read: Callable[[str], object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(IntactError):
        read(name)


@pytest.mark.parametrize(
    "attributes", [{"pads": [1]}, {"pads": [1, 1, 1]}, {"strides": [1, 1, 1]}, {"dilations": [1]}]
)
def test_windows_of_several_ranks(attributes: dict[str, Any]) -> None:
    b = ModelBuilder()
    b.node("MaxPool", b.input("x", ["n", 2, 4, 4]), out="y", kernel_shape=[2, 2], **attributes)
    b.output("y")
    with pytest.raises(ModelError, match="attributes for different numbers of axes: "):
        normalize(b.build())


@pytest.mark.parametrize("attributes", [{"dilations": [7, 7]}, {"dilations": [1, 2**23]}])
def test_windows_larger_than_what_they_read(attributes: dict[str, Any]) -> None:
    b = ModelBuilder()
    b.node("Conv", b.input("x", ["n", 2, 4, 4]), b.weight(2, 2, 3, 3), out="y", **attributes)
    b.output("y")
    with pytest.raises(ModelError, match="its window or its pads do not fit"):
        normalize(b.build())


def test_a_size_that_is_declared_as_minus_one_is_unknown() -> None:
    b = ModelBuilder()
    b.node("Other", b.input("x", ["n", 2]), out="between", domain="own")
    b.domains["own"] = 1
    b.node("Relu", "between", out="y")
    b.output("y", [-1, 2])
    model = b.build()
    model.graph.value_info.append(helper.make_tensor_value_info("between", 1, [-1, 2]))
    assert normalize(model).value("between").shape is None


def test_a_tensor_with_more_axes_for_two_samples_than_for_one() -> None:
    b = ModelBuilder()
    b.node("Squeeze", b.input("x", ["n", 2, 1]), out="y")
    b.output("y")

    def run(feeds: dict[str, Any], _: object) -> list[Any]:
        return [np.squeeze(feeds["x"])]

    with pytest.raises(
        CalibrationError, match=r"'y' has the shape \[2\] for one sample and \[2, 2"
    ):
        find_layout(normalize(b.build()), ["y"], run)
