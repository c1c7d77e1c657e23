"""Reading a table of given scales of any format."""

from __future__ import annotations

import codecs
from pathlib import Path

from intact.errors import DataError
from intact.formats.base.format import ScaleReader
from intact.formats.registry import described
from intact.graph import Graph
from intact.graph.files.regular import open_file
from intact.plan.given_scales import ScaleTable

_MOST_BYTES = 1 << 26
"""Half a million encodings of channels, a model of some thousand layers; the costliest file of
this size, one line of numbers, takes 0.8 GB to read."""


def read_scales(path: str | Path, graph: Graph | None = None) -> ScaleTable:
    """Read a table of scales: of Tengine, TensorRT, ncnn, encodings, or of a format of others.

    Args:
        path: The file.
        graph: The model that it is for; a table of ncnn names its layers, and is refused without.

    Raises:
        DataError: It is missing, unreadable, too large, or wrong in a line or key that is named.
    """
    path = Path(path)
    try:
        with open_file(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", remedy="check --scales") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
    if len(data) > _MOST_BYTES:
        raise DataError(
            f"{path}: larger than {_MOST_BYTES >> 20} MiB", remedy="this is no table of scales"
        )
    data = data.removeprefix(codecs.BOM_UTF8)  # some editors write it
    return _reader(data, path).parse(data, str(path), graph)


def _reader(data: bytes, path: Path) -> ScaleReader:
    """The reader that recognizes a table; those that guess are asked last."""
    readers = [each for _, row in described() if row.reader for each in row.reader.scales()]
    for reader in sorted(readers, key=lambda each: each.is_guess):
        if reader.recognizes(data):
            return reader
    raise DataError(f"{path}: no table of scales", remedy="give one of a format that intact reads")
