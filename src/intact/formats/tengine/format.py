"""Describes the formats of Tengine: the model in integers, the tables of its scales."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from intact.errors import CalibrationError, ExportError
from intact.formats.base.expressible import EIGHT_BITS, WHOLE_BYTES, Expressible
from intact.formats.base.format import (
    Deployed,
    Exported,
    Feeds,
    FloatSource,
    Format,
    Io,
    QuantizedSource,
    Reader,
    Runtime,
    ScaleReader,
    Writer,
    WrittenFiles,
    read_files,
)
from intact.formats.tengine.tables import (
    BIASES_FILE,
    WEIGHTS_FILE,
    table_name,
    write_effective_table,
    write_tables,
)
from intact.formats.tengine.tmfile.write import write_int8
from intact.graph import load_model, normalize
from intact.numerics.thresholds import METHODS
from intact.plan import Note, NoteKind, QuantizedGraph, build_plan, quantization_points
from intact.plan.given_scales import GIVEN, ScaleTable
from intact.targets import Target
from intact.targets.schema import without_in_place

if TYPE_CHECKING:
    from intact.formats.base.report import Verification

MODEL_FILE = "model.int8.tmfile"
EFFECTIVE_FILE = "table_effective.scale"
_NAME = "tengine"
_OTHERWISE = (
    "the plan computes as target {} does; Tengine requantizes in float32, rounds half away from "
    "zero and limits codes to +-127, so that its results may differ, which verify cannot check"
)
_REMEDY = "quantize for target tengine"
_TABLES = tuple(f"table_{method}.scale" for method in (*METHODS, GIVEN))


def plan_of_tmfile(source: str | Path | bytes, target: Target) -> QuantizedGraph:
    """Read the plan of a quantized ``.tmfile``, with its scales and its integers.

    Scales that operators passed to their inputs are tied; in a file that was made without that
    pass each tensor keeps its own.

    Args:
        source: A path, or the content.
        target: The hardware that computes it.

    Raises:
        ModelError: The file is damaged, not quantized, or holds what cannot be read.
        CalibrationError: It gives no scale for a tensor that the target quantizes.
    """
    from intact.calibrate.assign import Method, assign
    from intact.formats.tengine.tmfile.read import read_int8

    read = read_int8(source)
    graph, method = normalize(read.model), Method.of(target)
    plan = assign(build_plan(graph, target), None, method, read.scales)
    # A file does not note whether its scales were passed on; only the scales themselves show it.
    if not target.topology.in_place or _has_the_scales(plan, read.scales):
        return plan
    return assign(build_plan(graph, without_in_place(target)), None, method, read.scales)


def _has_the_scales(plan: QuantizedGraph, table: ScaleTable) -> bool:
    """Tell whether no activation's scale gave way to another's."""
    return all(
        point.config.scale is not None and point.config.scale == table[name].scale
        for point in quantization_points(plan)
        if not point.is_constant and (name := str(point.value.name)) in table
    )


class _Writer(Writer):
    """Writes the tables, and the model where Tengine has all that it needs."""

    files = (MODEL_FILE, *_TABLES, WEIGHTS_FILE, BIASES_FILE)
    optional = (MODEL_FILE, *_TABLES)
    expressible = Expressible(
        EIGHT_BITS,
        EIGHT_BITS,
        stored_bits=WHOLE_BYTES,
        open_sizes=False,
        half_ends=False,
        several_scales=False,
    )

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        files, notes = write_tables(plan)
        try:
            model = write_int8(plan)
        # The tables are worth having alone: Tengine's own tool takes them with its own model.
        except ExportError as error:
            lines = error.unsaid or (error.with_flags,)  # reasons that do not fit one message
            missing = [f"{MODEL_FILE} was not written, only the tables: {line}" for line in lines]
            reasons = tuple(Note(NoteKind.EXPORT, "", line) for line in missing)
            return WrittenFiles(files, notes=(*notes, *reasons), missing=missing)
        if _NAME not in plan.target.formats:
            said = _OTHERWISE.format(plan.target.name)
            notes = (*notes, Note(NoteKind.EXPORT, "", said, _REMEDY))
        return WrittenFiles({MODEL_FILE: model, **files}, deployed=len(model), notes=notes)

    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        tables = (table_name(plan), WEIGHTS_FILE, BIASES_FILE)
        files = read_files(folder, tables, optional=(MODEL_FILE,))
        model = files.get(MODEL_FILE)
        return WrittenFiles(files, deployed=None if model is None else len(model))


class _EffectiveWriter(Writer):
    """Writes the scales with which the model computes; the other table has each tensor's own."""

    files = (EFFECTIVE_FILE,)

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        table, notes = write_effective_table(plan)
        return WrittenFiles({EFFECTIVE_FILE: table}, notes=notes)

    def read(self, folder: Path, _plan: QuantizedGraph) -> Exported:
        return WrittenFiles(read_files(folder, (EFFECTIVE_FILE,)))


class _Reader(Reader):
    """Reads model files, and tables of scales."""

    target = _NAME
    suffixes = (".tmfile",)

    def recognizes(self, path: Path, head: bytes) -> bool:
        from intact.formats.tengine.tmfile.codec import is_tmfile

        return bool(head) and is_tmfile(path)  # no magic number: the whole header is checked

    def open(self, path: Path) -> FloatSource | QuantizedSource:
        """Open a model file; the scales of a quantized one are given scales."""
        from intact.formats.tengine.tmfile.codec import open_tmfile
        from intact.formats.tengine.tmfile.read import read_int8, read_tmfile

        file = open_tmfile(path)
        if not file.is_quantized:
            return FloatSource(_NAME, load_model(read_tmfile(path)))
        signed = all(scale.signed for scale in read_int8(path).scales.scales.values())
        scales = [each.quantization.scale for each in file.tensors if each.quantization is not None]
        # Only the tool writes scales of 0, for channels of zeros.
        name = _NAME if all(scale.all() for scale in scales) else "tengine-tool"
        return QuantizedSource(name if signed else "tengine-u8", partial(plan_of_tmfile, path))

    def scales(self) -> tuple[ScaleReader, ...]:
        from intact.formats.tengine.tables import parse_table

        # What begins like JSON is a table of another format.
        return (ScaleReader(lambda data: data.lstrip()[:1] != b"{", parse_table, is_guess=True),)


class _Runtime(Runtime):
    """Runs the kernels of Tengine, as intact computes them, beside the engine."""

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.tengine.verify import verify_tengine

        plan, files = deployed.plan, deployed.files
        content = files.get(MODEL_FILE)
        try:
            # From the bytes that were written, so that what the file lost shows in the comparison.
            found = None if content is None else plan_of_tmfile(content, plan.target)
        except CalibrationError as error:
            raise ExportError(
                f"{MODEL_FILE} cannot be read back for target {plan.target.name} ({error})",
                remedy="quantize for target tengine: its files can be verified",
            ) from error
        outcome = verify_tengine(plan, files, found, batches, threads=deployed.threads)
        if found is None:
            outcome.refused = f"there is no {MODEL_FILE}, only the tables were checked"
        return outcome


TENGINE = Format(_Writer(), _Reader(), _Runtime())
TENGINE_EFFECTIVE = Format(_EffectiveWriter())
