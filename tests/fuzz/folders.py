"""Result folders as others may send them: what an exchange leaves, with links to files of users.

A file lists what lies in a folder and beside it, as JSON; each case lays it out anew. To read such
a folder changes nothing, and to write it nothing outside of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutate.text import mutate_text
from tests.fuzz.mutate.tree import mutate_json

_OWN = "mine"
"""The user's folder, beside the result."""
_RESULT = "result"
_PARTS = ("next", "ready", "coming", "previous", "lock", "journal", "plan.json")
_LINKS = ("../../mine", "../../../mine", "../mine", "/", ".", "..", "lock", "/dev/zero", "nothing")
_PLACES = ("result/.intact.aaaaaaaa", ".result.aaaaaaaa", "result/.intact.b", "result", ".result.x")
_MODES = (0o700, 0o755, 0o000, 0o500)
_NAMES = ("plan.json", "model.onnx", "weights.npz", "notes.txt", ".hidden", "sub")


def seeds(_folder: Path) -> list[bytes]:
    """What processes leave that were killed in each state, and an exchange with links."""
    parts = (("next",), ("ready", "previous"), ("coming", "previous"), ("ready",))
    found = []
    for place in _PLACES[:2]:
        for names in parts:
            entries = [[place, "folder", 0o700], [f"{place}/lock", "file", ""]]
            entries += [[f"{place}/{name}", "folder", 0o700] for name in names]
            entries += [[f"{place}/{name}/plan.json", "file", "{}"] for name in names]
            found.append(entries)
        links = [[f"{place}/{name}", "link", "../../mine"] for name in ("next", "previous")]
        found.append([[place, "folder", 0o700], *links, [f"{place}/lock", "file", ""]])
    return [json.dumps(entries).encode() for entries in found]


def mutate(data: bytes, other: bytes, random: Random) -> bytes:
    """Add and change entries; see `mutate_bytes` for the arguments."""
    if random.random() < 0.2:
        return (mutate_text if random.random() < 0.3 else mutate_json)(data, other, random)
    entries = json.loads(data)
    for _ in range(random.randint(1, 4)):
        place = random.choice(_PLACES)
        path = "/".join((place, *random.choices((*_PARTS, *_NAMES), k=random.randint(0, 2))))
        kind = random.choice(("file", "folder", "link", "link", "pipe"))
        value: Any = {"folder": random.choice(_MODES), "link": random.choice(_LINKS)}.get(
            kind, "{}"
        )
        if entries and random.random() < 0.5:
            entries[random.randrange(len(entries))] = [path, kind, value]
        else:
            entries.insert(random.randint(0, len(entries)), [path, kind, value])
    return json.dumps(
        [*entries, *random.choices(json.loads(other), k=random.randint(0, 2))]
    ).encode()


def feed(path: Path) -> None:
    """Lay the folder out, read it, and write it.

    Raises:
        AssertionError: A reader changed something, or a writer something of the user's.
    """
    from intact.errors import IntactError
    from intact.results.exchange import replacing
    from intact.results.result import Result

    root = path.parent / "laid"
    _cleared(root)
    try:
        _lay_out(root, path.read_bytes())
        before = _listed(root)
        with contextlib.suppress(IntactError):
            Result.load(root / _RESULT)
        assert _listed(root) == before, "a reader changed the folder"
        mine = _listed(root / _OWN)
        with (
            contextlib.suppress(IntactError),
            replacing(root / _RESULT, lambda each: each.name in _NAMES[:3]) as new,
        ):
            (new / "plan.json").write_text("new")
        assert _listed(root / _OWN) == mine, "what is not the result's was changed"
    finally:
        _cleared(root)


def _lay_out(root: Path, data: bytes) -> None:
    (root / _OWN / "sub").mkdir(parents=True)
    (root / _RESULT).mkdir()
    for name in ("plan.json", "model.onnx", "notes.txt"):
        (root / _OWN / name).write_text("mine")
    for path, kind, value in _entries(data):
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            place = root / path
            parts = Path(path).parts
            if not parts or ".." in parts or not parts[0].strip(".").startswith(_RESULT):
                continue  # others send their own files only
            above = [each for each in place.parents if each.is_relative_to(root)]
            if any(each.is_symlink() for each in above) or (
                kind != "folder" and os.path.lexists(place)
            ):
                continue  # nothing is written through a link or into a pipe
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                place.mkdir(exist_ok=True)
                place.chmod(value & 0o777)
            elif kind == "link":
                place.symlink_to(value)
            elif kind == "pipe":
                os.mkfifo(place)
            else:
                place.write_text(value)


def _entries(data: bytes) -> Iterator[tuple[str, str, Any]]:
    """Yield what is well formed: the list is ours, and no file that is read."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    for each in found if isinstance(found, list) else ():
        match each:
            case [str(path), "folder", int(value)]:
                yield path, "folder", value
            case [str(path), str(kind), str(value)] if kind != "folder":
                yield path, kind, value


def _listed(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every path below a folder, with what could be changed of it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return found


def _cleared(root: Path) -> None:
    for place, _, _ in os.walk(root):
        Path(place).chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)
