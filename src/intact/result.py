"""The folder that a quantisation leaves: everything can be done again from it.

::

    out/
    ├── model.onnx         the float model, normalised, with its weights
    ├── plan.json          every decision, scale and offset; names the others by hash
    ├── statistics.npz     what calibration saw: other methods and targets need no second pass
    └── model.int8.onnx    the deployed model
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from intact.calibrate.statistics import Statistics
from intact.errors import OutputError, PlanError
from intact.formats.onnx_qdq.write import QdqModel, write_qdq
from intact.graph import Graph, load_model, save_model
from intact.plan import QuantizedGraph, load_plan, save_plan
from intact.samples.preprocess import Preprocess

MODEL, PLAN, STATISTICS, QUANTIZED = "model.onnx", "plan.json", "statistics.npz", "model.int8.onnx"
FILES = (MODEL, PLAN, STATISTICS, QUANTIZED)
_OWN = frozenset({*FILES, f"{MODEL}.data", f"{QUANTIZED}.data"})
_PLAN_HEAD = b'"intact-plan"'


@dataclass
class Result:
    """A quantised model with all that led to it.

    Attributes:
        plan: The decisions; ``plan.graph`` is the float model.
        statistics: What calibration saw.
        exported: The deployed model.
        folder: Where it is stored; None while it is only in memory.
    """

    plan: QuantizedGraph
    statistics: Statistics
    exported: QdqModel
    folder: Path | None = None

    @staticmethod
    def load(folder: str | Path) -> Result:
        """Read a folder that ``save`` wrote.

        Raises:
            PlanError: It is no such folder, or a file does not belong to the plan.
            IntactError: A file is damaged.
        """
        folder = Path(folder)
        for name in (PLAN, *FILES):  # the plan first: without it, this is some other folder
            if not (folder / name).is_file():
                raise PlanError(
                    f"{folder}: no {name} in it",
                    remedy="give a folder that `intact quantize` wrote, with all its files",
                )
        plan = load_plan(folder / PLAN, Graph.load(folder / MODEL))
        statistics = Statistics.load(folder / STATISTICS)
        if statistics.hash() != plan.provenance.get("statistics"):
            raise PlanError(
                f"{folder / STATISTICS}: not the statistics of this plan", remedy="quantize again"
            )
        exported = write_qdq(plan)
        exported.model = _deployed(folder / QUANTIZED, exported)
        return Result(plan, statistics, exported, folder)

    def save(self, folder: str | Path) -> None:
        """Write the folder: whole, or not at all.

        Raises:
            OutputError: It cannot be written, or holds something that intact did not write.
        """
        folder = Path(folder)
        check_output(folder)
        with _replacing(folder.resolve()) as partial:
            save_model(self.plan.graph.model, partial / MODEL)
            save_plan(self.plan, partial / PLAN)
            (partial / STATISTICS).write_bytes(self.statistics.to_bytes())
            save_model(self.exported.model, partial / QUANTIZED)
        self.folder = folder

    @property
    def preprocess(self) -> Preprocess:
        """Mean and scale that calibration used.

        Raises:
            PlanError: The plan's provenance has something else in their place.
        """
        return Preprocess(self._numbers("mean"), self._numbers("scale"))

    def _numbers(self, name: str) -> tuple[float, ...]:
        text = self.plan.provenance.get(name, "")
        try:
            return tuple(float(part) for part in text.split(",")) if text else ()
        except ValueError:
            raise PlanError(
                f"provenance {name!r} of the plan is {text!r}", remedy="quantize again"
            ) from None

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the float and of the quantised model file."""
        if self.folder is not None:
            return _file_bytes(self.folder / MODEL), _file_bytes(self.folder / QUANTIZED)
        models = (self.plan.graph.model, self.exported.model)
        float_bytes, quantized_bytes = (len(ir.to_proto(m).SerializeToString()) for m in models)
        return float_bytes, quantized_bytes


def _deployed(path: Path, expected: QdqModel) -> ir.Model:
    """Read the deployed model, which must have the tensors that the plan would write."""
    model = load_model(path)
    present = {value.name for value in model.graph.inputs}
    present |= {value.name for node in model.graph for value in node.outputs}
    for name in expected.codes.values():
        if name not in present:
            raise PlanError(
                f"{path}: not the model of this plan, it has no tensor {name!r}",
                remedy="quantize again",
            )
    return model


def check_output(folder: Path) -> None:
    """Refuse a folder that cannot be written, before any work is done for it.

    A folder that holds a result, and nothing else, may be replaced.

    Raises:
        OutputError: It is a file, holds files of others, or cannot be written.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder}: is a file", remedy="name a folder")
        if folder.is_dir():
            _refuse_foreign(folder)
        _staging(folder.resolve(), make_parents=False).rmdir()
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot be written ({error.strerror or error})",
            remedy="name a folder that you may write",
        ) from error


def _refuse_foreign(folder: Path) -> None:
    present = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in present if name not in _OWN]
    if present and not foreign and not _is_plan(folder / PLAN):
        foreign = present  # a model.onnx of the user's, say
    if foreign:
        raise OutputError(
            f"{folder}: holds files that intact did not write ({foreign[0]!r})",
            remedy="name a new or empty folder",
        )


def _is_plan(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _PLAN_HEAD in file.read(64)


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Give a folder beside, and put it in the place of ``folder`` if nothing fails."""
    staging: Path | None = None
    try:
        staging = _staging(folder, make_parents=True)
        new, old = staging / "new", staging / "old"
        new.mkdir()
        old.mkdir()
        yield new
        _exchange(new, folder, old)
    except (OSError, OutputError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise OutputError(f"cannot write {folder}: {cause.strerror or cause}") from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def _staging(folder: Path, *, make_parents: bool) -> Path:
    """Make a temporary folder beside ``folder``; inside where only that can be written."""
    parent = folder.parent
    if make_parents:
        parent.mkdir(parents=True, exist_ok=True)
    while not parent.exists():
        parent = parent.parent
    try:
        return Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
    except OSError:
        if not folder.is_dir():
            raise
        return Path(tempfile.mkdtemp(prefix=".intact.", dir=folder))


def _exchange(new: Path, folder: Path, old: Path) -> None:
    """Put ``new`` in the place of ``folder``, and what was there into ``old``.

    A folder that exists stays the same folder, file by file: it may be someone's working
    directory, a link's goal or a mounted volume. Whatever fails is undone.
    """
    if not folder.exists():
        new.replace(folder)
        return
    moves: list[tuple[Path, Path]] = []
    try:
        for source, goal in ((folder, old), (new, folder)):
            for path in sorted(source.iterdir()):
                if path.name in _OWN:
                    moves.append((path, goal / path.name))
                    shutil.move(path, goal / path.name)  # copies between file systems
    except BaseException:
        for before, after in reversed(moves):
            if after.exists() and not before.exists():
                shutil.move(after, before)
        raise


def _file_bytes(path: Path) -> int:
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)
