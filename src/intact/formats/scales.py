"""Reading a table of given scales, whatever format it has."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path

from intact.errors import DataError
from intact.graph import Graph
from intact.plan.given_scales import ScaleTable

_MOST_BYTES = 1 << 26
"""Half a million encodings of channels, a model of some thousand layers; the costliest file of
this size, one line of numbers, takes 0.8 GB to read."""


def read_scales(path: str | Path, graph: Graph | None = None) -> ScaleTable:
    """Read a table of Tengine, TensorRT or ncnn, or encodings; what begins with ``{`` is JSON.

    Args:
        path: The file.
        graph: The model that it is for; a table of ncnn names its layers, and is refused without.

    Raises:
        DataError: It is missing, unreadable, too large, or wrong in a line or key that is named.
    """
    from intact.formats.ncnn.table import is_ncnn_table, parse_ncnn_table

    path = Path(path)
    try:
        with path.open("rb") as file:
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
    if is_ncnn_table(data):
        return parse_ncnn_table(data, str(path), graph)
    return _parser(data)(data, str(path))


def _parser(data: bytes) -> Callable[[bytes, str], ScaleTable]:
    """Return what reads a table, by how it begins."""
    from intact.formats.encodings.read import parse_encodings
    from intact.formats.tengine.tables import parse_table
    from intact.formats.tensorrt.read import CACHE_START, holds_ranges, parse_cache, parse_ranges

    if data.lstrip()[:1] == b"{":
        return parse_ranges if holds_ranges(data) else parse_encodings
    return parse_cache if data.startswith(CACHE_START) else parse_table
