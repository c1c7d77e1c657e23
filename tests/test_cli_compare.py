"""`intact compare` prints what differs: as tables, as JSON, as a page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import intact
from tests.command_lines import Say, refused
from tests.reports import EVIL, evil_model, samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two results of a model with odd names, and its data."""
    folder = tmp_path_factory.mktemp("compare")
    for name, bits in (("one", 8), ("[bold]two", 4)):
        intact.quantize(
            evil_model(), samples(), weight_bits=bits, preset="fast", output=folder / name
        )
    labels = np.arange(16) % 8
    np.savez(folder / "test.npz", image=samples(), labels=labels)
    return folder


def results(folder: Path) -> tuple[str, str]:
    return str(folder / "one"), str(folder / "[bold]two")


def test_tables_name_what_differs(folder: Path, say: Say) -> None:
    text = say("compare", *results(folder), "--data", str(folder / "test.npz"))
    for part in ("[bold]two", "8 bits", "4 bits", "top-1 against one", "SQNR of layers", EVIL[:20]):
        assert part in text
    assert "drawn" not in text


def test_without_data_inputs_are_drawn_and_that_is_said(folder: Path, say: Say) -> None:
    text = say("compare", *results(folder))
    assert "inputs are drawn from what calibration saw: give --data" in text
    assert "SQNR of layers" in text
    assert "top-1" not in text
    assert "SQNR" not in say("compare", *results(folder), "--no-errors")


def test_rows_are_few_unless_all_are_asked_for(
    folder: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intact.cli.show_comparison._MOST_ROWS", 1)
    short, whole = (
        say("compare", *results(folder), "--no-errors", *flags) for flags in ((), ("--all",))
    )
    assert "more rows: --all shows them" in short
    assert "more rows" not in whole
    assert len(short) < len(whole)


def test_json_has_everything(folder: Path, say: Say) -> None:
    found = json.loads(say("compare", *results(folder), "--json"))
    assert [each["name"] for each in found["results"]] == ["one", "[bold]two"]
    assert {each["name"] for each in found["nodes"]} >= {"pool", "flatten"}
    assert found["counts"]["bits"] == 2
    assert found["results"][0]["errors"]["layers"]
    assert sum(phase["seconds"] for phase in found["phases"]) > 0


def test_the_page_holds_names_as_text_alone_and_is_the_same_each_time(
    folder: Path, tmp_path: Path, say: Say
) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        path = tmp_path / name
        assert str(path) in say("compare", *results(folder), "--output", str(path))
        pages.append(path.read_bytes())
    assert pages[0] == pages[1]
    text = pages[0].decode()
    assert text.startswith("<!doctype html>")
    assert "document.title = 'broken'</script>" not in text
    assert text.count("<script") == 2  # the figures and the page's own
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert json.loads(say("compare", *results(folder), "--output", str(path), "--json"))["page"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["one"], 2, "1 result to compare; name the folders of two or more results"),
        (["one", "none"], 2, "none does not exist; did you mean 'one'?"),
        (["one", "[bold]two", "--data", "none.npz"], 2, "none.npz: no such file"),
        (["one", "[bold]two", "--output", "none/page.html"], 2, "there is no folder none"),
        (["one", "[bold]two", "--output", "one"], 2, "is a folder; name a file"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(
    arguments: list[str],
    code: int,
    said: str,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert said in refused(capfd, "compare", *arguments, code=code)
    assert sorted(folder.iterdir()) == before


def test_a_missing_folder_is_named_in_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    assert "FOLDER is missing; see `intact compare --help`" in refused(capfd, "compare", code=2)
