"""The files of a result."""

from __future__ import annotations

from collections.abc import Mapping

from intact.formats.base.format import WrittenFiles
from intact.results.result import Result


def files_of(result: Result, name: str) -> Mapping[str, bytes]:
    """Return what was written in a format, by file name."""
    exported = result.exports[name]
    assert isinstance(exported, WrittenFiles)
    return exported.files
