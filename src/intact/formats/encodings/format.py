"""Encodings: scales by tensor as JSON, without a model."""

from __future__ import annotations

from pathlib import Path

from intact.formats.base.format import (
    Exported,
    Expressible,
    Format,
    Io,
    Reader,
    ScaleReader,
    Writer,
    WrittenFiles,
    read_files,
)
from intact.formats.encodings.write import write_encodings
from intact.plan import QuantizedGraph

ENCODINGS_FILE = "model.encodings"


class _Writer(Writer):
    """Writes scales by tensor."""

    files = (ENCODINGS_FILE,)
    expressible = Expressible(several_scales=False)

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        return WrittenFiles({ENCODINGS_FILE: write_encodings(plan)})

    def read(self, folder: Path, _plan: QuantizedGraph) -> Exported:
        return WrittenFiles(read_files(folder, (ENCODINGS_FILE,)))


class _Reader(Reader):
    """Reads scales by tensor."""

    def scales(self) -> tuple[ScaleReader, ...]:
        from intact.formats.encodings.read import SCALE_READERS

        return SCALE_READERS


ENCODINGS = Format(_Writer(), _Reader())
