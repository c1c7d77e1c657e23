"""Describes the format ``onnx_levels``: ONNX in float, on the levels of the plan."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intact.formats.base.expressible import WHOLE_BYTES, Expressible
from intact.formats.base.format import (
    ANY_SIZE,
    Deployed,
    Exported,
    Feeds,
    Format,
    Io,
    Runtime,
    Writer,
)
from intact.formats.onnx_levels.write import LEVELS_FILE, LevelsModel, write_levels
from intact.plan import QuantizedGraph

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.onnx_levels.run import LevelsRuntime


_FILES = (LEVELS_FILE, f"{LEVELS_FILE}.data")


class _Writer(Writer):
    """Writes a float model on the levels of a plan."""

    files = _FILES
    optional = _FILES[1:]
    expressible = Expressible(stored_bits=WHOLE_BYTES, logarithmic=True)

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        return write_levels(plan)

    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        """Read the deployed model, which must have the tensors that the plan would write."""
        from intact.formats.base.read_points import written_model

        expected = write_levels(plan)
        tensors = expected.levels.values()
        expected.model = written_model(folder / LEVELS_FILE, expected.model, tensors)
        return expected


class _Runtime(Runtime):
    """Runs the float model on levels in ONNX Runtime."""

    run_up_to = ANY_SIZE

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.onnx_levels.run import verify_levels

        model = deployed.held(LevelsModel)
        return verify_levels(deployed.plan, model, batches, threads=deployed.threads)

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        return self.load(deployed).run(feeds)

    def load(self, deployed: Deployed) -> LevelsRuntime:
        from intact.formats.onnx_levels.run import LevelsRuntime

        return LevelsRuntime(deployed.held(LevelsModel), threads=deployed.threads)


ONNX_LEVELS = Format(_Writer(), runtime=_Runtime())
