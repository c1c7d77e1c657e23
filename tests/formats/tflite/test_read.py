"""Plans that are read from ``.tflite`` files: graph, configs, names, and what can be done on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import intact
from intact.config import QuantState, Rounding
from intact.engines.integer.engine import IntegerEngine
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import DataError, ModelError
from intact.formats.tflite.read import assemble, read_tflite, read_tflite_model
from intact.formats.tflite.reader.decode import open_tflite
from intact.formats.tflite.reader.operators import build_model
from intact.formats.tflite.run import TfliteRuntime
from intact.graph import Graph, save_model
from intact.plan import QuantizedGraph, TensorEnd, load_plan, plan_to_json, save_plan
from intact.plan.build import complete
from intact.plan.inspection import inspect_plan
from intact.program import Array
from intact.program.lower import lower
from intact.results.execution import save_arrays
from intact.targets import load_target
from tests.formats.tflite.read_cases import CASES, build
from tests.formats.tflite.read_layers import RELU6, conv
from tests.formats.tflite.small_files import FileBuilder

TARGET = load_target("tflite")


def _read(name: str) -> QuantizedGraph:
    return read_tflite(build(name), TARGET)


def _kinds(plan: QuantizedGraph) -> Counter[str]:
    return Counter(node.op_type for node in plan.graph.nodes)


def _ports(plan: QuantizedGraph) -> list[tuple[str, str]]:
    values = (*plan.graph.inputs, *plan.graph.outputs)
    return [(str(value.name), str(value.shape)) for value in values]


@pytest.mark.parametrize(
    ("name", "transposes"),
    [
        ("mobile", 1),  # behind the input
        ("squeeze_excite", 2),  # and before the output, an image
        ("squeeze_excite_flat", 2),
        ("pools", 2),
        ("conv_1d", 2),
        ("attention", 2),  # adj_y, and the file's own
        ("layer_norm", 0),
        ("computed_shape", 2),  # before the flatten
        ("channels_moved", 0),  # the file's own say where the channels lie
    ],
)
def test_channels_lie_first_with_few_transposes(name: str, transposes: int) -> None:
    assert _kinds(_read(name))["Transpose"] == transposes


def test_inputs_and_outputs_have_the_names_and_layout_of_the_file() -> None:
    assert _ports(_read("mobile")) == [("t0", "[batch,9,9,3]"), ("t19", "[batch,5]")]
    assert _ports(_read("float_ports")) == [("t0", "[batch,6,6,2]"), ("t5", "[batch,3,3,4]")]


def test_nodes_are_called_like_their_tensor() -> None:
    names = [str(node.name) for node in _read("mobile").graph.nodes]
    assert names[:3] == ["t0/channels_first", "t3", "t3/clip"]
    assert len(set(names)) == len(names)


def test_operators_stand_for_chains_of_nodes() -> None:
    kinds = _kinds(_read("layer_norm"))
    assert kinds == {"ReduceMean": 2, "Sub": 2, "Mul": 3, "Add": 1, "Sqrt": 1, "Reciprocal": 1}


def test_configs_have_the_parameters_of_the_file() -> None:
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05, zero=3, name="image")
    data = b.build(conv(b, x, (1, 4, 4, 3), fused=RELU6, scale=0.02, zero=-128))
    plan = read_tflite(data, TARGET)
    image = plan.configs[TensorEnd.input("image/channels_first", 0)]
    assert (image.state, image.rounding) == (QuantState.ACTIVATED, Rounding.HALF_AWAY_FROM_ZERO)
    assert image.params is not None
    assert image.params.scale == np.float32(0.05)
    assert image.params.zero_point == 3
    assert plan.configs[TensorEnd.output("image/channels_first")].dominator is image
    node = next(node for node in plan.graph.nodes if node.op_type == "Conv")
    name = str(node.name)
    states = [plan.input_config(node, slot).state for slot in range(3)]
    assert states == [QuantState.OVERLAPPED, QuantState.BAKED, QuantState.PASSIVE_BAKED]
    inner, last = plan.output_config(node), plan.configs[TensorEnd.output(f"{name}/clip")]
    assert inner.state is QuantState.OVERLAPPED
    assert inner.dominator is last
    assert last.state is QuantState.ACTIVATED
    weight = plan.baked[TensorEnd.input(name, 1)]
    stored = np.frombuffer(bytes(b.model.buffers[1].data), np.int8).reshape(3, 3, 3, 2)
    np.testing.assert_array_equal(weight, stored.transpose(0, 3, 1, 2))
    assert plan.input_config(node, 1).granularity.axis == 0
    bias = plan.baked[TensorEnd.input(name, 2)]
    np.testing.assert_array_equal(bias, np.frombuffer(bytes(b.model.buffers[2].data), np.int32))
    assert all(config.detail.get("fixed") for config in (image, last))
    assert plan.keeps_runtime
    assert plan.provenance.read_from == "tflite"


def test_the_bias_counts_in_products_of_scales_whatever_the_file_says_of_it() -> None:
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05)
    out = conv(b, x, (1, 4, 4, 3))
    b.graph.tensors[2].quantization = None
    plan = read_tflite(b.build(out), TARGET)
    node = next(node for node in plan.graph.nodes if node.op_type == "Conv")
    scale, weights = plan.input_config(node, 2).scale, plan.input_config(node, 1).scale
    assert scale is not None
    assert weights is not None
    expected = (np.float64(np.float32(0.05)) * weights.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(scale, expected)


def test_floats_stay_float() -> None:
    plan = _read("float_island")
    sine = next(node for node in plan.graph.nodes if node.op_type == "Sin")
    assert plan.input_config(sine, 0).state is QuantState.FP32
    assert plan.output_config(sine).state is QuantState.FP32
    assert not plan.is_quantized(sine)
    assert "float" in plan.decisions[str(sine.name)].reason


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    plan = _read(name)
    save_model(plan.graph.model, tmp_path / "model.onnx")
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", Graph.load(tmp_path / "model.onnx"))
    assert plan_to_json(again) == plan_to_json(plan)
    assert again.baked.keys() == plan.baked.keys()
    for end, codes in plan.baked.items():
        np.testing.assert_array_equal(again.baked[end], codes)


@pytest.mark.parametrize("name", ["attention", "parts", "pools"])
def test_the_simulation_is_close_to_the_integers(name: str) -> None:
    plan = _read(name)
    value = plan.graph.inputs[0]
    assert value.shape is not None
    shape = [2, *(size for size in value.shape if isinstance(size, int))]
    feeds = {str(value.name): np.random.default_rng(0).uniform(-3, 3, shape).astype(np.float32)}
    simulated, _ = Simulator(plan, threads=1).run(feeds)
    exact = IntegerEngine(lower(plan)).run(feeds).outputs
    for output in plan.graph.outputs:
        config = plan.producer_config(output)
        assert config is not None
        assert config.scale is not None
        steps = np.abs(simulated[str(output.name)] - exact[str(output.name)]) / config.scale
        assert steps.mean() < 0.5
        assert steps.max() < 4


def test_what_is_float_can_be_completed() -> None:
    completed = complete(_read("float_island"), load_target("onnxruntime"))
    assert sum(d.quantized for d in completed.decisions.values()) >= 3
    conv_end = next(end for end in completed.baked)
    assert completed.configs[conv_end].state is QuantState.BAKED


def test_it_can_be_inspected() -> None:
    inspection = inspect_plan(_read("mobile"))
    assert inspection is not None


def test_an_open_shape_is_the_batch_alone() -> None:
    plan = _read("embedding")
    assert _ports(plan)[0] == ("t0", "[batch,5]")


def test_tensors_are_found_by_their_number() -> None:
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05, name="image")
    middle = conv(b, x, (1, 4, 4, 3))
    model = read_tflite_model(b.build(conv(b, middle, (1, 4, 4, 2))), TARGET)
    assert model.inputs == (x,)
    assert model.tensors[x].permutation is None
    assert model.tensors[middle].permutation == (0, 2, 3, 1)
    assert model.tensors[middle].element == "int8"
    assert model.plan.graph.value(model.tensors[middle].value).shape is not None


def test_a_signature_may_call_one_output_twice() -> None:
    b = FileBuilder()
    x = b.input((1, 4), name="twin")
    out = b.op("RELU", [x], b.tensor((1, 4), name="y"))
    b.sign({"image": x}, {"scores": out, "twin": out})
    plan = read_tflite(b.build(out, out), TARGET)
    assert [value.name for value in plan.graph.outputs] == ["scores", "twin"]


def test_a_constant_output_keeps_its_shape() -> None:
    b = FileBuilder()
    x, kept = b.input((1, 4)), b.codes((1, 4))
    plan = read_tflite(b.build(b.op("RELU", [x], b.tensor((1, 4))), kept), TARGET)
    _, found = Simulator(plan).run({"t0": np.zeros((1, 4), np.float32)})[0].values()
    assert found.shape == (1, 4)
    assert list(plan.graph.inputs[0].shape or ()) == [1, 4]  # more samples would not fit it


def test_a_signature_names_the_ports() -> None:
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05)
    out = conv(b, x, (1, 4, 4, 3))
    b.sign({"image": x}, {"scores": out})
    model = read_tflite_model(b.build(out), TARGET)
    signature, graph = model.file.signature, model.plan.graph
    assert [value.name for value in graph.inputs] == ["image"]
    assert [value.name for value in graph.outputs] == ["scores"]
    assert (signature.inputs, signature.outputs) == ({"image": x}, {"scores": out})
    b.sign({"image": 99}, {})
    with pytest.raises(ModelError, match="its signature calls tensor 99"):
        read_tflite(b.build(out), TARGET)


def signed() -> bytes:
    """A file whose signature has other names than its tensors, as converters write them."""
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05, name="serving_default_image:0")
    out = b.op("TANH", [x], b.tensor((1, 4, 4, 2), scale=1 / 128, name="StatefulPartitionedCall:0"))
    b.sign({"image": x}, {"scores": out})
    return b.build(out)


IMAGES = np.random.default_rng(0).normal(size=(3, 4, 4, 2)).astype(np.float32)


def test_tensors_of_ports_keep_their_names_beside_those_of_the_signature(tmp_path: Path) -> None:
    path = tmp_path / "signed.tflite"
    path.write_bytes(signed())
    wanted = {"serving_default_image:0": "image", "StatefulPartitionedCall:0": "scores"}
    assert dict(read_tflite(path, TARGET).graph.aliases) == wanted
    first, second = (
        intact.execute(path, {key: IMAGES}, observe=[seen])
        for key, seen in (("image", "scores"), ("serving_default_image:0", tuple(wanted)[1]))
    )
    for found, other in ((first.outputs, second.outputs), (first.tensors, second.tensors)):
        np.testing.assert_array_equal(found["scores"], other["scores"])
    with pytest.raises(DataError, match="one tensor"):
        intact.execute(path, dict.fromkeys(("image", "serving_default_image:0"), IMAGES))


def test_a_result_of_it_takes_either_name(tmp_path: Path) -> None:
    path, folder = tmp_path / "signed.tflite", tmp_path / "out"
    path.write_bytes(signed())
    save_arrays(tmp_path / "data.npz", {"serving_default_image:0": IMAGES})
    intact.read_quantized(path, tmp_path / "data.npz", output=folder)
    found = intact.execute(folder, tmp_path / "data.npz").outputs["scores"]
    recorded = {"StatefulPartitionedCall:0": found}
    compared = intact.verify(folder, tmp_path / "data.npz", observed=recorded)
    assert sum(layer.mismatches for layer in compared.layers) == 0
    assert sum(layer.values for layer in compared.layers) == IMAGES.size


def test_an_interpreter_takes_either_name() -> None:
    runtime = TfliteRuntime(signed())
    codes = np.zeros((1, 4, 4, 2), np.int8)
    ((one, _), (other, _)) = (
        runtime.run({key: codes}) for key in ("image", "serving_default_image:0")
    )
    np.testing.assert_array_equal(one["scores"], other["scores"])


def test_equal_and_empty_names_become_unique() -> None:
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05, name="same")
    out = conv(b, x, (1, 4, 4, 3))
    for tensor in b.graph.tensors[1:]:
        tensor.name = "same"
    b.graph.tensors[1].name = ""
    names = _ports(read_tflite(b.build(out), TARGET))
    assert [name for name, _ in names] == ["same", "same_2"]


def test_one_output_given_twice_is_copied() -> None:
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05)
    out = conv(b, x, (1, 4, 4, 3))
    plan = read_tflite(b.build(out, out, x), TARGET)
    assert len({value.name for value in plan.graph.outputs}) == 3
    feeds: dict[str, Array] = {"t0": np.ones((1, 4, 4, 2), np.float32)}
    first, second, third = IntegerEngine(lower(plan)).run(feeds).outputs.values()
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(third, 1, atol=0.03)


def test_large_files_keep_data_behind_their_tables() -> None:
    b = FileBuilder()
    x = b.input((1, 4, 4, 2), scale=0.05)
    out = conv(b, x, (1, 4, 4, 3))
    whole = b.build(out)
    stored = bytes(b.model.buffers[1].data)
    b.model.buffers[1].data = None
    b.model.buffers[1].offset, b.model.buffers[1].size = 1 << 20, len(stored)
    short = b.build(out)
    b.model.buffers[1].offset = len(short)
    plan = read_tflite(b.build(out) + stored, TARGET)
    assert plan.graph.hash == read_tflite(whole, TARGET).graph.hash


def test_what_constants_alone_give_has_no_batch() -> None:
    b = FileBuilder()
    x, sizes = b.input((1, 2, 3), "float32"), np.array([[[-1.5], [2.0]]])
    number = b.tensor((1, 2, 1), "float32", data=sizes)
    size = b.op("ABS", [number], b.tensor((1, 2, 1), "float32"), "AbsOptions")
    out = b.op("MUL", [x, size], b.tensor((1, 2, 3), "float32"), "MulOptions")
    graph = assemble(build_model(open_tflite(b.build(out))))
    assert [str(value.shape) for value in graph.outputs] == ["[batch,2,3]"]
    feeds = {"t0": np.arange(18, dtype=np.float32).reshape(3, 2, 3)}
    (found,) = FloatModel(graph).run(feeds).values()
    np.testing.assert_array_equal(found, feeds["t0"] * np.abs(sizes))
