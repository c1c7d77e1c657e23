"""Text on the command line: every command that takes data takes it alike."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from intact.cli import run
from tests.texts import saved, text_of, tiny_decoder, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized decoder in `out`, with what it was made of."""
    folder = tmp_path_factory.mktemp("text")
    tokens = np.random.default_rng(0).integers(4, 50, 200)
    (folder / "corpus.txt").write_text(text_of(*tokens), encoding="utf-8")
    model, tokenizer = saved(tiny_decoder(), folder), tiny_tokenizer(folder)
    line = ["quantize", str(model), *text(folder), "--output", str(folder / "out"), "--method"]
    assert run([*line, "minmax", "--samples", "8"]) == 0
    assert str(tokenizer) in (folder / "out" / "recipe.toml").read_text(encoding="utf-8")
    return folder


def text(folder: Path) -> list[str]:
    data, tokenizer = (str(folder / name) for name in ("corpus.txt", "tokenizer.json"))
    return ["--data", data, "--tokenizer", tokenizer, "--context", "16"]


@pytest.mark.parametrize("command", ["evaluate", "verify", "diagnose", "run"])
def test_commands_take_text(
    folder: Path, command: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = ["--output", str(tmp_path / "y.npz")] if command == "run" else []
    line = [command, str(folder / "out"), *text(folder), "--samples", "3", "--json", *more]
    assert run(line) == 0
    found = json.loads(capfd.readouterr().out)
    if command == "evaluate":
        assert found["text"]["windows"] == 3
        assert found["text"]["tokens"] == 3 * 15
        assert found["text"]["generated"]["tokens"] > 0
    if command == "run":
        with np.load(tmp_path / "y.npz") as arrays:
            assert arrays["logits"].shape == (3, 16, 50)


def test_the_recipe_of_a_result_makes_it_again(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = ["quantize", "--recipe", str(folder / "out" / "recipe.toml")]
    assert run([*line, str(folder / "model.onnx"), "--output", str(tmp_path / "again")]) == 0
    (following,) = [each for each in capfd.readouterr().out.splitlines() if "next:" in each]
    _, _, evaluate = following.partition("next: intact ")
    words = [*shlex.split(evaluate.replace("FILE", str(folder / "corpus.txt"))), "--samples", "2"]
    assert text(folder)[2:] == words[-6:-2]
    assert run(words) == 0
    first, again = (
        (each / "plan.json").read_bytes() for each in (folder / "out", tmp_path / "again")
    )
    assert first == again


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--context", "500"],
            "a window has 500; give more text, or --context 200",
        ),
        (["--tokenizer", "missing.json"], "missing.json: cannot be read"),
        (["--metric", "cosine", "--context", "1"], "--context is '1'"),
    ],
)
def test_errors_are_one_line(
    folder: Path, arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = text(folder)
    for flag in set(arguments) & set(given):
        at = given.index(flag)
        del given[at : at + 2]
    assert run(["evaluate", str(folder / "out"), *given, *arguments]) in (1, 2)
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert said in line
