"""Describes the format ``ncnn``: its files, runtime and verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intact.formats.base.expressible import EIGHT_BITS, UP_TO_EIGHT_BITS, WHOLE_BYTES, Expressible
from intact.formats.base.format import (
    ANY_SIZE,
    Deployed,
    Exported,
    Feeds,
    Format,
    Io,
    Reader,
    Runtime,
    ScaleReader,
    Writer,
    WrittenFiles,
    read_files,
)
from intact.formats.ncnn.model import NcnnModel
from intact.formats.ncnn.write import write_ncnn
from intact.plan import QuantizedGraph, build_float
from intact.program.lower import lower_nodes

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.ncnn.run import NcnnRuntime
    from intact.graph import Graph

PARAM_FILE, BIN_FILE, TABLE_FILE = "model.int8.param", "model.int8.bin", "model.table"
_FILES = (PARAM_FILE, BIN_FILE, TABLE_FILE)


def files_of(model: NcnnModel) -> dict[str, bytes]:
    """Return the files of a written model, by name."""
    return {
        PARAM_FILE: model.param.encode("ascii"),
        BIN_FILE: model.weights,
        TABLE_FILE: model.table.encode("ascii"),
    }


def _deployed(model: NcnnModel) -> int:
    """Return the bytes that reach a device; the table does not."""
    return len(model.param) + len(model.weights)


class _Writer(Writer):
    """Writes a plan as a model of ncnn, and the table of its scales."""

    files = _FILES
    expressible = Expressible(
        UP_TO_EIGHT_BITS,
        EIGHT_BITS,
        stored_bits=WHOLE_BYTES,
        blocks=True,
        open_sizes=False,
        batches=False,
        number_inputs=False,
        half_ends=False,
    )

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        model = write_ncnn(lower_nodes(plan), plan.target.name)
        return WrittenFiles(files_of(model), _deployed(model), model.notes)

    def read(self, folder: Path, _plan: QuantizedGraph) -> Exported:
        files = read_files(folder, _FILES)
        return WrittenFiles(files, len(files[PARAM_FILE]) + len(files[BIN_FILE]))


class _Reader(Reader):
    """Reads tables of scales."""

    def scales(self) -> tuple[ScaleReader, ...]:
        from intact.formats.ncnn.table import is_ncnn_table, parse_ncnn_table

        return (ScaleReader(is_ncnn_table, parse_ncnn_table),)


class _Runtime(Runtime):
    """Runs a model in ncnn."""

    packages = ("ncnn",)
    run_up_to = ANY_SIZE
    is_timed = True
    runs_float = True

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.ncnn.run import verify_ncnn

        written = write_ncnn(lower_nodes(deployed.plan))
        # ncnn's parser of `.param` trusts what it reads: only the plan's own files are run.
        deployed.require_unchanged(files_of(written))
        return verify_ncnn(deployed.plan, written, batches, threads=deployed.threads)

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        from intact.formats.ncnn.run import run_ncnn

        written = write_ncnn(lower_nodes(deployed.plan))
        return run_ncnn(deployed.plan, written, feeds, threads=deployed.threads)

    def load(self, deployed: Deployed) -> NcnnRuntime:
        from intact.formats.ncnn.run import NcnnRuntime

        written = write_ncnn(lower_nodes(deployed.plan))
        return NcnnRuntime(written.param, written.weights, threads=deployed.threads)

    def opened(self, deployed: Deployed) -> Callable[[Feeds], Feeds]:
        from intact.formats.ncnn.run import NcnnRuntime, run_opened

        written = write_ncnn(lower_nodes(deployed.plan))
        runtime = NcnnRuntime(written.param, written.weights, threads=deployed.threads)
        return lambda feeds: run_opened(deployed.plan, written, runtime, feeds)

    def runner(self, deployed: Deployed) -> Callable[[Feeds], object]:
        from intact.formats.ncnn.run import NcnnRuntime, run_samples

        written = write_ncnn(lower_nodes(deployed.plan))
        runtime = NcnnRuntime(written.param, written.weights, threads=deployed.threads)
        return lambda feeds: run_samples(runtime, written.fed(feeds), written.outputs.values())

    def float_runner(self, graph: Graph, deployed: Deployed) -> Callable[[Feeds], object]:
        plan = build_float(graph, deployed.plan.target)
        written = NCNN.writer.write(plan, Io.FLOAT)
        return self.runner(Deployed(plan, written, None, deployed.threads))

    def name(self) -> str:
        from intact.formats.ncnn.run import ncnn_version

        return ncnn_version()


NCNN = Format(_Writer(), _Reader(), _Runtime())
