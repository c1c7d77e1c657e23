"""What users bring, from the command line: scales, masks, metrics, quantized models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from intact import api
from intact.cli import run
from intact.plan import quantization_points
from tests.command_lines import Say, evaluated, refused
from tests.models import ModelBuilder

METRIC = """
import numpy as np

def hits(outputs, references):
    return {"hits": float((outputs["logits"].argmax(1) == references["labels"]).mean())}

def text(outputs, references):
    return "good"

def talks(outputs, references):
    print("hello")
    return 1.0
"""


@pytest.fixture
def here(here: Path) -> Path:
    """With a module of metrics."""
    (here / "mine.py").write_text(METRIC)
    return here


def test_one_sample_without_an_axis_for_samples_is_said_to_be_that(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.save("one.npy", np.zeros((1, 8, 8), np.float32))
    line = refused(capfd, "quantize", "model.onnx", "-d", "one.npy", "-o", "out", "--mean", "1,2,3")
    assert "one sample of shape [1, 8, 8] without an axis for samples" in line
    assert "channels" not in line


def test_memory_is_bounded_with_the_same_result(here: Path, say: Say) -> None:
    plans = []
    for bound in ((), ("--max-memory", "6M")):
        say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", *bound)
        plans.append((here / "out" / "plan.json").read_bytes())
    assert plans[0] == plans[1]


def test_a_memory_that_is_no_size(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quantize = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--max-memory")
    for text in ("much", "0", "-1G", "1.5G", "3T"):
        assert "500M or 4G" in refused(capfd, *quantize, text, code=2)
    assert "memory" in refused(capfd, *quantize, "1K")


@pytest.fixture
def padded(here: Path) -> Callable[..., list[float]]:
    """A function that quantizes a model of padded tokens and returns its activations' scales."""
    builder = ModelBuilder()
    tokens = builder.input("tokens", ["n", "length", 4])
    builder.node("MatMul", tokens, builder.weight(4, 4), out="y")
    builder.output("y")
    onnx.save(builder.build(), "text.onnx")
    real = np.arange(6) < np.arange(1, 7)[:, None]
    values = np.random.default_rng(0).uniform(-1, 1, (6, 6, 4))
    np.savez("masked.npz", tokens=np.where(real[..., None], values, 1000.0), real=real)
    np.savez("plain.npz", tokens=np.where(real[..., None], values, 1000.0))

    def scales(*options: str) -> list[float]:
        assert run(["quantize", "text.onnx", "-o", "out", "--method", "minmax", *options]) == 0
        points = quantization_points(api.load_result("out").plan)
        return [float(np.max(p.config.scale or 0)) for p in points if not p.is_constant]

    return scales


def test_padded_positions_are_left_out_with_a_mask(
    here: Path,
    padded: Callable[..., list[float]],
    say: Say,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert padded("-d", "plain.npz")[0] > 1000 / 256
    capfd.readouterr()
    assert padded("-d", "masked.npz", "--mask", "real")[0] < 2 / 250
    capfd.readouterr()
    assert evaluated(say, "-d", "masked.npz")["samples"] == 6  # which need no mask
    say("verify", "out", "-d", "masked.npz")
    np.savez("wrong.npz", **(dict(np.load("plain.npz")) | {"real": np.ones((6, 5))}))
    quantize = ("quantize", "text.onnx", "-o", "new", "-d")
    assert "sequences of 5" in refused(capfd, *quantize, "wrong.npz", "--mask", "real")
    assert "no array 'rael'" in refused(capfd, *quantize, "masked.npz", "--mask", "rael")
    assert not (here / "new").exists()


def test_scales_that_a_model_carries_are_used_unless_told_otherwise(here: Path, say: Say) -> None:
    model = onnx.load("model.onnx")
    for key, value in (("SCALE_TENSOR", np.float32(0.5)), ("ZERO_POINT_TENSOR", np.uint8(7))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), key))
    annotation = model.graph.quantization_annotation.add(tensor_name="image")
    for key in ("SCALE_TENSOR", "ZERO_POINT_TENSOR"):
        annotation.quant_parameter_tensor_names.add(key=key, value=key)
    onnx.save(model, "carrying.onnx")

    def image_scale(*options: str) -> tuple[float, int]:
        say("quantize", "carrying.onnx", "-d", "calib.npz", "-o", "out", *options)
        points = quantization_points(api.load_result("out").plan)
        (params,) = (p.config.params for p in points if p.value.name == "image")
        assert params is not None
        return float(params.scale), int(params.zero_point)

    assert image_scale() == (0.5, 7)
    assert image_scale("--scales", "none")[0] < 0.1


def test_a_tengine_table_wins_over_the_data(
    here: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    quantize = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--scales")
    (here / "other.scale").write_text("imagee 0.500000 7\n")
    line = refused(capfd, *quantize, "other.scale")
    assert "other.scale" in line
    assert "did you mean 'image'?" in line
    (here / "table_minmax.scale").write_text("image 0.500000 7\n")
    say(*quantize, "table_minmax.scale")
    points = quantization_points(api.load_result("out").plan)
    (params,) = (p.config.params for p in points if p.value.name == "image")
    assert params is not None
    assert (float(params.scale), int(params.zero_point)) == (0.5, 7)


def test_given_scales_need_no_data(here: Path, say: Say, capfd: pytest.CaptureFixture[str]) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    plan = api.load_result("out").plan
    rows: dict[str | None, dict[str, Any]] = {}
    for point in quantization_points(plan):
        if not point.is_constant and point.config.params is not None:
            params = point.config.params
            rows[point.value.name] = {
                "bitwidth": 8,
                "dtype": "int",
                "is_symmetric": "False",
                "scale": float(str(params.scale)),
                "offset": -int(params.zero_point),
                "min": 0.0,
                "max": 0.0,
            }
    table = {"version": "0.6.1", "activation_encodings": {n: [r] for n, r in rows.items()}}
    for row in rows.values():  # of SNPE: the range is that of the codes
        row["min"] = row["offset"] * row["scale"]
        row["max"] = (255 + row["offset"]) * row["scale"]
    (here / "t.json").write_text(json.dumps(table | {"param_encodings": {}}))
    text = say("quantize", "model.onnx", "--scales", "t.json", "-o", "given")
    assert "scales of t.json" in text
    again = api.load_result("given").plan
    for end, config in plan.configs.items():
        assert str(again.configs[end].params) == str(config.params)
    line = refused(capfd, "quantize", "model.onnx", "-o", "none", code=2)
    assert "--data" in line
    assert "--scales" in line


def test_a_metric_of_the_users(here: Path, say: Say, capfd: pytest.CaptureFixture[str]) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    found = evaluated(say, "-d", "test.npz", "--metric", "mine:hits")
    assert found["metrics"]["hits"] == [share / 100 for share in found["accuracy"]["top1"]]
    assert "hits" in say("evaluate", "out", "-d", "test.npz", "--metric", "mine:hits")
    evaluate = ("evaluate", "out", "-d", "test.npz", "--metric")
    assert "hits" in refused(capfd, *evaluate, "mine:hit")
    assert "mine:text" in refused(capfd, *evaluate, "mine:text")
    assert "top-1" in refused(capfd, *evaluate, "sqnr", code=2)


def test_what_import_refuses_is_not_sent_there(here: Path, fails: Callable[..., str]) -> None:
    """Its own reason is said, and not a command that fails as well."""
    b = ModelBuilder()
    pair = onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"])
    b.nodes.append(pair)
    weight = b.constant(np.ones((3, 2), np.uint8))
    b.input("x", ["batch", 3])
    b.node("Cast", b.node("MatMulInteger", "codes", weight), to=onnx.TensorProto.FLOAT, out="y")
    b.output("y")
    onnx.save(b.build(), "dynamic.onnx")
    line = fails("quantize", "dynamic.onnx", "-d", "calib.npz", "-o", "x")
    assert "no Cast and Mul by its scales" in line
    assert "intact import" not in line


def test_a_quantized_model_is_imported_and_completed(
    here: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--keep-float", "Gemm")
    line = refused(capfd, "quantize", "out/model.int8.onnx", "-d", "calib.npz", "-o", "x", code=2)
    assert "intact import" in line
    assert "scales of the quantized model" in say("import", "out/model.int8.onnx", "-o", "read")
    rows = json.loads(say("inspect", "out/model.int8.onnx", "--json"))["nodes"]
    assert any(row["quantized"] for row in rows)
    assert "DequantizeLinear" not in {row["op_type"] for row in rows}
    inspect = ("inspect", "out/model.int8.onnx", "--weight-bits", "4")
    assert "quantized already" in refused(capfd, *inspect, code=2)
    read = api.load_result("read")
    assert read.statistics is None
    say("verify", "read", "--samples", "4")
    assert json.loads(say("evaluate", "read", "-d", "test.npz", "--json"))["samples"] == 600
    say("import", "out/model.int8.onnx", "-d", "calib.npz", "-o", "whole")
    whole = api.load_result("whole")
    gemm = next(node for node in whole.plan.graph.nodes if node.op_type == "Gemm")
    assert not read.plan.is_quantized(gemm)
    assert whole.plan.is_quantized(gemm)
    for end, config in read.plan.configs.items():
        if read.plan.decisions[end.node].quantized:
            assert str(whole.plan.configs[end].params) == str(config.params)


def test_a_float_model_is_not_imported(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "quantize" in refused(capfd, "import", "model.onnx", "-o", "out")


def test_a_model_that_stays_float_is_accepted_on_request(
    here: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    builder = ModelBuilder()
    x = builder.input("x", ["n", 4])
    builder.node("Tanh", x, out="y")
    builder.output("y", ["n", 4])
    onnx.save(builder.build(), "tanh.onnx")
    np.save("x.npy", np.ones((3, 4), np.float32))
    quantize = ("quantize", "tanh.onnx", "-d", "x.npy", "-o", "out")
    assert "--allow-empty" in refused(capfd, *quantize)
    assert "0 of 1 nodes" in say(*quantize, "--allow-empty")
    assert evaluated(say, "-d", "x.npy")["sqnr_db"] is None  # identical
    say("verify", "out")


def test_what_a_function_prints_is_not_part_of_the_json(here: Path, say: Say) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    assert evaluated(say, "-d", "test.npz", "--metric", "mine:talks")["metrics"]["talks"]


def test_absurd_numbers_of_threads_are_refused(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantize = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    assert "threads is 100000" in refused(capfd, *quantize, "--threads", "100000", code=2)


def test_a_results_folder_is_inspected(here: Path, say: Say) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--keep-float", "Gemm")
    rows = json.loads(say("inspect", "out", "--json"))["nodes"]
    assert [row["quantized"] for row in rows if row["op_type"] == "Gemm"] == [False]
    assert any(row["quantized"] for row in rows)


def test_forgotten_preprocessing_is_suspected(here: Path, say: Say) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    wrong = say("evaluate", "out", "-d", "test.npz", "--mean", "-3000")
    assert "is the data preprocessed as the model wants it" in wrong
    assert "preprocessed" not in say("evaluate", "out", "-d", "test.npz")
