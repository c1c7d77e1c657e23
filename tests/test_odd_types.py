"""Models with types that few have: refused in a line, or taken as they are; and odd Python data."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact
from intact.errors import IntactError, ModelError, TargetError
from intact.graph import normalize
from intact.results.execution import save_arrays
from intact.targets import load_target, target_from_json, target_to_json

_TYPES = [name for name, _ in TensorProto.DataType.items() if name != "UNDEFINED"]
_BITS = {"64": 64, "128": 128, "32": 32, "16": 16, "DOUBLE": 64, "FLOAT": 32}
DATA = {"x": np.random.default_rng(0).normal(size=(4, 3, 4, 4)).astype(np.float32)}


def network(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto],
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """A convolution from x to y, and more."""
    weight = np.random.default_rng(1).normal(size=(4, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"]), *nodes],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 4, 4]), *outputs],
        [numpy_helper.from_array(weight, "w"), *constants],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def constant(name: str) -> TensorProto:
    """Two elements of a type."""
    tensor = TensorProto(name="k", data_type=TensorProto.DataType.Value(name), dims=[2])
    if name == "STRING":
        tensor.string_data.extend([b"a", b"long"])
        return tensor
    bits = next((_BITS[part] for part in _BITS if name.endswith(part)), 8)
    tensor.raw_data = bytes([1] * (1 if name[-1] in "24" and bits == 8 else 2 * bits // 8))
    return tensor


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", _TYPES)
def test_a_constant_of_any_type_is_taken_or_refused(name: str) -> None:
    for outputs in ([], ["z"]):
        kind = TensorProto.DataType.Value(name)
        infos = [helper.make_tensor_value_info(each, kind, [2]) for each in outputs]
        nodes = [helper.make_node("Identity", ["k"], ["z"])] if outputs else []
        model = network(nodes, infos, [constant(name)])
        with contextlib.suppress(ModelError):  # no type that this runtime has
            result = intact.quantize(model, DATA, preset="fast", progress=None)
            assert result.sizes()[1] > 0


def test_an_output_that_is_no_tensor_is_refused_by_name() -> None:
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    model = network([helper.make_node("SplitToSequence", ["y"], ["parts"], axis=1)], [parts], [])
    for call in (intact.quantize, lambda *given: intact.execute(*given, executor="float")):
        with pytest.raises(ModelError, match=r"'parts' of the model is seq.*not a tensor"):
            call(model, DATA)


def test_text_is_stored_as_text(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("text", TensorProto.STRING, None)
    to = helper.make_node("Cast", ["y"], ["text"], to=TensorProto.STRING)
    found = intact.execute(network([to], [info], []), DATA, executor="float")
    save_arrays(tmp_path / "run.npz", found.outputs)
    with np.load(tmp_path / "run.npz", allow_pickle=False) as stored:
        assert float(stored["text"].flat[0]) == pytest.approx(float(stored["y"].flat[0]), rel=1e-4)


@pytest.mark.parametrize(("depth", "is_refused"), [(90, False), (110, True), (3000, True)])
def test_functions_that_call_each_other_deep_are_refused(depth: int, is_refused: bool) -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    names = [f"f{number}" for number in range(depth)]
    inner = [helper.make_node(name, ["a"], ["b"], domain="mine") for name in names[1:]]
    inner.append(helper.make_node("Relu", ["a"], ["b"]))
    functions = [
        helper.make_function("mine", name, ["a"], ["b"], [node], opsets)
        for name, node in zip(names, inner, strict=True)
    ]
    info = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    model = network([helper.make_node("f0", ["y"], ["z"], domain="mine")], [info], [], functions)
    if not is_refused:
        normalize(model)
        return
    with pytest.raises(ModelError, match="call each other more than 100 deep"):
        normalize(model)


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(5000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "data",
    [
        {"x": [[1, 2], [3]]},
        [[1, 2], [3]],
        [{"x": [[1.0], [2.0, 3.0]]}],
        deep(),
        {"x": deep()},
        {"x": np.array([np.zeros(2), np.zeros(3)], dtype=object)},
        {"x": [10**400]},
        [DATA["x"], None],
        {None: DATA["x"]},
    ],
    ids=["rows", "list", "batches", "deep", "deep rows", "objects", "huge", "none", "no name"],
)
def test_data_that_are_no_arrays_are_refused(data: Any) -> None:
    for call in (intact.quantize, lambda *given: intact.execute(*given, executor="float")):
        with pytest.raises(IntactError):
            call(network([], [], []), data)


@pytest.mark.parametrize("bits", [-1, 0, 65, 10**9])
@pytest.mark.parametrize("place", ["weight", "activation"])
def test_a_plan_whose_target_has_odd_widths_is_refused(bits: int, place: str) -> None:
    described = target_to_json(load_target("tflite"))
    rule = next(each for each in described["op"] if each.get("weight"))
    rule[place] = {"bits": bits}
    with pytest.raises(TargetError):
        target_from_json(described)
