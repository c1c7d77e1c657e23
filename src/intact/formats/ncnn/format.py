"""ncnn in the table of formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intact.formats.base.format import (
    EIGHT_BITS,
    UP_TO_EIGHT_BITS,
    WHOLE_BYTES,
    Deployed,
    Exported,
    Expressible,
    Feeds,
    Format,
    Io,
    ScaleReader,
    WrittenFiles,
    read_files,
)
from intact.formats.ncnn.model import NcnnModel
from intact.formats.ncnn.write import write_ncnn
from intact.plan import QuantizedGraph
from intact.program.lower import lower_nodes

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.ncnn.run import NcnnRuntime

PARAM_FILE, BIN_FILE, TABLE_FILE = "model.int8.param", "model.int8.bin", "model.table"
_FILES = (PARAM_FILE, BIN_FILE, TABLE_FILE)


def files_of(model: NcnnModel) -> dict[str, bytes]:
    """Return the files of a written model, by name."""
    return {
        PARAM_FILE: model.param.encode("ascii"),
        BIN_FILE: model.weights,
        TABLE_FILE: model.table.encode("ascii"),
    }


def _write(plan: QuantizedGraph, _io: Io) -> Exported:
    model = write_ncnn(lower_nodes(plan), plan.target.name)
    return WrittenFiles(files_of(model), _deployed(model), model.notes)


def _read(folder: Path, _plan: QuantizedGraph) -> Exported:
    files = read_files(folder, _FILES)
    return WrittenFiles(files, len(files[PARAM_FILE]) + len(files[BIN_FILE]))


def _deployed(model: NcnnModel) -> int:
    """Return the bytes that reach a device; the table does not."""
    return len(model.param) + len(model.weights)


def _verify(deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
    from intact.formats.ncnn.verify import verify_ncnn

    written = write_ncnn(lower_nodes(deployed.plan))
    deployed.require_unchanged(files_of(written))
    return verify_ncnn(deployed.plan, written, batches, threads=deployed.threads)


def _run(deployed: Deployed, feeds: Feeds) -> Feeds:
    from intact.formats.ncnn.run import run_ncnn

    written = write_ncnn(lower_nodes(deployed.plan))
    return run_ncnn(deployed.plan, written, feeds, threads=deployed.threads)


def _load(deployed: Deployed) -> NcnnRuntime:
    from intact.formats.ncnn.run import NcnnRuntime

    written = write_ncnn(lower_nodes(deployed.plan))
    return NcnnRuntime(written.param, written.weights, threads=deployed.threads)


def _runner(deployed: Deployed) -> Callable[[Feeds], object]:
    from intact.formats.ncnn.run import NcnnRuntime, run_samples

    written = write_ncnn(lower_nodes(deployed.plan))
    runtime = NcnnRuntime(written.param, written.weights, threads=deployed.threads)
    return lambda feeds: run_samples(runtime, written.fed(feeds), written.outputs.values())


def _runtime_name() -> str:
    from intact.formats.ncnn.run import ncnn_version

    return ncnn_version()


def _scales() -> tuple[ScaleReader, ...]:
    from intact.formats.ncnn.table import is_ncnn_table, parse_ncnn_table

    return (ScaleReader(is_ncnn_table, parse_ncnn_table),)


NCNN = Format(
    _FILES,
    _write,
    _read,
    expressible=Expressible(
        UP_TO_EIGHT_BITS, EIGHT_BITS, stored_bits=WHOLE_BYTES, open_sizes=False, half_ends=False
    ),
    verify=_verify,
    run=_run,
    load=_load,
    runner=_runner,
    runtime_name=_runtime_name,
    runtime=("ncnn",),
    scales=_scales,
)
