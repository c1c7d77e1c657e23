"""Describes the format ``tensorrt``: QDQ by its rules, a cache, ranges of activations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intact.errors import PlanError
from intact.formats.base.expressible import EIGHT_BITS, WHOLE_BYTES, Expressible
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
    read_files,
)
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.tensorrt.write import (
    CACHE_FILE,
    MODEL_FILE,
    RANGES_FILE,
    TensorRtModel,
    export_notes,
    refuse_plan,
    written_tables,
)
from intact.graph import load_model
from intact.plan import QuantizedGraph

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.onnx_qdq.run import QdqRuntime

_DATA_FILE = f"{MODEL_FILE}.data"
_FILES = (MODEL_FILE, CACHE_FILE, RANGES_FILE, _DATA_FILE)


class _Writer(Writer):
    """Writes a plan as ONNX with quantizers where TensorRT wants them, and tables of its ranges.

    The model has float weights: the one format that is written by another's writer.
    """

    files = _FILES
    optional = (_DATA_FILE,)
    expressible = Expressible(
        EIGHT_BITS, EIGHT_BITS, stored_bits=WHOLE_BYTES, float16=True, blocks=True
    )

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        # Before writing: the writer of pairs can express more than TensorRT computes.
        refuse_plan(plan)
        written = write_qdq(plan, float_weights=True)
        own = export_notes(plan, written.model.opset_imports[""])
        return TensorRtModel(written.model, written_tables(plan), (*written.notes, *own))

    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        """Read the deployed files; the model must have the plan's inputs and outputs."""
        tables = read_files(folder, (CACHE_FILE, RANGES_FILE))
        path = folder / MODEL_FILE
        model = load_model(path)
        for kind, found, wanted in (
            ("inputs", model.graph.inputs, plan.graph.inputs),
            ("outputs", model.graph.outputs, plan.graph.outputs),
        ):
            names, expected = ([value.name for value in values] for values in (found, wanted))
            if names != expected:
                raise PlanError(
                    f"{path}: not the model of this plan, its {kind} are {names}, not {expected}",
                    remedy="quantize again",
                )
        return TensorRtModel(model, tables)


class _Reader(Reader):
    """Reads calibration caches and ranges."""

    def scales(self) -> tuple[ScaleReader, ...]:
        from intact.formats.tensorrt.read import SCALE_READERS

        return SCALE_READERS


class _Runtime(Runtime):
    """Runs the model in ONNX Runtime, as it reads."""

    run_up_to = ANY_SIZE

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.tensorrt.verify import verify_tensorrt

        model = deployed.held(TensorRtModel)
        return verify_tensorrt(deployed.plan, model, batches, threads=deployed.threads)

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        return self.load(deployed).run(feeds)[0]

    def load(self, deployed: Deployed) -> QdqRuntime:
        """Open the model in ONNX Runtime, without TensorRT's kernels: in float, as it reads."""
        from intact.formats.onnx_qdq.run import QdqRuntime

        model = deployed.held(TensorRtModel).model
        # Unfused, because integer kernels of ONNX Runtime round otherwise than those of TensorRT.
        return QdqRuntime(model, threads=deployed.threads, fuse=False)


TENSORRT = Format(_Writer(), _Reader(), _Runtime())
