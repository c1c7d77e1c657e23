"""One calibration for every runtime, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact.cli import printing
from intact.formats.tengine.tmfile.write import write_float
from intact.graph import normalize

TARGETS = ("onnxruntime", "openvino", "ncnn", "tflite", "tvm", "tensorrt", "tengine")


def test_one_table_for_every_target(here: Path, say: Any) -> None:
    targets = [word for name in TARGETS for word in ("--target", name)]
    made = json.loads(
        say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", *targets, "--json")
    )
    assert list(made["results"]) == list(TARGETS)
    assert sorted(path.parent.name for path in Path("out").glob("*/plan.json")) == sorted(TARGETS)
    found = json.loads(say("verify", "out", "-d", "test.npz", "--samples", "40", "--json"))
    rows = {row["target"]: row for row in found["verified"]}
    assert set(rows) >= set(TARGETS) - {"tengine"}  # has no runtime here
    for row in found["verified"]:
        assert row["samples"] == 40
        assert row["agreement"] == 100.0, row["target"]
        assert row["top1"][0] == row["top1"][1] > 90
        assert sum(layer["mismatches"] for layer in row["layers"]) <= 1
        assert not any(row["rules"].values())
    text = say("verify", "out", "-d", "test.npz", "--samples", "8")
    for name in rows:
        assert name in text


def test_tengine_files_in_and_out(here: Path, say: Any, fails: Any) -> None:
    Path("model.tmfile").write_bytes(write_float(normalize("model.onnx")))
    say("quantize", "model.tmfile", "-t", "tengine", "-d", "calib.npz", "-o", "out")
    say("quantize", "model.onnx", "-t", "tengine", "-d", "calib.npz", "-o", "same")
    first, second = (Path(f, "model.int8.tmfile").read_bytes() for f in ("out", "same"))
    assert len(first) == len(second)
    say("import", "out/model.int8.tmfile", "-o", "read")
    assert Path("read/model.int8.tmfile").read_bytes() == first
    assert "quantized already" in fails(
        "quantize", "out/model.int8.tmfile", "-d", "calib.npz", "-o", "again"
    )
    assert "not quantized" in fails("import", "model.tmfile", "-o", "again")
    assert json.loads(say("inspect", "model.tmfile", "--json"))["target"] == "tengine"
    say("run", "out/model.int8.tmfile", "--integer", "-d", "test.npz", "-o", "read.npz")
    say("run", "out", "--integer", "-d", "test.npz", "-o", "made.npz")
    with np.load("read.npz") as read, np.load("made.npz") as made:
        for name in made.files:
            np.testing.assert_array_equal(read[name], made[name])


def test_models_with_fake_quantize_are_read(here: Path, say: Any) -> None:
    say("quantize", "model.onnx", "-t", "openvino", "-d", "calib.npz", "-o", "out")
    say("import", "out/model.fq.onnx", "-o", "read")
    assert Path("read/model.fq.onnx").is_file()
    assert json.loads(say("inspect", "out/model.fq.onnx", "--json"))["target"] == "openvino"
    found = json.loads(say("verify", "read", "--samples", "4", "--json"))["verified"]
    assert [row["format"] for row in found] == ["openvino"]


def test_layers_are_compared(here: Path, say: Any, fails: Any) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    lost = json.loads(say("evaluate", "out", "-d", "test.npz", "--quant-loss", "--json"))
    assert lost["samples"] == 50
    assert all(layer["cosine"] > 0.9 for layer in lost["layers"])
    assert any(len(layer["channel_cosines"]) > 1 for layer in lost["layers"])
    text = say("evaluate", "out", "-d", "test.npz", "--quant-loss", "--samples", "5")
    assert "worst channel" in text
    assert "--metric" in fails(
        "evaluate", "out", "-d", "test.npz", "--quant-loss", "--metric", "m:f"
    )


def test_edges_are_shown_before_and_after(
    here: Path, say: Any, fails: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    asked = ("evaluate", "out", "-d", "test.npz", "--graph-statistic")
    found = json.loads(say(*asked, "--json"))
    assert (found["samples"], found["executor"]) == (50, "simulate")
    damage = [edge["sqnr_db"] for edge in found["edges"]]
    assert damage == sorted(damage)
    names = [edge["edge"] for edge in found["edges"]]
    assert len(set(names)) == len(names) > 3
    for edge in found["edges"]:
        for moments in (edge["before"], edge["after"]):
            assert moments["min"] <= moments["mean"] <= moments["max"]
            assert moments["std"] >= 0
    assert json.loads(say(*asked, "--json", "--samples", "5"))["samples"] == 5
    monkeypatch.setattr(printing, "_NO_TERMINAL", 100)
    text = say(*asked, "--samples", "5")
    assert "5 samples" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert all(name in text for name in names)  # whole, not folded
    for refused, option in (
        (("--quant-loss",), "choose one"),
        (("--metric", "m:f"), "--graph-statistic"),
        (("--samples", "0"), "--samples"),
    ):
        assert option in fails(*asked, *refused)
    Path("empty").mkdir()
    assert "plan.json" in fails("evaluate", "empty", "-d", "test.npz", "--graph-statistic")


def test_passes_are_asked_for_by_name(here: Path, say: Any, fails: Any) -> None:
    arguments = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--json")
    made = json.loads(say(*arguments, "--improve", "equalize", "--improve", "weight-scales"))
    assert made["provenance"]["improve"] == ["equalize", "weight-scales"]
    assert "did you mean 'equalize'" in fails(*arguments, "--improve", "equalise")
