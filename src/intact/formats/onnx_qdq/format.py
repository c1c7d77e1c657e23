"""Describes the format ``onnx_qdq``: ONNX with QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from intact.formats.base.expressible import UP_TO_EIGHT_BITS, Expressible
from intact.formats.base.format import (
    ANY_SIZE,
    Deployed,
    Executed,
    Exported,
    Feeds,
    Format,
    Io,
    Kernel,
    QuantizedSource,
    Reader,
    Runtime,
    Writer,
)
from intact.formats.onnx_qdq.write import QDQ_FILE, QdqModel, write_qdq
from intact.plan import QuantizedGraph

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.onnx_qdq.run import QdqRuntime
    from intact.graph import Graph


_FILES = (QDQ_FILE, f"{QDQ_FILE}.data")


class _Writer(Writer):
    """Writes a plan as ONNX with quantizers."""

    files = _FILES
    optional = _FILES[1:]
    expressible = Expressible(
        integer_bits=UP_TO_EIGHT_BITS, dynamic=True, blocks=True, caches=True, float16=True
    )

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        return write_qdq(plan)

    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        """Read the deployed model, which must have the tensors that the plan would write."""
        from intact.formats.base.read_points import written_model

        # Written again, for the names that the file must have; its weights are then those of the
        # file.
        expected = write_qdq(plan)
        tensors = expected.codes.values()
        expected.model = written_model(folder / QDQ_FILE, expected.model, tensors)
        return expected


class _Reader(Reader):
    """Reads ONNX models with quantizers of any kind."""

    def open_onnx(self, model: ir.Model) -> QuantizedSource | None:
        from intact.formats.onnx_qdq.read import is_quantized, read_qdq
        from intact.formats.onnx_qdq.reader.quantizers import fitting_target
        from intact.formats.onnx_qdq.reader.widths import has_silent

        # The target is asked for only then: it reads the parameters of every quantizer.
        if not is_quantized(model):
            return None
        read = partial(read_qdq, model)
        return QuantizedSource(fitting_target(model), read, read if has_silent(model) else None)


class _Runtime(Runtime):
    """Runs a model in ONNX Runtime."""

    run_up_to = ANY_SIZE
    is_timed = True
    is_profiled = True
    runs_numbers = True
    runs_float = True

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.onnx_qdq.verify import verify_qdq

        model = deployed.held(QdqModel)
        return verify_qdq(deployed.plan, model, batches, threads=deployed.threads)

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        return self.load(deployed).run(feeds)[0]

    def load(self, deployed: Deployed) -> QdqRuntime:
        from intact.formats.onnx_qdq.executed import loaded

        written, exact = deployed.held(QdqModel), not deployed.plan.target.saturates_pairs
        return loaded(written, deployed.plan, threads=deployed.threads, exact=exact, packs=False)

    def runner(self, deployed: Deployed) -> Callable[[Feeds], Feeds]:
        from intact.formats.onnx_qdq.run import QdqRuntime

        written = deployed.held(QdqModel)
        runtime = QdqRuntime(
            written.model, threads=deployed.threads, exact=False, message=written.message
        )
        return lambda feeds: runtime.run(feeds)[0]

    def float_runner(self, graph: Graph, deployed: Deployed) -> Callable[[Feeds], Feeds]:
        from intact.formats.onnx_qdq.run import float_runner

        return float_runner(graph, deployed.threads)

    def profile(self, deployed: Deployed, feeds: Feeds, runs: int) -> list[Kernel]:
        from intact.formats.onnx_qdq.executed import profile_kernels

        # The model itself and not what verification loads: sums that are exact at a cost would be
        # timed instead.
        model = deployed.held(QdqModel).model
        return profile_kernels(model, feeds, runs=runs, threads=deployed.threads)

    def name(self) -> str:
        from intact.formats.onnx_qdq.run import RUNTIME

        return RUNTIME

    def executed(self, deployed: Deployed) -> Executed:
        from intact.formats.onnx_qdq.executed import executed_of

        return executed_of(deployed.held(QdqModel), deployed.plan)


ONNX_QDQ = Format(_Writer(), _Reader(), _Runtime())
