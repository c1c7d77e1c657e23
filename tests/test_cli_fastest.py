"""`intact quantize --fastest` on the command line, in the real runtime."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import intact
from intact import demo
from intact.cli import run
from intact.placement.choice import Fastest
from intact.recipe.options import QuantizeOptions
from intact.results.recipes import recipe_of


def quantize(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    words = ["quantize", demo.model_path(), "--data", demo.calibration_path()]
    code = run([*map(str, words), "--output", str(folder / "out"), "--json", *options])
    said = capsys.readouterr()
    return json.loads(said.out) if code == 0 else said.err


def test_times_are_told_and_kept_and_the_recipe_makes_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timings = tmp_path / "cache" / "timings.json"
    options = ("--fastest", "--threads", "1", "--timings", str(timings))
    first = quantize(tmp_path, capsys, *options)["fastest"]
    assert first["runtime"].startswith("ONNX Runtime")
    assert not first["known"]
    assert first["milliseconds"] == {} or set(first["milliseconds"]) == {
        "float",
        "integers",
        "chosen",
    }
    written = (tmp_path / "out" / "model.int8.onnx").read_bytes()
    recipe = (tmp_path / "out" / "recipe.toml").read_text()
    assert tuple(tomllib.loads(recipe).get("keep_float", ())) == tuple(first["kept_float"])
    if first["milliseconds"]:
        assert timings.is_file()
        second = quantize(tmp_path, capsys, *options)["fastest"]
        assert second["known"]
        assert (tmp_path / "out" / "model.int8.onnx").read_bytes() == written
    (tmp_path / "again.toml").write_text(recipe)
    again = ["quantize", "--recipe", tmp_path / "again.toml", "--output", tmp_path / "again"]
    assert run([*map(str, again)]) == 0
    assert (tmp_path / "again" / "model.int8.onnx").read_bytes() == written


def test_the_recipe_of_what_is_fastest_in_float_runs(tmp_path: Path) -> None:
    names = [each.node for each in intact.inspect(demo.model_path()).nodes]
    given = QuantizeOptions(model=demo.model_path(), data=demo.calibration_path())
    result = intact.quantize(given.model, given.data, keep_float=names, allow_empty=True)
    result.fastest = Fastest("a runtime", 1, 1, kept_float=tuple(names))
    (tmp_path / "again.toml").write_text(recipe_of("quantize", given, result))
    assert run(["quantize", "--recipe", f"{tmp_path}/again.toml", "-o", f"{tmp_path}/again"]) == 0


@pytest.mark.parametrize(
    "options", [("--fastest-batch", "8"), ("--min-sqnr", "30"), ("--timings", "x.json")]
)
def test_options_of_fastest_are_refused_without_it(
    options: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = quantize(tmp_path, capsys, *options)
    assert f"{options[0]} is for --fastest" in said
    assert not (tmp_path / "out").exists()


def test_a_damaged_cache_is_ignored_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timings = tmp_path / "timings.json"
    timings.write_text("{")
    found = quantize(tmp_path, capsys, "--fastest", "--threads", "1", "--timings", str(timings))
    if found["fastest"]["milliseconds"]:
        assert "was ignored and is replaced" in found["fastest"]["note"]
