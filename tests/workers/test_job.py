"""Temporary folders of workers go, however their processes end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from intact.workers.job import new_owner, remove_left, temporary_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")

HOLD = """
import sys, time
from intact.workers.job import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "deep").mkdir()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of other processes
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def held(owner: str) -> subprocess.Popen[str]:
    """Start a process that has a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, owner], stdout=-1, text=True)
    assert process.stdout is not None
    assert Path(process.stdout.readline().strip()).is_dir()
    return process


def test_what_a_killed_process_leaves_is_removed_by_the_next(scratch: Path) -> None:
    other = scratch / "intact-workers-abc"  # of an older version, which does not lock
    other.mkdir()
    process = held(new_owner())
    with temporary_folder(new_owner()) as folder:
        assert len(list(scratch.iterdir())) == 3  # that in use is kept
        process.kill()
        process.wait()
        with temporary_folder(new_owner()):
            pass
        assert {*scratch.iterdir()} == {other, folder}
    assert [*scratch.iterdir()] == [other]


def test_folders_of_other_users_and_links_are_left(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, victim = scratch / "intact-workers-12345678-x", scratch / "victim"
    for folder in (others, victim):
        folder.mkdir()
        (folder / "file").touch()
    (scratch / "intact-workers-87654321-x").symlink_to(victim)
    user = os.geteuid()
    with monkeypatch.context() as context:
        context.setattr(os, "geteuid", lambda: user + 1)
        remove_left("00000000")
    assert (others / "file").exists()
    remove_left("00000000")
    assert not others.exists()
    assert (victim / "file").exists()


def test_processes_that_end_are_waited_for(scratch: Path) -> None:
    owner = new_owner()
    process = held(owner)
    with temporary_folder(new_owner()) as others:
        began = time.monotonic()
        process.kill()
        remove_left(owner)
        assert [*scratch.iterdir()] == [others]
        assert time.monotonic() - began < 4
    process.wait()
