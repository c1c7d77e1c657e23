"""Measured times are kept; a file that is damaged, or not ours, is ignored and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.placement.cache import KnownChoice, PieceTime, TimingCache, default_path
from intact.placement.pieces import Line


def _filled(path: Path) -> TimingCache:
    cache = TimingCache(path)
    cache.pieces["a"] = PieceTime(1e-3, 5e-4, 64)
    cache.conversions["b"] = (Line(1e-6, 1e-9), Line(2e-6, 2e-9))
    cache.choices["c"] = KnownChoice(("conv",), (1.0, 2.0, 0.5), 0.6)
    assert cache.save() == ""
    return cache


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "timings.json"
    written, read = _filled(path), TimingCache(path)
    assert not read.damage
    assert (read.pieces, read.conversions, read.choices) == (
        written.pieces,
        written.conversions,
        written.choices,
    )
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format":2}',
        b'{"format":1,"pieces":{"a":{"in_float":-1,"in_integers":0}}}',
        b'{"format":1,"pieces":{"a":{"in_float":1e999,"in_integers":0}}}',
        b'{"format":1,"choices":{"a":{"kept_float":[1],"milliseconds":[1,1,1]}}}',
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "timings.json"
    path.write_bytes(content)
    cache = TimingCache(path)
    assert cache.damage
    assert not cache.pieces
    _filled(path)
    assert not TimingCache(path).damage


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = TimingCache(tmp_path / "file" / "timings.json")
    assert "file" in cache.save()


def test_a_folder_in_its_place_is_said(tmp_path: Path) -> None:
    assert TimingCache(tmp_path).damage


def test_the_cache_folder_of_the_user_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_path() == Path("/somewhere/intact/timings.json")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert default_path() == Path.home() / ".cache" / "intact" / "timings.json"
