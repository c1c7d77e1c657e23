"""Inputs that are fixed to a value: what is left of the model, of its data, and of its Ifs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import intact
from intact.data.sources import open_samples
from intact.errors import DataError, ModelError, PlanError, UsageError
from intact.graph import normalize
from intact.graph.fixed_inputs import METADATA_KEY, shown_value
from intact.results.result import Result
from tests.graph.passes.test_control_flow import if_node
from tests.models import ModelBuilder, run_model


def model(dtype: int = TensorProto.INT64, shape: tuple[int | str, ...] = ()) -> onnx.ModelProto:
    """Two layers, each in a branch, of which an input chooses one."""
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 4])
    rate = b.node("Cast", b.input("sr", shape, dtype), to=TensorProto.FLOAT)
    fast = b.node("Greater", rate, b.scalar(0.5))
    branches = []
    for _ in range(2):
        weight = b.weight(4, 3)
        branches.append(([helper.make_node("MatMul", [x, weight], ["m"], name="m")], ["m"]))
    b.nodes.append(if_node(fast, branches, ["y"]))
    b.output("y", ["batch", 3])
    return b.build()


def data(value: Any = 1, count: int = 8) -> dict[str, np.ndarray]:
    rows = np.random.default_rng(2).normal(size=(count, 4)).astype(np.float32)
    return {"x": rows[:, None], "sr": np.full(count, value)}


def quantized(**options: Any) -> Result:
    return intact.quantize(model(), data(), input_value={"sr": 1}, **options)


def test_the_branch_that_the_value_chooses_is_quantized() -> None:
    result = quantized()
    graph = result.plan.graph
    assert [value.name for value in graph.inputs] == ["x"]
    assert {node.op_type for node in graph.nodes} <= {"MatMul", "Gemm"}
    assert "sr = 1" in result.recipe
    x = data()["x"][:, 0]
    expected = run_model(model(), {"x": x, "sr": np.array(1)}, ["y"])["y"]
    found = intact.execute(result, data()).outputs["y"]
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("target", ["tflite", "tflite-micro", "ncnn"])
def test_formats_without_if_take_what_is_left(target: str) -> None:
    assert "y" in intact.execute(quantized(target=target), data()).outputs


def test_data_may_leave_it_out_or_give_the_same() -> None:
    graph = quantized().plan.graph
    for given in (data(), {"x": data()["x"]}, {"x": data()["x"], "sr": np.array(1)}):
        (batch, _), *_ = open_samples(given, graph).batches(8)
        assert list(batch) == ["x"]


def test_what_a_cast_would_make_the_same_value_is_another() -> None:
    given = {"x": data()["x"], "sr": np.array(1.5)}
    with pytest.raises(DataError, match=r"'sr' is 1\.5, and the model has it fixed to 1"):
        list(open_samples(given, quantized().plan.graph).batches(8))


@pytest.mark.parametrize("lazily", [False, True])
def test_another_value_in_the_data_is_an_error(lazily: bool) -> None:
    graph = quantized().plan.graph
    given = iter([data(2)]) if lazily else data(2)
    message = r"'sr' is 2, and the model has it fixed to 1; leave it out, or .*input_value sr=1"
    with pytest.raises(DataError, match=message):
        list(open_samples(given, graph).batches(8))


def test_the_folder_still_knows_it(tmp_path: Path) -> None:
    quantized(output=tmp_path / "out")
    assert intact.execute(tmp_path / "out", data()).samples == 8
    with pytest.raises(DataError, match="fixed to 1"):
        intact.execute(tmp_path / "out", data(0))


@pytest.mark.parametrize(
    ("samples", "flag"), [(data(1), "sr=1"), (data(0), "sr=0"), (None, "sr=VALUE")]
)
def test_what_cannot_be_quantized_names_the_input(
    samples: Mapping[str, np.ndarray] | None, flag: str
) -> None:
    given = samples or {**data(), "sr": np.arange(8)}
    message = f"input 'sr' decides which; fix it: input_value {flag}"
    with pytest.raises(PlanError, match=message):
        intact.quantize(model(), given)
    with pytest.raises(PlanError, match=message):
        intact.search_strategy(model(), given, budget="2 trials")


def test_an_odd_name_is_shown_as_a_shell_takes_it() -> None:
    assert shown_value("sr", 16000) == "--input-value sr=16000"
    assert shown_value("my rate", True) == "--input-value 'my rate=true'"


def test_an_iterator_is_not_read_for_the_value() -> None:
    def batches() -> Iterator[dict[str, np.ndarray]]:
        yield data()

    with pytest.raises(PlanError, match="input_value sr=VALUE"):
        intact.quantize(model(), batches())


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        (TensorProto.INT64, 1.5, False),
        (TensorProto.INT32, 2**40, False),
        (TensorProto.UINT8, -1, False),
        (TensorProto.INT64, 2.0, True),
        (TensorProto.BOOL, True, True),
        (TensorProto.BOOL, 2, False),
        (TensorProto.FLOAT, 1e40, False),
        (TensorProto.FLOAT, 0.1, True),
        (TensorProto.DOUBLE, 1, True),
    ],
)
def test_values_have_to_fit(dtype: int, value: float, fits: bool) -> None:
    given = {"x": data()["x"]}
    if fits:
        result = intact.quantize(model(dtype, (1,)), given, input_value={"sr": value})
        assert "y" in intact.execute(result, given).outputs
        return
    with pytest.raises(UsageError, match=r"input_value sr=.*holds"):
        intact.quantize(model(dtype), given, input_value={"sr": value})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rs": 1}, "input_value rs=1: the model has no such input"),
        ({"x": 1}, "fix an input of one number"),
        ({"sr": "1"}, "give a number, true or false by name"),
        ({"sr": float("nan")}, "give a number"),
    ],
)
def test_what_cannot_be_fixed_is_refused(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        intact.quantize(model(), data(), input_value=value)


@pytest.mark.parametrize(
    "text", ["[", "[]", '{"a": 1}', '{"a": ["int64", [2], 1]}', '{"a": ["O", [], 1]}']
)
def test_damaged_metadata_is_an_error(text: str) -> None:
    damaged = model()
    helper.set_model_props(damaged, {METADATA_KEY: text})
    with pytest.raises(ModelError, match="fixed_inputs"):
        _ = normalize(damaged).fixed_inputs


def test_metadata_that_asks_for_memory_gets_none() -> None:
    damaged = model()
    helper.set_model_props(damaged, {METADATA_KEY: '{"a": ["int8", [100000000], 1]}'})
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="fixed_inputs"):
            _ = normalize(damaged).fixed_inputs
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_search_is_replayed_with_its_values(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    intact.search_strategy(model(), data(), input_value={"sr": 1}, budget="2 trials", log=log)
    result = intact.replay_strategy(model(), log)
    assert [value.name for value in result.plan.graph.inputs] == ["x"]


def test_sizes_that_decide_are_those_of_the_samples() -> None:
    b = ModelBuilder(17)
    x = b.input("x", ["batch", "width", 4])
    one = b.node("Equal", b.node("Gather", b.node("Shape", x), b.constant(1)), b.constant(1))
    short = [helper.make_node("Squeeze", [x, b.ints(1)], ["s"], name="s")], ["s"]
    other = [helper.make_node("Identity", [x], ["i"], name="i")], ["i"]
    b.nodes.append(if_node(one, [short, other], ["c"]))
    b.node("MatMul", "c", b.weight(4, 3), out="y")
    b.output("y")
    result = intact.quantize(b.build(), {"x": data()["x"]})
    assert "If" not in {node.op_type for node in result.plan.graph.nodes}
    (note,) = [each for each in result.plan.notes if "decide" in each.message]
    assert note.remedy == "give others: --input-shape 'x=?,1,4'"
