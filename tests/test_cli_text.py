"""Text on the command line: every command that takes data takes it alike."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import intact
from intact.cli import run
from intact.errors import DataError
from intact.results.result import Result
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


def test_one_command_brings_a_decoder_to_every_runtime(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Empty caches are constants where sizes are fixed; ncnn, which looks up, gets tokens alone."""
    targets = ("onnxruntime", "openvino", "tflite-xnnpack", "ncnn")
    inputs = {"onnxruntime": 7, "openvino": 7, "tflite-xnnpack": 3, "ncnn": 1}
    flags = [word for target in targets for word in ("--target", target)]
    out, model = str(tmp_path / "all"), str(folder / "model.onnx")
    line = ["quantize", model, *text(folder), *flags, "--block", "32", "--output", out]
    assert run([*line, "--samples", "3", "--preset", "fast"]) == 0
    for target in targets:
        assert len(Result.load(Path(out, target)).plan.graph.inputs) == inputs[target]
    capfd.readouterr()
    assert run(["verify", out, *text(folder), "--samples", "2", "--json"]) == 0
    for each in json.loads(capfd.readouterr().out)["verified"]:
        assert not any(layer["mismatches"] for layer in each["layers"]), each["target"]
        # Sums in another order, after which LiteRT may round an activation to the next code.
        assert min(output["sqnr_db"] or 99.0 for output in each["outputs"]) > 30, each["target"]


def test_a_constant_mask_takes_no_other_values(folder: Path) -> None:
    """Data that pads what the model has as full windows is refused, and not computed otherwise."""
    ids = np.arange(4, 12)[None]
    result = intact.quantize(
        str(folder / "model.onnx"), ids, context=8, target="ncnn", block=32, preset="fast"
    )
    full = {"input_ids": ids, "attention_mask": np.ones((1, 8), np.int64)}
    intact.execute(result, full)
    full["attention_mask"][0, -1] = 0
    with pytest.raises(DataError, match="'attention_mask' holds other values"):
        intact.execute(result, full)
