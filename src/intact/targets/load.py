"""Finds, reads and checks target files.

Files are untrusted: their size is limited, and they can extend only shipped targets and files in
the same folder. An error is one line with file, key and remedy.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from intact.errors import TargetError, nearest
from intact.graph.files.regular import open_file
from intact.targets.check import check
from intact.targets.explain import to_target
from intact.targets.format_1 import merge_upgraded, upgraded, without_nulls
from intact.targets.merge import Table, complete
from intact.targets.schema import Target
from intact.targets.wording import plain, printable, quoted

if TYPE_CHECKING:
    from importlib import metadata

ENTRY_POINT_GROUP = "intact.targets"
"""Entry points of other packages: each is the path of a TOML file, str or Path."""

_LARGEST_FILE = 1 << 20
_LONGEST_CHAIN = 16
_MOST_DOTS = 64
"""Limit of dots per line. The parser's time and memory grow with the square of a dotted key's
parts: 200 kB take minutes. No key of a target has more than four parts.
"""


class _Source(msgspec.Struct, frozen=True):
    """A file with its name for messages."""

    label: str
    path: Path
    shipped: bool = False


def target_names() -> tuple[str, ...]:
    """List the names of shipped and registered targets, sorted."""
    return tuple(sorted({*_shipped(), *_registered()}))


def is_target_name(name: str) -> bool:
    """Tell whether a shipped or a registered target has that name."""
    return name in _shipped() or name in _registered()


def load_target(name_or_path: str | Path) -> Target:
    """Load a target by name or from a TOML file.

    Args:
        name_or_path: A name of :func:`target_names`, in any case, or a path; a string is a path if
            it ends in ``.toml`` or contains a separator.

    Raises:
        TargetError: If the name is unknown, or the file cannot be read, has an unknown key, a
            wrong type or a contradiction.
    """
    source = _source(name_or_path)
    return _load_shipped(source) if source.shipped else _load(source)


def _load(source: _Source) -> Target:
    table, label = _resolved(source, chain=()), source.label
    return check(to_target(complete(table, label), label), label)


_load_shipped = functools.cache(_load)
"""Advice in an error goes through all targets: files of the package do not change meanwhile."""


def target_source(name_or_path: str | Path) -> str:
    """Return the text of a target's file.

    Raises:
        TargetError: If the name is unknown or the file cannot be read.
    """
    source = _source(name_or_path)
    _read(source)  # the same checks as loading
    return source.path.read_text(encoding="utf-8")


def target_to_json(target: Target) -> dict[str, Any]:
    """Convert a target to plain JSON values for :func:`target_from_json`."""
    result: dict[str, Any] = msgspec.to_builtins(target)
    return result


def target_from_json(data: dict[str, Any]) -> Target:
    """Convert the result of :func:`target_to_json` back to a target.

    Raises:
        TargetError: If the data are not a valid target.
    """
    label = "the stored target"
    table = upgraded(without_nulls(data), label) if data.get("format") == 1 else data
    return check(to_target(table, label), label)


def _source(name_or_path: str | Path) -> _Source:
    text = str(name_or_path)
    if isinstance(name_or_path, str):
        # As it is written first: names of other packages may have capitals.
        if found := _named(text) or _named(text.lower()):
            return found
        if not text.endswith(".toml") and "/" not in text and "\\" not in text:
            raise TargetError(f"unknown target {quoted(text)}", remedy=_remedy(plain(text)))
    return _Source(printable(text), Path(name_or_path))


def _remedy(name: str) -> str:
    """Say what to write for a name that no target has."""
    names = target_names()
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and set(parts) <= set(names):
        return f"give each by itself: {' '.join(f'--target {part}' for part in parts)}"
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    for shipped in _shipped():
        if wanted in load_target(shipped).also_called:
            return f"{shipped!r} is the target for it; see `intact targets`"
    return nearest(name, names, listed_by="intact targets")


def _named(name: str) -> _Source | None:
    if path := _shipped().get(name):
        return _Source(path.name, path, shipped=True)
    entry = _registered().get(name)
    if entry is None:
        return None
    try:
        value = entry.load()
    except Exception as error:  # another package may raise anything on import
        raise TargetError(
            f"target {quoted(name)} is registered as {entry.value}, which fails: {error}",
            remedy="repair or uninstall that package",
        ) from error
    if not isinstance(value, str | Path):
        raise TargetError(
            f"target {quoted(name)} is registered as {entry.value}, which is not a path",
            remedy="register the path of a TOML file",
        )
    return _Source(name, Path(value))


@functools.cache
def _shipped() -> dict[str, Path]:
    folder = Path(str(importlib.resources.files("intact.targets")))
    return {path.stem: path for path in folder.glob("*.toml")}


def _registered() -> dict[str, metadata.EntryPoint]:
    from importlib import metadata  # 0.03 s, for names that are not our own

    return {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _resolved(source: _Source, chain: tuple[_Source, ...]) -> Table:
    """Read a file's table merged over those that it extends."""
    chain = (*chain, source)
    table = _read(source)
    base_name = table.get("extends", "")
    if base_name == "" or not isinstance(base_name, str):
        # A wrong type is reported later with all others.
        return merge_upgraded({}, table, source.label)
    base = _base(base_name, source)
    if base.path.resolve() in {link.path.resolve() for link in chain}:
        links = " -> ".join(link.label for link in (*chain, base))
        raise TargetError(
            f"{source.label}: extends is circular: {links}", remedy="remove one extends"
        )
    # A folder may hold thousands of files of which each extends the next.
    if len(chain) >= _LONGEST_CHAIN:
        raise TargetError(
            f"{source.label}: extends is more than {_LONGEST_CHAIN} files deep",
            remedy="merge some of them",
        )
    below = _resolved(base, chain)
    below.pop("also_called", None)  # these are names of the base
    # Checked alone, so that an error in a base is reported with its file name.
    check(to_target(complete(below, base.label), base.label), base.label)
    # It would be merged in from the base, and two targets would have one name.
    if "name" not in table:
        raise TargetError(f"{source.label}: key 'name' is missing", remedy="name the variant")
    return merge_upgraded(below, table, source.label)


def _base(name: str, source: _Source) -> _Source:
    if not name.endswith(".toml"):
        if found := _named(name):
            return found
        raise TargetError(
            f"{source.label}: extends names an unknown target: {quoted(name)}",
            remedy=nearest(plain(name), target_names(), listed_by="intact targets"),
        )
    folder = source.path.resolve().parent
    path = folder / name
    plain_name = Path(name).name == name and name.isprintable() and "\\" not in name
    # A plain name is not enough: it may be a link to another folder.
    if not plain_name or path.resolve().parent != folder:
        raise TargetError(
            f"{source.label}: extends names a file outside the folder: {quoted(name)}",
            remedy="put both files into one folder and name only the file",
        )
    return _Source(printable(str(Path(source.label).parent / name)), path)


def _read(source: _Source) -> Table:
    try:
        with open_file(source.path) as file:
            # One byte more than allowed tells a file that is too large, without a size that may be
            # wrong.
            data = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError as error:
        raise TargetError(f"{source.label}: no such file", remedy=_missing_remedy()) from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise TargetError(
            f"{source.label}: cannot be read ({reason})", remedy="check the path"
        ) from error
    if len(data) > _LARGEST_FILE:
        raise TargetError(f"{source.label}: larger than 1 MiB", remedy="give a target description")
    return _parsed(data, source.label)


def _parsed(data: bytes, label: str) -> Table:
    # Before parsing, which is what the dots would make endless.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.count(b".") > _MOST_DOTS:
            raise TargetError(
                f"{label}: line {number} has more than {_MOST_DOTS} dots", remedy="break the line"
            )
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TargetError(f"{label}: not UTF-8 text", remedy="give a TOML file") from error
    except RecursionError as error:
        raise TargetError(
            f"{label}: nested too deeply", remedy="use the documented keys"
        ) from error
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        what = printable(str(error))
        raise TargetError(f"{label}: not TOML: {what}", remedy="correct the line") from error


def _missing_remedy() -> str:
    return f"shipped targets: {', '.join(target_names())}"
