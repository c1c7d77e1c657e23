"""Files of users appear when they are complete, and else stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact._files import appearing, short_name, whole_file, write_whole
from intact.errors import OutputError


class InterruptionError(Exception):
    """What may come from anywhere while a file is written."""


def write_half(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"half")
        raise InterruptionError


def test_file_stays_as_it_was_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_whole(path, b"before")
    with pytest.raises(InterruptionError):
        write_half(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_files_appear_together_and_with_the_hole_at_their_end(tmp_path: Path) -> None:
    paths = (tmp_path / "one", tmp_path / "two")
    with appearing(*paths) as (one, _):
        one.seek(10)
        assert not any(path.exists() for path in paths)
    assert [path.stat().st_size for path in paths] == [10, 0]


@pytest.mark.parametrize("name", ["", "nowhere/file", "a\0b", "folder"])
def test_what_cannot_be_written_is_one_error_that_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / name if name else Path()
    with pytest.raises(OutputError, match="cannot be written"):
        write_whole(path, b"content")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_a_link_is_replaced_and_what_it_leads_to_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "page.html"
    victim.write_bytes(b"mine")
    path.symlink_to(victim)
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    (tmp_path / ".page.html.known.partial").symlink_to(victim)  # as if it could be foreseen
    with pytest.raises(OutputError, match="File exists"):
        write_whole(path, b"page")
    assert path.is_symlink()
    (tmp_path / ".page.html.known.partial").unlink(missing_ok=True)
    write_whole(path, b"page")
    assert path.read_bytes() == b"page"
    assert victim.read_bytes() == b"mine"


def test_long_names_are_bounded_and_stay_different() -> None:
    names = ["n" * 250 + end for end in "ab"]
    assert len({short_name(name) for name in names}) == 2
    assert all(len(short_name(name)) < 200 for name in names)
    assert short_name("short") == "short"
