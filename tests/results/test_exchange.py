"""A result's folder holds the old or the new, whole, wherever the process is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from intact.errors import OutputError
from intact.results import exchange as replacement
from intact.results.exchange import is_staging, probe, recover, replacing
from tests.results.killing import NEW, OLD, content_of, fill, is_own, replace, several

ROOT = Path(__file__).resolve().parents[2]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")


def swaps(folder: Path) -> bool:
    """Tell whether two folders can be exchanged in one step here."""
    one, other = folder / "one", folder / "other"
    one.mkdir()
    other.mkdir()
    return replacement._swap(one, other)


@pytest.mark.sampled(4)
@FORKS
@pytest.mark.parametrize(
    "scenario",
    [
        "absent:swap",
        "one:swap",
        "several:swap",
        "one-by-several:swap",
        "one:moves",
        "several:moves",
        "one-by-several:moves",
        "one:workdir",
        "one:inside",
        "several:inside",
    ],
)
def test_a_killed_exchange_leaves_the_old_or_the_new(tmp_path: Path, scenario: str) -> None:
    if scenario.endswith(":swap") and not swaps(tmp_path):
        pytest.skip("this file system exchanges no folders")
    (tmp_path / "place").mkdir()
    line = [
        sys.executable,
        "-m",
        "tests.results.killing",
        scenario,
        str(tmp_path / "place" / "out"),
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 10  # it was killed so often


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with replacing(folder, is_own) as slow:
        fill(slow, OLD)
        replace(folder, NEW)
        recover(folder, is_own)
        assert content_of(folder) == NEW
    assert content_of(folder) == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_of_250_bytes_is_written(tmp_path: Path) -> None:
    folders = [tmp_path / ("\N{GREEK SMALL LETTER ALPHA}" * 124 + end) for end in ("xy", "yx")]
    for folder in folders:
        probe(folder)
        replace(folder, OLD)
        replace(folder, NEW)
    assert sorted(tmp_path.iterdir()) == sorted(folders)


def test_what_came_between_check_and_exchange_stays(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    replace(folder, OLD)
    with replacing(folder, is_own) as new:
        fill(new, NEW)
        (folder / "notes.txt").write_text("mine")
    assert content_of(folder) == {**NEW, "notes.txt": "mine"}


def test_what_comes_in_the_moment_of_the_exchange_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swaps(tmp_path):
        pytest.skip("this file system exchanges no folders")
    folder = tmp_path / "place" / "out"
    replace(folder, OLD)
    swap, rename = replacement._swap, Path.rename

    def late(one: Path, other: Path) -> bool:
        (folder / "notes.txt").write_text("mine")
        return swap(one, other)

    def full(path: Path, goal: Path) -> Path:
        if path.name == "notes.txt":
            raise OSError(28, "No space left on device")
        return rename(path, goal)

    with monkeypatch.context() as broken:
        broken.setattr(replacement, "_swap", late)
        broken.setattr(Path, "rename", full)
        with pytest.raises(OutputError, match="No space left"):
            replace(folder, NEW)
    assert content_of(folder) == NEW
    recover(folder, is_own)
    assert content_of(folder) == {**NEW, "notes.txt": "mine"}
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_a_folder_of_others_in_the_way_stays_and_the_old_result_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    replace(folder, OLD)

    def write() -> None:
        with replacing(folder, is_own) as new:
            fill(new, several(NEW, "a", "b"))
            fill(folder, {"b/notes.txt": "mine"})

    with pytest.raises(OutputError, match="files of others are in the way"):
        write()
    assert content_of(folder) == {**OLD, "b/notes.txt": "mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    replace(folder, OLD)
    folder.chmod(0o750)
    replace(folder, NEW)
    assert folder.stat().st_mode & 0o777 == 0o750


def test_the_working_directory_stays_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    replace(folder, OLD)
    monkeypatch.chdir(folder)
    replace(folder, NEW)
    assert (Path.cwd() / "plan.json").read_text() == NEW["plan.json"]


def test_folders_of_others_are_no_litter(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for name in (".out.mine", ".out.precious", ".other.abcd_123"):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "precious").write_text("mine")
    replace(folder, NEW)
    assert {path.name for path in tmp_path.iterdir()} == {
        "out",
        ".out.mine",
        ".out.precious",
        ".other.abcd_123",
    }
    assert not is_staging(tmp_path / ".out.precious")


def test_where_files_cannot_be_locked_young_litter_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_descriptor: int, *, inherited: bool) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(replacement, "lock", refused)
    litter = tmp_path / ".out.abcd_123"
    (litter / "next").mkdir(parents=True)
    litter.chmod(0o700)
    recover(tmp_path / "out", is_own)
    assert litter.is_dir()
    long_ago = litter.stat().st_mtime - 7200
    os.utime(litter, (long_ago, long_ago))
    (litter / "lock").unlink()
    os.utime(litter, (long_ago, long_ago))
    recover(tmp_path / "out", is_own)
    assert not litter.exists()
