"""What users bring, from the command line: images, scales, masks, metrics, quantised models."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from intact import api, demo
from intact.cli import run
from intact.plan import quantization_points
from tests.models import ModelBuilder

DOCS = Path(__file__).resolve().parent.parent / "docs"
METRIC = """
import numpy as np

def hits(outputs, references):
    return {"hits": float((outputs["logits"].argmax(1) == references["labels"]).mean())}

def text(outputs, references):
    return "good"
"""

Print = Callable[..., str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's model and data, and its test images as files in sub-folders by class."""
    shutil.copy(demo.model_path(), tmp_path / "model.onnx")
    shutil.copy(demo.calibration_path(), tmp_path / "calib.npz")
    shutil.copy(demo.test_path(), tmp_path / "test.npz")
    with np.load(demo.test_path()) as test:
        for number, (image, label) in enumerate(zip(test["image"], test["labels"], strict=True)):
            folder = tmp_path / "photos" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0] * 15).save(folder / f"{number:03}.png")
    (tmp_path / "mine.py").write_text(METRIC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Print:
    """A function that runs a command line which succeeds, and returns what it prints."""

    def run_and_read(*arguments: str) -> str:
        assert run(arguments) == 0, capfd.readouterr().err
        return capfd.readouterr().out

    return run_and_read


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    """Run a command line that fails, and return the one line that says why."""
    assert run(arguments) == code
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def evaluated(printed: Print, *options: str) -> Any:
    return json.loads(printed("evaluate", "out", "--json", *options))


def test_a_folder_of_images_gives_the_same_as_its_pixels(here: Path, printed: Print) -> None:
    steps = ("--scale", repr(1 / 15))
    printed("quantize", "model.onnx", "-d", "photos", "-o", "out", *steps, "--samples", "1000")
    plan = (here / "out" / "plan.json").read_bytes()
    found = evaluated(printed, "-d", "photos")
    with np.load("test.npz") as test:
        order = np.argsort(test["labels"], kind="stable")
        np.savez("sorted.npz", image=test["image"][order] * 15, labels=test["labels"][order])
    printed("quantize", "model.onnx", "-d", "sorted.npz", "-o", "out", *steps, "--samples", "1000")
    assert (here / "out" / "plan.json").read_bytes() == plan
    assert evaluated(printed, "-d", "sorted.npz")["accuracy"] == found["accuracy"]


def test_the_steps_are_kept_for_evaluate_and_verify(here: Path, printed: Print) -> None:
    (here / "p.toml").write_text("format = 1\nscale = [2.0]\n\n[image]\nshorter_side = 8\n")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out")
    printed(*quantize, "--preprocess", "p.toml", "--scale", repr(1 / 15), "--resize", "box")
    assert (here / "out" / "preprocess.toml").read_text() == (
        f'format = 1\nscale = [{1 / 15!r}]\n\n[image]\nresize = "box"\nshorter_side = 8\n'
    )
    kept = evaluated(printed, "-d", "photos")
    assert kept["accuracy"]["top1"][0] > 90
    assert evaluated(printed, "-d", "photos", "--preprocess", "p.toml")["accuracy"] != kept
    printed("verify", "out", "-d", "photos", "--samples", "8")


def test_labels_from_a_table(here: Path, printed: Print) -> None:
    rows = [(path, path.parent.name) for path in sorted((here / "photos").rglob("*.png"))]
    for path, _ in rows:
        path.rename(here / "photos" / path.name)
    with (here / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows((path.name, label) for path, label in rows)
    printed("quantize", "model.onnx", "-d", "photos", "-o", "out", "--scale", repr(1 / 15))
    assert evaluated(printed, "-d", "photos")["accuracy"] is None
    found = evaluated(printed, "-d", "photos", "--labels", "labels.csv")
    assert found["accuracy"]["top1"][0] > 90


def test_a_bad_image_is_named_or_skipped_on_request(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "photos" / "3" / "zz.jpg").write_bytes(b"no image")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out")
    line = refused(capfd, *quantize)
    assert "3/zz.jpg" in line
    assert "--skip-bad" in line
    assert not (here / "out").exists()
    assert "left out (first: 3/zz.jpg" in printed(*quantize, "--skip-bad", "--samples", "999")
    found = evaluated(printed, "-d", "photos", "--skip-bad")
    assert found["samples"] == 600
    assert len(found["skipped"]) == 1
    assert "skipped 3/zz.jpg" in printed("evaluate", "out", "-d", "photos", "--skip-bad")


def test_steps_for_images_need_images(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quantize = ("quantize", "model.onnx", "-o", "out", "-d")
    line = refused(capfd, *quantize, "calib.npz", "--shorter-side", "9", code=2)
    assert "--shorter-side is for a folder of images" in line
    assert "--order" in refused(capfd, *quantize, "photos", "--order", "gbr")
    assert "mean has 3 numbers" in refused(capfd, *quantize, "photos", "--mean", "1,2,3")
    assert "whole numbers" in refused(capfd, *quantize, "photos", "--size", "8,x", code=2)


def test_memory_is_bounded_with_the_same_result(here: Path, printed: Print) -> None:
    plans = []
    for bound in ((), ("--max-memory", "6M")):
        printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", *bound)
        plans.append((here / "out" / "plan.json").read_bytes())
    assert plans[0] == plans[1]


def test_a_memory_that_is_no_size(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quantize = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--max-memory")
    for text in ("much", "0", "-1G", "1.5G", "3T"):
        assert "500M or 4G" in refused(capfd, *quantize, text, code=2)
    assert "memory" in refused(capfd, *quantize, "1K")


def test_given_scales_need_no_data(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
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
    text = printed("quantize", "model.onnx", "--scales", "t.json", "-o", "given")
    assert "scales of t.json" in text
    again = api.load_result("given").plan
    for end, config in plan.configs.items():
        assert str(again.configs[end].params) == str(config.params)
    line = refused(capfd, "quantize", "model.onnx", "-o", "none", code=2)
    assert "--data" in line
    assert "--scales" in line


def test_a_metric_of_the_users(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    found = evaluated(printed, "-d", "test.npz", "--metric", "mine:hits")
    assert found["metrics"]["hits"] == [share / 100 for share in found["accuracy"]["top1"]]
    assert "hits" in printed("evaluate", "out", "-d", "test.npz", "--metric", "mine:hits")
    evaluate = ("evaluate", "out", "-d", "test.npz", "--metric")
    assert "hits" in refused(capfd, *evaluate, "mine:hit")
    assert "mine:text" in refused(capfd, *evaluate, "mine:text")
    assert "top-1" in refused(capfd, *evaluate, "sqnr", code=2)


def test_a_quantized_model_is_imported_and_completed(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--keep-float", "Gemm")
    line = refused(capfd, "quantize", "out/model.int8.onnx", "-d", "calib.npz", "-o", "x", code=2)
    assert "intact import" in line
    assert "scales of the quantized model" in printed("import", "out/model.int8.onnx", "-o", "read")
    rows = json.loads(printed("inspect", "out/model.int8.onnx", "--json"))["nodes"]
    assert any(row["quantized"] for row in rows)
    assert "DequantizeLinear" not in {row["op_type"] for row in rows}
    inspect = ("inspect", "out/model.int8.onnx", "--weight-bits", "4")
    assert "quantised already" in refused(capfd, *inspect, code=2)
    read = api.load_result("read")
    assert read.statistics is None
    printed("verify", "read", "--samples", "4")
    assert json.loads(printed("evaluate", "read", "-d", "test.npz", "--json"))["samples"] == 600
    printed("import", "out/model.int8.onnx", "-d", "calib.npz", "-o", "whole")
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
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    builder = ModelBuilder()
    x = builder.input("x", ["n", 4])
    builder.node("Tanh", x, out="y")
    builder.output("y", ["n", 4])
    onnx.save(builder.build(), "tanh.onnx")
    np.save("x.npy", np.ones((3, 4), np.float32))
    quantize = ("quantize", "tanh.onnx", "-d", "x.npy", "-o", "out")
    assert "--allow-empty" in refused(capfd, *quantize)
    assert "0 of 1 nodes" in printed(*quantize, "--allow-empty")
    assert evaluated(printed, "-d", "x.npy")["sqnr_db"] is None  # identical
    printed("verify", "out")


def test_every_command_of_the_documents_runs(here: Path, printed: Print) -> None:
    builder = ModelBuilder(17)
    x = builder.node("Relu", builder.conv(builder.input("image", ["n", 3, 16, 16]), 3, 4))
    builder.node("GlobalAveragePool", x, out="pooled")
    builder.output("pooled", ["n", 4, 1, 1])
    onnx.save(builder.build(), "model.onnx")
    text = (DOCS / "data.md").read_text()
    block = re.search(r"```sh\n(.*?)\n```", text, re.DOTALL)
    assert block is not None
    printed(*block[1].split()[1:])
