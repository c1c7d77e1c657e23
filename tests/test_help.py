"""Short help shows what is needed first, and --help-all everything."""

from __future__ import annotations

import pytest

from intact.cli import run
from intact.recipe.commands import RECIPES, flags_of
from intact.recipe.declare import options_of

LONG = sorted(name for name, recipe in RECIPES.items() if recipe.first)
MOST_LINES, MOST_OPTIONS, FEW_OPTIONS = 56, 16, 18


def shown(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(arguments) == 0
    return capfd.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", sorted(RECIPES))
def test_what_is_shown_first_exists(command: str) -> None:
    first, options = RECIPES[command].first, options_of(RECIPES[command])
    assert len(set(first)) == len(first) <= MOST_OPTIONS
    assert all(options[name].flag for name in first)
    required = {name for name, each in options.items() if each.required and each.flag}
    assert bool(first) == (len(flags_of(RECIPES[command])) > FEW_OPTIONS)
    assert not first or required <= set(first)


@pytest.mark.parametrize("command", LONG)
def test_short_help_is_short_and_names_the_long_one(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capfd, command, "--help")
    assert lines[-1] == f"`intact {command} --help-all` shows all options."
    assert len(lines) < MOST_LINES
    options = options_of(RECIPES[command])
    text = "\n".join(lines)
    for name in RECIPES[command].first:
        assert f"{options[name].flag} " in text
    assert "--help  " in text


@pytest.mark.parametrize("command", LONG)
def test_long_help_shows_every_flag_in_groups(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(shown(capfd, command, "--help-all"))
    assert all(flag in text for flag in flags_of(RECIPES[command]))
    assert {each.section for each in options_of(RECIPES[command]).values() if each.flag} <= {
        "",
        *(line.removesuffix(":") for line in text.splitlines()),
    }
    assert "shows all options." not in text


@pytest.mark.parametrize("command", ["export", "convert-ranges", "demo"])
def test_help_of_few_options_is_whole(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    lines = shown(capfd, command, "--help")
    assert shown(capfd, command, "--help-all") == lines
    assert "help-all" not in "\n".join(lines)


def test_a_help_text_is_cut_behind_its_first_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    text = " ".join(" ".join(shown(capfd, "quantize", "--help")).split())
    assert "yields dicts of arrays. -o, --output" in text
    assert "[default: 512]" in text
