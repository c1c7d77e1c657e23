"""Loops as machine code: compiled once, loaded without numba, and never damaged."""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from intact.numerics import native
from intact.numerics.histogram_kernel import flush_tensors
from intact.numerics.native import Kernels

LOOPS = """
import sys

import numpy as np

from intact.numerics.native import Kernels

KERNELS = Kernels(__name__)
SHIFT = 0.5


@KERNELS.inner
def _shifted(value):
    return value + SHIFT


@KERNELS.entry("float64(float64[:,:], int64, float32)")
def total(values, start, factor):
    result = 0.0
    for row in range(start, values.shape[0]):
        for column in range(values.shape[1]):
            result += _shifted(values[row, column]) * factor
    return result


@KERNELS.entry("void(int64[:])")
def negate(values):
    for index in range(values.shape[0]):
        values[index] = -values[index]


numbers = np.arange(3)
negate(numbers)
print(total(np.arange(6.0).reshape(2, 3), 1, 2.0), *numbers, "numba" in sys.modules)
"""
ANSWER = ["27.0", "0", "-1", "-2"]

ALLOCATING = """
import numpy as np

from intact.numerics.native import Kernels

KERNELS = Kernels(__name__)


@KERNELS.entry("int64(int64)")
def length(size):
    return np.zeros(size).size
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    return folder


def run_loops(folder: Path) -> list[str]:
    """Import the loops in a process of their own, which calls them."""
    (folder / "loops.py").write_text(LOOPS)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); import loops"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_loops_are_compiled_once(tmp_path: Path, cache: Path) -> None:
    assert run_loops(tmp_path) == [*ANSWER, "True"]
    (file,) = cache.iterdir()
    assert file.suffix == ".native"
    assert run_loops(tmp_path) == [*ANSWER, "False"]


class Compiler(Kernels):
    """Counts how often it would compile."""

    compiled = 0

    def _compile(self) -> bytes:
        self.compiled += 1
        return b"machine code"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Make the loops of a module that nobody else has compiled."""
    (tmp_path / "own.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    importlib.import_module("own")
    return Compiler("own")


def test_damaged_file_is_compiled_again(kernels: Compiler, cache: Path) -> None:
    assert kernels.object_file() == kernels.object_file() == b"machine code"
    assert kernels.compiled == 1
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert kernels.object_file() == kernels.object_file() == b"machine code"
    assert kernels.compiled == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there are no owners in numbers")
@pytest.mark.parametrize("how", ["another user", "group", "everybody", "link", "pipe"])
def test_code_that_others_may_have_written_is_not_run(
    how: str, kernels: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.object_file()
    (file,) = cache.iterdir()
    user = os.geteuid()
    if how == "another user":
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        monkeypatch.setattr(native, "_owner_of_the_code", lambda: user + 1)
    elif how == "link":
        file.symlink_to(file.rename(cache / "elsewhere"))
    elif how == "pipe":
        file.unlink()
        os.mkfifo(file)
    else:
        file.chmod({"group": 0o664, "everybody": 0o666}[how])
    assert kernels.object_file() == b"machine code"
    assert kernels.compiled == 2
    assert stat.S_IMODE(file.lstat().st_mode) == 0o644
    assert file.is_file()
    assert not file.is_symlink()


def test_a_cache_is_not_looked_for_in_the_working_directory(
    kernels: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "cache")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert [*kernels._folders()] == [tmp_path / "__pycache__", tmp_path / "home/.cache/intact"]


def test_other_folder_is_taken_where_the_first_cannot_be_written(
    tmp_path: Path, cache: Path, kernels: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file, and no folder")
    if (tmp_path / "__pycache__").is_dir():
        shutil.rmtree(tmp_path / "__pycache__")
    (tmp_path / "__pycache__").write_text("a file, and no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert kernels.object_file() == kernels.object_file() == b"machine code"
    assert kernels.compiled == 1
    assert len(list((tmp_path / "home" / "intact").iterdir())) == 1


def test_loops_that_allocate_are_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "allocating.py").write_text(ALLOCATING)
    monkeypatch.syspath_prepend(tmp_path)
    import allocating  # type: ignore[import-not-found]

    with pytest.raises(RuntimeError, match="numba's runtime"):
        allocating.length(3)
    assert not cache.exists()


@pytest.mark.parametrize(
    "touched",
    [np.zeros((1, 2)), np.zeros(2, np.int32), np.zeros((2, 2), np.int32).T],
    ids=["type", "rank", "layout"],
)
def test_wrong_array_is_refused(touched: np.ndarray) -> None:
    tables, counts = np.zeros((1, 4, 65536), np.uint32), np.zeros((1, 65536), np.int64)
    with pytest.raises(TypeError, match="flush_tensors takes int32 of 2 dimensions"):
        flush_tensors(tables, counts, touched)


def test_kernels_keep_the_functions_documentation() -> None:
    assert "Move the tables" in str(flush_tensors.__doc__)
