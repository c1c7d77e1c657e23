"""Odd models, end to end: quantized, saved, loaded, evaluated and verified, or one clear line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import intact
from intact.errors import IntactError
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides
from intact.results.result import Result
from tests import models, odd
from tests.half import halved
from tests.models import ModelBuilder
from tests.runtimes import newest_opset

Feeds = Mapping[str, np.ndarray[Any, Any]]


def went_through(model: onnx.ModelProto, feeds: Feeds, folder: Path, **options: Any) -> Result:
    """Take a model all the way and return what a user would load."""
    before = model.SerializeToString(deterministic=True)
    intact.quantize(model, feeds, output=folder, **options)
    assert model.SerializeToString(deterministic=True) == before
    result = Result.load(folder)
    assert any(decision.quantized for decision in result.plan.decisions.values())
    for source in (ir.to_proto(result.plan.graph.model), ir.to_proto(result.exported.model)):
        for ports, kept in (
            (model.graph.output, source.graph.output),
            ([v for v in model.graph.input if v.name in feeds], source.graph.input),
        ):
            assert [port.name for port in ports] == [port.name for port in kept]
    assert intact.evaluate(folder, feeds).sqnr_db > 25
    verification = intact.verify(folder, feeds)
    assert min(verification.outputs_sqnr_db.values()) > 100
    assert sum(layer.mismatches for layer in verification.layers) <= 1
    return result


@pytest.mark.parametrize("name", odd.ODD)
def test_odd_models_go_through(name: str, tmp_path: Path) -> None:
    model = odd.ODD[name]()
    feeds = models.random_inputs(model, batch=16)
    result = went_through(model, feeds, tmp_path / "out")
    wanted = models.run_model(model, feeds)
    names = list(wanted)
    found = models.run_model(ir.to_proto(result.exported.model), feeds, names)
    for output, expected in wanted.items():
        error = np.abs(found[output] - expected).max(initial=0)
        assert error <= 0.12 * np.abs(expected).max(initial=0), output
    decisions = result.plan.decisions
    products = [n for n in result.plan.graph.nodes if n.op_type in {"Gemm", "MatMul"}]
    in_float = {n.name for n in products if not decisions[str(n.name)].quantized}
    assert len(in_float) == (1 if name == "doubles" else 0)


def test_names_are_kept_to_the_letter(tmp_path: Path) -> None:
    model = odd.odd_names()
    feeds = models.random_inputs(model, batch=16)
    result = went_through(model, feeds, tmp_path / "out")
    assert set(odd.ODD_NAMES) <= {str(node.name) for node in result.plan.graph.nodes}
    assert set(odd.ODD_NAMES) <= result.plan.decisions.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("name", ["layer.output[0]", "a.output[0] ", "line\nbreak", "..", "/"])
def test_odd_names_can_be_kept_float(name: str) -> None:
    model = odd.odd_names()
    feeds = models.random_inputs(model, batch=16)
    result = intact.quantize(model, feeds, overrides=Overrides(keep_float=(name,)))
    in_float = {n for n, decision in result.plan.decisions.items() if not decision.quantized}
    assert name in in_float
    assert in_float <= {name, "last"}


def test_metadata_of_the_author_is_kept(tmp_path: Path) -> None:
    model = odd.metadata()
    result = went_through(model, models.random_inputs(model, batch=16), tmp_path / "out")
    for kept in (result.plan.graph.model, result.exported.model):
        assert kept.metadata_props["author"] == "somebody"
    assert result.plan.graph.model.producer_name == "someone"
    assert result.exported.model.producer_name == "intact"


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("name", ["residual", "transformer", "control_flow", "local_function"])
def test_half_precision_goes_through(name: str, dtype: int, tmp_path: Path) -> None:
    source = models.MODELS[name].build(18)
    feeds = models.random_inputs(source, batch=16)
    ports: type = np.float32
    if dtype == TensorProto.FLOAT16:
        ports = np.float16
        feeds = {key: array.astype(np.float16) for key, array in feeds.items()}
    result = went_through(halved(source, dtype), feeds, tmp_path / "out")
    assert result.plan.graph.widened == (TensorProto.DataType.Name(dtype),)
    deployed = models.run_model(ir.to_proto(result.exported.model), feeds)
    assert {array.dtype for array in deployed.values()} == {np.dtype(ports)}
    weights = [v.const_value for v in result.exported.model.graph.initializers.values()]
    assert not {ir.DataType.FLOAT16, ir.DataType.BFLOAT16} & {w.dtype for w in weights if w}


def common_operators(opset: int) -> onnx.ModelProto:
    """Operators that every opset writes alike."""
    b = ModelBuilder(opset)
    x = b.conv(b.input("image", ["n", 3, 8, 8]), 3, 8, bias=False)
    x = b.node("Relu", b.batch_norm(x, 8))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Add", x, b.conv(x, 8, 8))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(5, 8), b.weight(5), transB=1, out="y")
    b.output("y", ["n", 5])
    return b.build()


@pytest.mark.parametrize("opset", range(7, models.OPSETS[-1] + 1))
def test_every_opset_goes_through(opset: int) -> None:
    model = common_operators(opset)
    feeds = models.random_inputs(model, batch=16)
    result = intact.quantize(model, feeds, threads=1)
    assert all(result.plan.is_quantized(node) for node in result.plan.graph.nodes)
    assert result.exported.model.opset_imports[""] >= 12  # since then MaxPool takes integers
    wanted = models.run_model(model, feeds)["y"]
    found = models.run_model(ir.to_proto(result.exported.model), feeds)["y"]
    assert sqnr_db(wanted, found) > 25


def broken(value: float) -> onnx.ModelProto:
    b = ModelBuilder()
    weight = np.eye(6, dtype=np.float32)
    weight[1, 2] = value
    x = b.node("Gemm", b.input("x", ["n", 6]), b.weight(6, 6))
    x = b.node("MatMul", x, b.constant(weight, "bad weight"), name="broken")
    b.node("MatMul", x, b.weight(6, 6), out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(value: float) -> None:
    x = np.zeros((16, 6), np.float32)
    line = refused(broken(value), {"x": x})
    assert "'bad weight' of broken holds NaN or infinity" in line
    assert "keep the node float" in line


def test_the_broken_node_may_stay_float() -> None:
    b = ModelBuilder()
    x = b.node("Gemm", b.input("x", ["n", 6]), b.weight(6, 6))
    b.node("MatMul", x, b.constant(np.full((6, 6), np.inf, np.float32)), name="broken", out="y")
    b.output("y")
    b.node("Relu", x, out="z")
    b.output("z")
    feeds = {"x": np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)}
    result = intact.quantize(b.build(), feeds, overrides=Overrides(keep_float=("broken",)))
    assert result.plan.decisions["Gemm_gemm_2"].quantized


def without_inputs() -> onnx.ModelProto:
    b = ModelBuilder()
    b.node("Gemm", b.weight(6, 6), b.weight(6, 6), out="y")
    b.output("y")
    return b.build()


def text_input() -> onnx.ModelProto:
    b = ModelBuilder()
    text = b.input("text", ["n"], TensorProto.STRING)
    b.outputs.append(helper.make_tensor_value_info("same", TensorProto.STRING, None))
    b.node("Identity", text, out="same")
    b.node("Gemm", b.input("x", ["n", 6]), b.weight(6, 6), out="y")
    b.output("y")
    return b.build()


def sequence_input() -> onnx.ModelProto:
    b = ModelBuilder()
    b.inputs.append(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None))
    first = b.node("SequenceAt", "x", b.constant(np.int64(0)))
    b.node("Gemm", first, b.weight(6, 6), out="y")
    b.output("y")
    return b.build()


def unknown_operator() -> onnx.ModelProto:
    b = ModelBuilder()
    b.domains["my.ops"] = 1
    x = b.node("Gemm", b.input("x", ["n", 6]), b.weight(6, 6))
    b.node("Warp", x, domain="my.ops", out="y", name="warp")
    b.output("y")
    return b.build()


def too_new() -> onnx.ModelProto:
    b = ModelBuilder(newest_opset() + 1)
    b.node("Gemm", b.input("x", ["n", 6]), b.weight(6, 6), out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (without_inputs, "has no inputs"),
        (text_input, "input 'text' of the model takes STRING"),
        (sequence_input, "input 'x' of the model"),
        (unknown_operator, "my.ops:Warp"),
        (too_new, f"runs no opset of ai.onnx beyond {newest_opset()}; export"),
    ],
)
def test_what_cannot_work_is_one_line(make: Callable[[], onnx.ModelProto], says: str) -> None:
    assert says in refused(make(), {"x": np.zeros((16, 6), np.float32)})


def refused(model: onnx.ModelProto, feeds: Feeds) -> str:
    """Return the one line with which a model is refused."""
    with pytest.raises(IntactError) as caught:
        intact.quantize(model, feeds)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 400
    return line
