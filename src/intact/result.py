"""The folder that a quantisation leaves: everything can be done again from it.

::

    out/
    ├── model.onnx         the float model, normalised, with its weights
    ├── plan.json          every decision, scale and offset; names the others by hash
    ├── statistics.npz     what calibration saw: other methods and targets need no second pass
    └── model.int8.onnx    the deployed model
"""

from __future__ import annotations

import os
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

MODEL, PLAN, STATISTICS, QUANTIZED = "model.onnx", "plan.json", "statistics.npz", "model.int8.onnx"


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
        """
        folder = Path(folder)
        if not (folder / PLAN).is_file():
            raise PlanError(
                f"{folder}: no {PLAN} in it", remedy="give a folder that `intact quantize` wrote"
            )
        plan = load_plan(folder / PLAN, Graph.load(folder / MODEL))
        statistics = Statistics.load(folder / STATISTICS)
        if statistics.hash() != plan.provenance.get("statistics"):
            raise PlanError(
                f"{folder / STATISTICS}: not the statistics of this plan", remedy="quantize again"
            )
        exported = write_qdq(plan)
        exported.model = load_model(folder / QUANTIZED)
        return Result(plan, statistics, exported, folder)

    def save(self, folder: str | Path) -> None:
        """Write the folder: whole, or not at all.

        Raises:
            OutputError: It cannot be written, or holds something that intact did not write.
        """
        folder = Path(folder)
        check_output(folder)
        with _replacing(folder) as partial:
            save_model(self.plan.graph.model, partial / MODEL)
            save_plan(self.plan, partial / PLAN)
            (partial / STATISTICS).write_bytes(self.statistics.to_bytes())
            save_model(self.exported.model, partial / QUANTIZED)
        self.folder = folder

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the float and of the quantised model file."""
        if self.folder is not None:
            return _file_bytes(self.folder / MODEL), _file_bytes(self.folder / QUANTIZED)
        models = (self.plan.graph.model, self.exported.model)
        float_bytes, quantized_bytes = (len(ir.to_proto(m).SerializeToString()) for m in models)
        return float_bytes, quantized_bytes


def check_output(folder: Path) -> None:
    """Refuse a folder that cannot be written, before any work is done for it.

    Raises:
        OutputError: It is a file, holds files of others, or its parent cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is a file", remedy="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / PLAN).is_file():
        raise OutputError(
            f"{folder}: holds files that intact did not write", remedy="name a new or empty folder"
        )
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise OutputError(
            f"{folder}: {parent} cannot be written", remedy="name a folder you may write"
        )


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Give a folder beside, and put it in the place of ``folder`` if nothing fails."""
    folder = folder.absolute()
    partial: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield partial
        partial.chmod(0o755)  # mkdtemp makes it private
        if folder.exists():
            old = partial.with_name(f"{partial.name}.old")
            folder.replace(old)
            partial.replace(folder)
            shutil.rmtree(old)
        else:
            partial.replace(folder)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _file_bytes(path: Path) -> int:
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)
