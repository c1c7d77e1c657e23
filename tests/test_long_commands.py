"""Commands that keep very many nodes in float are short on a terminal, and work when pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from intact.cli import long_commands
from intact.cli.long_commands import printed
from intact.demo import calibration_path, model_path
from intact.recipe.file import read_recipe
from intact.recipe.options import QuantizeCommand
from intact.results.result import Result
from tests.command_lines import Say

MANY = [f"/a long/name of 'a' block/{number}" for number in range(40)]


def words_of(names: list[str], *others: str) -> list[str]:
    return ["intact", "quantize", "m.onnx", *[f"--keep-float={name}" for name in names], *others]


def test_short_command_is_printed_as_it_is(tmp_path: Path) -> None:
    words = words_of(MANY[:3], "--data", "x y.npz")
    assert printed(words, tmp_path / "out", "rounding") == shlex.join(words)
    assert not list(tmp_path.iterdir())


def test_names_of_a_long_command_go_to_a_recipe_beside_the_result(tmp_path: Path) -> None:
    words = words_of(MANY, "--keep-float", "Add", "--output", "mended")
    text = printed(words, tmp_path / "out", "rounding")
    path = tmp_path / "out.rounding.toml"
    assert shlex.split(text) == [
        *("intact", "quantize", "--recipe", str(path), "m.onnx", "--output", "mended")
    ]
    assert read_recipe(path, "quantize", QuantizeCommand) == {"keep_float": (*MANY, "Add")}
    assert printed(words, tmp_path / "out", "rounding") == text  # an earlier file is replaced


def test_files_and_recipes_of_users_stay(tmp_path: Path) -> None:
    (tmp_path / "out.rounding.toml").write_text("# mine\n")
    words = words_of(MANY)
    assert printed(words, tmp_path / "out", "rounding") == shlex.join(words)
    assert (tmp_path / "out.rounding.toml").read_text() == "# mine\n"
    words = words_of(MANY, "--recipe=mine.toml")
    assert printed(words, tmp_path / "out", "other") == shlex.join(words)
    assert printed(words_of(MANY), tmp_path / "none" / "out", "x") == shlex.join(words_of(MANY))
    assert printed(words_of(MANY), None, "x") == shlex.join(words_of(MANY))


@pytest.mark.parametrize("folder", [".", "inner/.."])
def test_a_result_in_the_present_folder_has_its_name(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "result"
    (place / "inner").mkdir(parents=True)
    monkeypatch.chdir(place)
    text = printed(words_of(MANY), Path(folder), "rounding")
    assert shlex.split(text)[3] == str(tmp_path / "result.rounding.toml")
    assert printed(words_of(MANY), Path("/"), "x") == shlex.join(words_of(MANY))


def test_a_folder_of_that_name_stays(tmp_path: Path) -> None:
    (tmp_path / "out.rounding.toml").mkdir()
    words = words_of(MANY)
    assert printed(words, tmp_path / "out", "rounding") == shlex.join(words)


def test_pasted_command_keeps_the_nodes_in_float(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_commands, "_LONGEST", 50)
    given = ["quantize", str(model_path()), "--data", str(calibration_path()), "--preset", "fast"]
    words = ["intact", *given, "--keep-float=Gemm", "--output", str(tmp_path / "mended")]
    text = printed(words, tmp_path / "out", "keep-float")
    assert "--keep-float" not in text
    say(*shlex.split(text)[1:])
    plan = Result.load(tmp_path / "mended").plan
    kept = {node.op_type for node in plan.graph.nodes if not plan.is_quantized(node)}
    assert "Gemm" in kept
