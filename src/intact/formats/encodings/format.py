"""Describes the format ``encodings``: AIMET's JSON tables of scales, for Qualcomm's tools.

The versions 0.6.1, 1.0.0 and 2.0.0 of AIMET's Encoding Format Specification, a file each. In the
first two, offsets are those of unsigned integers and not positive: ``real = (q + offset) * scale``
with ``q`` in ``0..2^bits-1``; an asymmetric encoding does not say whether codes have a sign, which
is for the hardware. The third says it, and has the biases too.
"""

from __future__ import annotations

from pathlib import Path

from intact.formats.base.expressible import Expressible
from intact.formats.base.format import (
    Exported,
    Format,
    Io,
    Reader,
    ScaleReader,
    Writer,
    WrittenFiles,
    read_files,
)
from intact.plan import QuantizedGraph

FILES = {
    "model.encodings": "0.6.1",
    "model.1.0.0.encodings": "1.0.0",
    "model.2.0.0.encodings": "2.0.0",
}
"""The versions by file."""


class _Writer(Writer):
    """Writes scales by tensor."""

    files = tuple(FILES)
    expressible = Expressible(several_scales=False)

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        from intact.formats.encodings.write import write_encodings

        tables = write_encodings(plan)
        return WrittenFiles({file: tables[version] for file, version in FILES.items()})

    def read(self, folder: Path, _plan: QuantizedGraph) -> Exported:
        return WrittenFiles(read_files(folder, self.files))


class _Reader(Reader):
    """Reads scales by tensor."""

    def scales(self) -> tuple[ScaleReader, ...]:
        from intact.formats.encodings.read import SCALE_READERS

        return SCALE_READERS


ENCODINGS = Format(_Writer(), _Reader())
