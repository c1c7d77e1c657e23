"""A result folder that came from others: reading it changes no file, there or elsewhere.

The folder carries what an exchange that was killed leaves, with links to the user's own folders.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

import intact
from intact import demo
from intact.cli import run
from intact.errors import OutputError
from intact.results import exchange as replacement
from intact.results.folder import check_output
from intact.results.result import Result, save_several
from tests.command_lines import refused

HEAD = '{"intact-plan": 1}'
VICTIMS = ("victim", "victim2")
LINKS = {"next": "victim", "previous": "victim2", "ready": "victim", "coming": "victim"}
DATA = str(demo.calibration_path())
Snapshot = dict[str, tuple[object, ...]]


def snapshot(folder: Path) -> Snapshot:
    """Every path below a folder, with all that a command could change of it."""
    found: Snapshot = {}
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path)] = (facts.st_mode, facts.st_ino, facts.st_mtime_ns, content)
    return found


def staging(place: Path, name: str, links: tuple[str, ...] = (), /, **parts: list[str]) -> None:
    """Leave a staging folder as an archive may carry it: parts with files, or links to victims."""
    folder = place / name
    folder.mkdir(mode=0o700)
    (folder / "lock").touch()
    root = place if (place / "victim").exists() else place.parent
    for link in links:
        (folder / link).symlink_to(os.path.relpath(root / LINKS[link], folder))
    for part, names in parts.items():
        (folder / part).mkdir()
        for each in names:
            (folder / part / each).write_text(HEAD)


def plant(result: Path) -> None:
    """Put what could be acted on into a result's folder and beside it."""
    for place, name in ((result, ".intact"), (result.parent, f".{result.name}")):
        staging(place, f"{name}.aaaaaaaa", ("next", "previous"))
        (place / f"{name}.aaaaaaaa" / "journal").write_text(json.dumps({"moves": ["plan.json"]}))
        staging(place, f"{name}.bbbbbbbb", ("coming",))
        staging(place, f"{name}.cccccccc", ("ready", "previous"))
        staging(place, f"{name}.dddddddd", ready=["notes.txt"], previous=["weights.npz"])
        staging(place, f"{name}.eeeeeeee", coming=["weights.npz", "notes.txt"])
        staging(place, f"{name}.ffffffff")
        (place / f"{name}.ffffffff" / "lock").unlink()
        (place / f"{name}.ffffffff" / "lock").symlink_to(result.parent / "victim" / "new")


def victims(place: Path) -> None:
    """Make folders of the user's that look like results, and hold more."""
    for name in VICTIMS:
        (place / name / "sub").mkdir(parents=True)
        for each in ("plan.json", "model.onnx", "notes.txt", "sub/plan.json"):
            (place / name / each).write_text(HEAD)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A result of the demo's model."""
    folder = tmp_path_factory.mktemp("made") / "res"
    return intact.quantize(
        demo.model_path(), DATA, samples=8, method="minmax", preset="fast", output=folder
    )


@pytest.fixture(scope="module")
def place(made: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which an archive was unpacked: nothing of it may change."""
    place = tmp_path_factory.mktemp("unpacked")
    victims(place)
    made.save(place / "res")
    save_several({"one": made, "two": made}, place / "several")
    plant(place / "res")
    plant(place / "several")
    return place


READING = {
    "inspect": ("inspect", "res"),
    "evaluate": ("evaluate", "res", "-d", DATA, "--samples", "8"),
    "layers": ("evaluate", "res", "-d", DATA, "--samples", "8", "--quant-loss"),
    "diagnose": ("diagnose", "res", "--no-layers"),
    "compare": ("compare", "res", "res/plan.json"),
    "report": ("report", "res", "-o", "{out}/page.html"),
    "export": ("export", "res", "--format", "onnx_qdq", "-o", "{out}/exported"),
    "run": ("run", "res", "-d", DATA, "-o", "{out}/outputs.npz"),
    "verify": ("verify", "res", "-d", DATA, "--samples", "8"),
    "quantize": ("quantize", "res", "-d", DATA, "-o", "{out}/quantized"),
    "import": ("import", "res/model.int8.onnx", "-o", "{out}/imported"),
    "search": ("search", "res", "-d", DATA, "-o", "{out}/searched"),
    "several": ("evaluate", "several", "-d", DATA, "--samples", "8"),
    "verify several": ("verify", "several", "-d", DATA, "--samples", "8"),
}
REFUSED = {"quantize", "search", "several", "verify several"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", READING)
def test_a_command_that_reads_it_changes_nothing(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = snapshot(place)
    code = run([word.format(out=tmp_path) for word in READING[name]])
    assert snapshot(place) == before
    assert code == (2 if name in REFUSED else 0)


@pytest.mark.slow
def test_training_changes_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(place)
    before = snapshot(place)
    line = ["train", "res", "-d", DATA, "--samples", "16", "--epochs", "1"]
    assert run([*line, "-o", str(tmp_path / "trained")]) == 0
    assert snapshot(place) == before


def test_a_reader_of_python_changes_nothing(place: Path) -> None:
    before = snapshot(place)
    intact.load_result(place / "res")
    assert snapshot(place) == before


@pytest.mark.parametrize("command", ["inspect", "evaluate", "verify", "diagnose", "compare"])
def test_an_exchange_that_was_not_finished_is_said_and_left(
    command: str, made: Result, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "res"
    made.save(folder)
    staging(folder, ".intact.aaaaaaaa", coming=[])
    (folder / "plan.json").rename(folder / ".intact.aaaaaaaa" / "coming" / "plan.json")
    before = snapshot(tmp_path)
    others = {"compare": [str(folder)], "evaluate": ["-d", DATA], "verify": ["-d", DATA]}
    said = refused(capfd, command, str(folder), *others.get(command, ()))
    assert "the exchange of its files was not finished; write it again" in said
    assert snapshot(tmp_path) == before
    check_output(folder)  # as what writes there does first
    assert Result.load(folder).plan.graph.hash == made.plan.graph.hash


def test_writing_into_it_is_refused_where_links_are(made: Result, tmp_path: Path) -> None:
    victims(tmp_path)
    folder = tmp_path / "res"
    made.save(folder)
    plant(folder)
    before = {each: snapshot(tmp_path / each) for each in VICTIMS}
    with pytest.raises(OutputError, match=r"did not write \('\.intact\.aaaaaaaa'\)"):
        made.save(folder)
    assert {each: snapshot(tmp_path / each) for each in VICTIMS} == before


def test_writing_beside_links_leaves_what_they_lead_to(made: Result, tmp_path: Path) -> None:
    victims(tmp_path)
    folder = tmp_path / "res"
    made.save(folder)
    for name, links in (("a", ("next",)), ("b", ("ready", "previous")), ("c", ("coming",))):
        staging(tmp_path, f".res.{name * 8}", links)
    before = snapshot(tmp_path)
    made.save(folder)
    after = snapshot(tmp_path)
    assert set(before) == set(after)
    kept = {path for path in before if "/res" not in path and path != str(tmp_path)}
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}


def other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be another user than the one whose files are there."""
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no users in numbers")
@pytest.mark.parametrize("state", ["next", "ready", "coming"])
def test_what_another_user_left_is_not_touched(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    staging(folder, ".intact.aaaaaaaa", previous=["weights.npz"], **{state: ["plan.json"]})
    staging(tmp_path, ".out.aaaaaaaa", previous=["weights.npz"], **{state: ["plan.json"]})
    before = snapshot(tmp_path)
    with monkeypatch.context() as context:
        other_user(context)
        replacement.recover(folder, lambda _: True)
        assert not replacement.is_staging(folder / ".intact.aaaaaaaa")
    assert snapshot(tmp_path) == before
    replacement.recover(folder, lambda _: True)
    kept = {"next": [], "ready": ["weights.npz"], "coming": ["plan.json"]}[state]
    assert [path.name for path in folder.iterdir()] == kept


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_what_others_may_have_changed_is_not_touched(mode: int, tmp_path: Path) -> None:
    staging(tmp_path, ".out.aaaaaaaa", coming=["plan.json"])
    (tmp_path / ".out.aaaaaaaa").chmod(mode)
    before = snapshot(tmp_path)
    replacement.recover(tmp_path / "out", lambda _: True)
    assert snapshot(tmp_path) == before


def test_finishing_replaces_no_file_that_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "plan.json").write_text("mine")
    staging(tmp_path, ".out.aaaaaaaa", coming=["plan.json", "model.onnx"])
    staging(tmp_path, ".out.bbbbbbbb", ready=["notes.txt", "plan.json"])
    (folder / "notes.txt").write_text("mine")
    replacement.recover(folder, lambda path: path.name != "notes.txt")
    content = {path.name: path.read_text() for path in folder.iterdir()}
    assert content == {"plan.json": "mine", "notes.txt": "mine"}
