"""`--cluster` from the command line: the same files, and one line for what is wrong."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from intact import demo
from intact.cli import run
from tests.clusters import local_cluster

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    with local_cluster():
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(demo.model_path(), "model.onnx")
    shutil.copy(demo.calibration_path(), "calib.npz")
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def images(folder: Path) -> None:
    with np.load("calib.npz") as arrays:
        pixels = arrays["image"][:100]
    for number, each in enumerate(pixels):
        path = folder / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = np.clip(255 * (each - each.min()) / np.ptp(each), 0, 255).astype(np.uint8)
        Image.fromarray(grey.reshape(grey.shape[-2:])).save(path)


def test_a_cluster_that_is_not_there(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    line = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--cluster", address)
    assert run(line) == 1
    (said,) = capfd.readouterr().err.splitlines()
    assert f"Ray cannot be reached at '{address}'" in said
    assert {path.name for path in here.iterdir()} == {"model.onnx", "calib.npz"}
    assert run(line[:-2]) == 0
    capfd.readouterr()
    for command in ("evaluate", "verify"):
        assert run((command, "out", "-d", "calib.npz", "--cluster", address)) == 1
        assert capfd.readouterr().err.splitlines() == [said]


def test_workers_without_a_cluster(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--workers", "2")
    assert run(line) == 2
    assert "give --cluster local" in capfd.readouterr().err
    assert not (here / "out").exists()


def test_layers_are_compared_here(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ("evaluate", str(here), "-d", "calib.npz", "--quant-loss", "--cluster", "local")
    assert run(line) == 2
    assert "leave out --cluster and --workers" in capfd.readouterr().err


def test_a_diagnosis_is_made_here(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(("diagnose", str(here), "-d", "calib.npz", "--cluster", "local")) == 2
    (said,) = capfd.readouterr().err.splitlines()
    assert "--cluster is an option of `intact quantize`" in said
    assert said.endswith("only; see `intact diagnose --help`")


@pytest.mark.usefixtures("local_ray")
def test_two_workers_give_the_same_files(here: Path) -> None:
    images(here / "images")
    options = ("quantize", "model.onnx", "-d", "images", "--std", "255")
    assert run((*options, "-o", "one")) == 0
    assert run((*options, "-o", "two", "--cluster", "local", "--workers", "2")) == 0
    assert files(here / "one") == files(here / "two")


def untimed(text: str) -> Any:
    """Leave out of JSON what differs from run to run: times."""
    found = json.loads(text)
    for name in ("phases", "latency_ms", "latency_runs", "speedup"):
        found.pop(name, None)
    return found


@pytest.mark.usefixtures("local_ray")
def test_two_workers_find_the_same(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images(here / "images")
    assert run(("quantize", "model.onnx", "-d", "images", "--std", "255", "-o", "out")) == 0
    for command, more in (("evaluate", ("--batch", "16")), ("verify", ())):
        line = (command, "out", "-d", "images", *more, "--json")
        capfd.readouterr()
        assert run(line) == 0
        one = untimed(capfd.readouterr().out)
        assert run((*line, "--cluster", "local", "--workers", "2")) == 0
        assert untimed(capfd.readouterr().out) == one
