"""The examples of training run as they stand, and do what they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import intact
from tests.examples.scripts import EXAMPLES, run

pytest.importorskip("torch")

SMALL = ("--epochs", "2", "--samples", "160")


def percentages(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) %", line)]


def test_training_for_openvino_deploys_the_same_bits(tmp_path: Path) -> None:
    text = run(tmp_path, str(EXAMPLES / "qat_to_openvino.py"), *SMALL)
    accuracies, verified, deployed = text.splitlines()
    of_float, quantized, trained = percentages(accuracies)
    assert of_float > 80
    assert trained > quantized - 5
    assert re.search(r"OpenVINO [\d.]+: \d+ layers, 0 of [\d,]+ values differ", verified)
    assert abs(percentages(deployed)[0] - trained) <= 1
    assert (tmp_path / "out" / "trained" / "model.xml").is_file()


def test_an_onnx_model_is_trained_without_labels_for_tflite(tmp_path: Path) -> None:
    script = str(EXAMPLES / "finetune_onnx_to_tflite.py")
    text = run(tmp_path, script, "--epochs", "3", "--samples", "120", "--weight-bits", "2")
    lines = text.splitlines()
    assert lines[0].startswith("before training, held out")
    assert lines[3].startswith("epoch 3, loss")
    quantized, trained = (percentages(line)[0] for line in lines[4:6])
    assert trained >= quantized
    assert "model.int8.tflite: " in lines[6]
    assert "0 of" in lines[7]
    assert list((tmp_path / "out" / "finetuned").glob("*.tflite"))


@pytest.mark.slow
def test_the_steps_of_mqbench(tmp_path: Path) -> None:
    text = run(tmp_path, str(EXAMPLES / "from_mqbench.py"), *SMALL)
    of_float, quantized, trained = percentages(text.splitlines()[0])
    assert min(of_float, quantized, trained) > 70
    assert "written: tensorrt" in text
    assert "tensorrt" in intact.load_result(tmp_path / "out" / "deployed").exports


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    text = run(tmp_path, *command, str(EXAMPLES / "distributed.py"), *SMALL)
    (line,) = [line for line in text.splitlines() if line]
    assert line.startswith("2 processes on ")
    assert_was_trained(tmp_path, "distributed")


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(each) is None for each in ("ray", "pandas", "pyarrow")),
    reason="needs ray[train]",
)
def test_two_workers_of_ray_train_one_model(tmp_path: Path) -> None:
    text = run(tmp_path, str(EXAMPLES / "ray_train.py"), "--workers", "2", *SMALL)
    assert "written: " in text
    assert_was_trained(tmp_path, "ray-trained")


def assert_was_trained(folder: Path, name: str) -> None:
    before = intact.load_result(folder / "out" / "quantized").plan
    after = intact.load_result(folder / "out" / name).plan
    assert after.graph.hash != before.graph.hash
    assert "openvino" in intact.load_result(folder / "out" / name).exports
