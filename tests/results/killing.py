"""Kills a process before each of its steps on files; run as a program, by `test_replacement`.

    python tests/results/killing.py SCENARIO FOLDER

Steps are what Python's audit events tell: each rename, new folder, removal and opened file, and the
exchange of two folders. A child is forked for each step and kills itself there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from intact.results import exchange as replacement
from intact.results.exchange import recover, replacing

MOVES: tuple[str, ...] = ("os.rename", "intact.swap")
STEPS = (*MOVES, "os.mkdir", "os.rmdir", "os.remove", "open")
HEAD = '{"intact-plan": 1, "made": "%s"}'
Content = Mapping[str, str]

OLD: Content = {"plan.json": HEAD % "old", "model.onnx": "old", "weights.npz": "old"}
NEW: Content = {"plan.json": HEAD % "new", "model.onnx": "new", "recipe.toml": "new"}


def several(content: Content, *targets: str) -> Content:
    """Make a folder that has a result for each target."""
    return {f"{target}/{name}": text for target in targets for name, text in content.items()}


CONTENTS: Mapping[str, tuple[Content, Content]] = {
    "absent": ({}, NEW),
    "one": (OLD, NEW),
    "several": (several(OLD, "a", "b"), several(NEW, "b", "c")),
    "one-by-several": (OLD, several(NEW, "a", "b")),
}


def is_own(path: Path) -> bool:
    """As in results: by name, and folders that have a plan."""
    if path.is_dir():
        return (path / "plan.json").is_file()
    return path.name in {*OLD, *NEW}


def fill(folder: Path, content: Content) -> None:
    """Write files into a folder that is there."""
    for name, text in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def content_of(folder: Path) -> Content:
    """Read all files below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def empty(folder: Path) -> None:
    """Remove all in a folder, which stays."""
    import shutil

    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Do some work in a child that is killed before its step of this number; False if it was not.

    Raises:
        AssertionError: It failed otherwise.
    """
    child = os.fork()
    if not child:
        steps = iter(range(1 << 30))

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            reads = event == "open" and arguments[1] == "r"
            if event in STEPS and not reads and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, f"step {step}: failed"
    return False


def replace(folder: Path, content: Content) -> None:
    """Write a folder anew."""
    with replacing(folder, is_own) as new:
        fill(new, content)


def sweep(folder: Path, old: Content, new: Content, *, is_atomic: bool, twice: bool) -> int:
    """Kill at every step, and in the recovery too; return how many there were."""
    step = 0
    while True:
        if folder.is_dir():
            empty(folder)
        if old:
            folder.mkdir(exist_ok=True)
        elif folder.is_dir() and not twice:
            folder.rmdir()
        fill(folder, old) if old else None
        if not killed_at(step, lambda: replace(folder, new)):
            assert content_of(folder) == new
            assert [path.name for path in folder.parent.iterdir()] == [folder.name]
            return step
        if is_atomic:  # before anything recovers it
            found = content_of(folder) if folder.is_dir() else {}
            assert found in (old, new), f"step {step}: {found}"
        if twice:
            killed_at(step % 23, lambda: recover(folder, is_own))
        recover(folder, is_own)
        found = content_of(folder) if folder.is_dir() else {}
        assert found in (old, new), f"step {step}, recovered: {found}"
        litter = [path.name for path in folder.parent.iterdir() if path != folder]
        assert not litter, f"step {step}: {litter}"
        step += 1


def main() -> None:
    """Run one scenario."""
    contents, way = sys.argv[1].split(":")
    folder = Path(sys.argv[2])
    old, new = CONTENTS[contents]
    if way == "workdir":  # then it must stay the same folder
        folder.mkdir()
        os.chdir(folder)
    elif way == "moves":
        replacement._swap = lambda *_: False
    elif way == "inside":  # as where it is mounted
        replacement._mount_of = lambda folder: folder.stat().st_ino
    steps = sweep(folder, old, new, is_atomic=way == "swap", twice=way != "swap")
    sys.stdout.write(f"steps {steps}\n")


if __name__ == "__main__":
    main()
