"""numba's pickles are read from folders that nobody else can write into."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from intact.numerics.loop_cache import is_private

pytestmark = pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")


@pytest.mark.parametrize(
    ("mode", "private"), [(0o700, True), (0o755, True), (0o770, False), (0o777, False)]
)
def test_a_folder_is_private_if_nobody_else_writes_there(
    mode: int, private: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    assert is_private(folder) == private


def test_a_folder_that_is_not_there_is_made_for_this_user_alone(tmp_path: Path) -> None:
    assert is_private(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700


def test_folders_of_others_and_relative_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_private(Path("cache"))
    assert not is_private(Path("/dev/null"))
    user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: user + 1)
    assert not is_private(tmp_path)


@pytest.mark.parametrize(("mode", "kind"), [(0o700, "FunctionCache"), (0o777, "NullCache")])
def test_loops_are_kept_where_the_folder_is_private(mode: int, kind: str, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    code = "from intact.numerics.fused import fused_float32 as f; print(type(f._cache).__name__)"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == kind
    assert ("compiled anew" in found.stderr) == (kind == "NullCache")
