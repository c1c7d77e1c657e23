"""A remedy names the command that has its flags, where another one ran."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from intact import demo
from intact.cli import run
from intact.cli.entry import app
from intact.recipe.commands import RECIPES, flags_of, owner_of


@pytest.mark.parametrize(
    ("flag", "command", "owner"),
    [
        ("--keep-float", "export", "quantize"),
        ("--keep-float", "quantize", ""),
        ("--max-memory", "evaluate", "quantize"),
        ("--batch", "quantize", "evaluate"),
        ("--kernels", "verify", ""),
        ("--scales", "import", "quantize"),
        ("--no-such-flag", "verify", ""),
        ("--keep-float", "targets", ""),
    ],
)
def test_who_has_a_flag(flag: str, command: str, owner: str) -> None:
    assert owner_of(flag, command) == owner


def test_the_table_has_every_command_of_models() -> None:
    for name, recipe in RECIPES.items():
        command = app.commands[name]
        assert getattr(command, "recipe", None) is recipe
        assert flags_of(recipe)
    assert set(app.commands) - set(RECIPES) == {"completion", "demo", "targets"}


def test_a_remedy_of_another_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(demo.model_path(), "model.onnx")
    shutil.copy(demo.calibration_path(), "calib.npz")
    kept = ("--keep-float", "Gemm", "--samples", "20")
    assert run(("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", *kept)) == 0
    capfd.readouterr()
    assert run(("export", "out", "--format", "ncnn", "--format", "c", "-o", "c")) == 1
    (line,) = capfd.readouterr().err.splitlines()[-1:]
    assert "of `intact quantize`" in line

    def too_much(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("intact.api.quantize", too_much, raising=False)
    assert run(("quantize", "model.onnx", "-d", "calib.npz", "-o", "x")) == 1
    said = capfd.readouterr().err
    assert "give fewer --threads or --max-memory" in said
    assert "--batch" not in said
    monkeypatch.setattr("intact.api.evaluate", too_much, raising=False)
    assert run(("evaluate", "out", "-d", "calib.npz")) == 1
    assert "give a smaller --batch or fewer --threads" in capfd.readouterr().err
