"""A disk that fills while a result is written: one line, nothing half-written, the old one kept.

The limit on the size of a file makes the system refuse writes as a full disk does, at any byte;
what a full disk says itself (ENOSPC) is simulated.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intact import api, demo
from intact.errors import OutputError
from intact.graph import save_model
from intact.results.result import Result

LIMITED = """
import resource, sys
from intact.cli import run
from intact.results.result import Result
save = Result.save
def limited(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
    save(*arguments)
Result.save = limited
sys.exit(run(sys.argv[2:]))
"""
"""The command line, limited from where it saves: compiled code is cached in files before."""


@pytest.fixture(scope="module")
def result() -> Result:
    """A result in memory."""
    return api.quantize(demo.model_path(), demo.calibration_path(), samples=8)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with what is in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def quantize_limited(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """Quantize the demo's model from the command line where files end at ``limit`` bytes."""
    files = [str(demo.model_path()), "-d", str(demo.calibration_path())]
    options = ["-o", "out", "--samples", "8", "--method", "minmax"]
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), "quantize", *files, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on the size of files")
@pytest.mark.parametrize(("limit", "kept"), [(100, False), (10_000, True)])
def test_files_that_the_system_cuts_off(
    tmp_path: Path, result: Result, limit: int, kept: bool
) -> None:
    if kept:
        result.save(tmp_path / "out")
    before = content(tmp_path)
    done = quantize_limited(tmp_path, limit)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("intact: cannot write ")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "out") in done.stderr
    assert "File too large" in done.stderr
    assert content(tmp_path) == before


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that leaves so many bytes of room for all files that are opened from now on."""

    def fill(room: int) -> None:
        left = [room]

        def limited(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wx"):
                return _FillingFile(path, left)
            return io.open(path, mode, *arguments, **options)  # noqa: UP020 - not Path.open

        monkeypatch.setattr(Path, "open", limited)

    return fill


class _FillingFile(io.FileIO):
    """A new file that fails as a full disk does when the room that it shares is used up."""

    def __init__(self, path: Path, left: list[int]) -> None:
        super().__init__(str(path), "w")
        self._left = left

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        fits = min(len(view), self._left[0])
        self._left[0] -= fits
        super().write(view[:fits])
        if fits < len(view):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return fits


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kept", [False, True])
def test_no_room_for_a_result(
    tmp_path: Path, result: Result, fill_disk: Callable[[int], None], share: float, kept: bool
) -> None:
    result.save(tmp_path / "out")
    whole = content(tmp_path)
    if not kept:
        shutil.rmtree(tmp_path / "out")
    before = content(tmp_path)
    fill_disk(int(sum(map(len, whole.values())) * share))
    with pytest.raises(
        OutputError, match=r"^cannot write \S+.*: No space left on device; make room there, or name"
    ):
        result.save(tmp_path / "out")
    assert content(tmp_path) == before


def test_room_for_exactly_the_result(
    tmp_path: Path, result: Result, fill_disk: Callable[[int], None]
) -> None:
    result.save(tmp_path / "out")
    fill_disk(sum(map(len, content(tmp_path).values())))
    result.save(tmp_path / "other")
    assert content(tmp_path / "other") == content(tmp_path / "out")


def test_a_model_on_a_disk_that_is_full(
    tmp_path: Path, result: Result, fill_disk: Callable[[int], None]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    fill_disk(100)
    with pytest.raises(OutputError, match=r"model\.onnx': No space left"):
        save_model(result.exported.model, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
