"""`--cluster` from the command line: the same files, and one line for what is wrong."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

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


def test_workers_without_a_cluster(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--workers", "2")
    assert run(line) == 2
    assert "give --cluster local" in capfd.readouterr().err
    assert not (here / "out").exists()


@pytest.mark.usefixtures("local_ray")
def test_two_workers_give_the_same_files(here: Path) -> None:
    images(here / "images")
    options = ("quantize", "model.onnx", "-d", "images", "--std", "255")
    assert run((*options, "-o", "one")) == 0
    assert run((*options, "-o", "two", "--cluster", "local", "--workers", "2")) == 0
    assert files(here / "one") == files(here / "two")
