"""Describes the format ``openvino`` to the registry of formats: what it writes, and how it runs.

It writes an ONNX model with FakeQuantize, and OpenVINO's own ``.xml`` and ``.bin`` where the
package ``openvino``, which makes them, is installed. `OPENVINO` is the entry of the registry. Its
parts say what the base classes `Writer` and `Runtime` ask, and call the modules `write`, `run` and
`verify` beside this one. What needs the package is imported only when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intact._extras import install_hint, is_installed
from intact.formats.base.expressible import Expressible
from intact.formats.base.format import (
    ANY_SIZE,
    Deployed,
    Executed,
    Exported,
    Feeds,
    Format,
    Io,
    Runtime,
    Writer,
    read_files,
)
from intact.formats.openvino.intermediate import (
    BIN_FILE,
    XML_FILE,
    intermediate_files,
)
from intact.formats.openvino.write import ONNX_FILE, OpenVinoModel, write_openvino
from intact.plan import Note, NoteKind, QuantizedGraph

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.openvino.run import OpenVinoRuntime
    from intact.graph import Graph

_FILES = (ONNX_FILE, XML_FILE, BIN_FILE, f"{ONNX_FILE}.data")


class _Writer(Writer):
    """Writes a plan as ONNX with FakeQuantize, and as OpenVINO's own files."""

    files = _FILES
    optional = _FILES[1:]
    expressible = Expressible(stored_bits=frozenset({4, 8, 32}), blocks=True, float16=True)
    shares_turned = False

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        """Write the ONNX model, which OpenVINO runs, and its own files where it is installed."""
        written = write_openvino(plan)
        if is_installed("openvino"):  # which alone can write them
            written.ir_files = intermediate_files(written.model, exact=written.has_blocks)
        else:
            written.notes.append(
                Note(
                    NoteKind.EXPORT,
                    "",
                    f"{XML_FILE} and {BIN_FILE} are not written, because openvino is not "
                    f"installed; OpenVINO runs {ONNX_FILE} as well",
                    install_hint("openvino"),
                )
            )
        return written

    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        """Read the deployed model, which must have the tensors that the plan would write."""
        from intact.formats.base.read_points import written_model

        expected = write_openvino(plan)
        tensors = expected.codes.values()
        expected.model = written_model(folder / ONNX_FILE, expected.model, tensors)
        if any((folder / name).is_file() for name in (XML_FILE, BIN_FILE)):
            expected.ir_files = read_files(folder, (XML_FILE, BIN_FILE))
        return expected


class _Runtime(Runtime):
    """Loads, runs, times and verifies what was written, in OpenVINO."""

    packages = ("openvino",)
    run_up_to = ANY_SIZE
    is_timed = True
    runs_numbers = True
    runs_float = True

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.openvino.verify import verify_openvino

        model = deployed.held(OpenVinoModel)
        return verify_openvino(deployed.plan, model, batches, threads=deployed.threads)

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        return self.load(deployed).run(feeds)[0]

    def load(self, deployed: Deployed) -> OpenVinoRuntime:
        """Compile a written model, and note what OpenVINO makes of the plan, as it says itself."""
        from intact.formats.openvino.run import load_openvino
        from intact.formats.openvino.verify import float_nodes, integer_nodes

        model = deployed.held(OpenVinoModel)
        runtime = load_openvino(model, threads=deployed.threads)
        if model.executed is None:
            in_integers = integer_nodes(deployed.plan, runtime.executed)
            in_float = float_nodes(deployed.plan, runtime.executed)
            model.executed = Executed(in_float, in_integers, tuple(in_integers))
        return runtime

    def opened(self, deployed: Deployed) -> Callable[[Feeds], Feeds]:
        return self.runner(deployed)

    def runner(self, deployed: Deployed) -> Callable[[Feeds], Feeds]:
        runtime = self.load(deployed)
        return lambda feeds: runtime.run(feeds)[0]

    def float_runner(self, graph: Graph, deployed: Deployed) -> Callable[[Feeds], Feeds]:
        from intact.formats.openvino.run import load_float

        runtime = load_float(graph, threads=deployed.threads)
        return lambda feeds: runtime.run(feeds)[0]

    def name(self) -> str:
        from intact.formats.openvino.run import openvino_version

        return f"OpenVINO {openvino_version()}"

    def executed(self, deployed: Deployed) -> Executed:
        model = deployed.held(OpenVinoModel)
        if model.executed is None:
            self.load(deployed)
        return model.executed or Executed()


OPENVINO = Format(_Writer(), runtime=_Runtime())
