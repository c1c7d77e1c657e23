"""Shortens commands that name very many nodes: the names go into a recipe file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intact._files import write_whole
from intact.errors import OutputError
from intact.recipe.file import HEAD, recipe_text

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding

_LONGEST = 500
"""Characters of a command that is printed as it is: a few lines of a terminal."""
_FLAG = "--keep-float"
_ABOUT = HEAD.decode() + "{command} --recipe` with this file keeps these nodes in float.\n"


def printed(words: Sequence[str], folder: Path | None, cause: str) -> str:
    """Return a command to paste; the nodes that it keeps in float are put in a file if it is long.

    Args:
        words: The words of the command, ``intact`` first.
        folder: The result's; the file lies beside it. None for a result in memory.
        cause: Why, for the name of the file.

    Returns:
        The command as it is where it is short, reads another recipe, or no file can be written.
    """
    whole = shlex.join(words)
    names, others = _without_names(words)
    if len(whole) <= _LONGEST or not names or folder is None:
        return whole
    # `.` and `..` have no name after which the file could be called.
    place = folder if folder.name not in ("", "..") else folder.resolve()
    if not place.name:  # the root of the file system
        return whole
    path = place.with_name(f"{place.name}.{cause}.toml")
    # The file lies outside of the result, among the user's own: only an earlier one is overwritten.
    is_free = not path.exists() or _is_ours(path)
    if not is_free or any(word.split("=")[0] == "--recipe" for word in others):
        return whole
    text = _ABOUT.format(command=others[1]) + recipe_text(others[1], {"keep_float": names})
    try:
        write_whole(path, text.encode())
    except OutputError:
        return whole
    return shlex.join([*others[:2], "--recipe", str(path), *others[2:]])


def remedy_of(finding: Finding, folder: Path | None) -> str:
    """Return the remedy of a finding on the result in a folder, as a terminal shows it."""
    remedy = finding.remedy
    if not remedy.startswith("intact "):
        return remedy
    return printed(shlex.split(remedy), folder, finding.cause)


def _without_names(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide a command into what it keeps in float and all else."""
    names: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == _FLAG:
            names.append(next(rest, ""))
        elif word.startswith(f"{_FLAG}="):
            names.append(word.removeprefix(f"{_FLAG}="))
        else:
            others.append(word)
    return names, others


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(HEAD)) == HEAD
    except OSError:  # a folder, or nobody may read it
        return False
