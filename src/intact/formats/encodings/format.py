"""Encodings: scales by tensor as JSON, without a model."""

from __future__ import annotations

from pathlib import Path

from intact.formats.base.format import (
    Exported,
    Expressible,
    Format,
    Io,
    ScaleReader,
    WrittenFiles,
    read_files,
)
from intact.formats.encodings.write import write_encodings
from intact.plan import QuantizedGraph

ENCODINGS_FILE = "model.encodings"


def _write(plan: QuantizedGraph, _io: Io) -> Exported:
    return WrittenFiles({ENCODINGS_FILE: write_encodings(plan)})


def _read(folder: Path, _plan: QuantizedGraph) -> Exported:
    return WrittenFiles(read_files(folder, (ENCODINGS_FILE,)))


def _scales() -> tuple[ScaleReader, ...]:
    from intact.formats.encodings.read import SCALE_READERS

    return SCALE_READERS


ENCODINGS = Format(
    (ENCODINGS_FILE,),
    _write,
    _read,
    expressible=Expressible(several_scales=False),
    scales=_scales,
)
