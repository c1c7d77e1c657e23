"""Runs an integer ONNX model in ONNX Runtime; no difference to the engine is allowed.

A second model gives every value too, so that each layer is computed from the runtime's own
integers. The outputs are those of the model as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir
import onnxruntime as ort

from intact.engines.exact_sums import EXACT, exact_sums, saturates_pairs
from intact.errors import ExportError
from intact.formats.base.comparison import stored_feeds
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, ByDefault, EngineBeside, compare
from intact.formats.onnx_integer.write import integer_model
from intact.graph.files.checks import refuse_other_files
from intact.plan import QuantizedGraph
from intact.program import Array
from intact.program.realize import integer_program, realize

RUNTIME = f"ONNX Runtime {ort.__version__}"


class OnnxIntegerRuntime:
    """A model made ready to run.

    Args:
        content: The file.
        threads: Threads inside one operator; 0 lets the runtime choose.
        exact: Whether sums of 8-bit products are exact, also on a processor that saturates pairs
            of them; False runs the model as the runtime does by default.

    Attributes:
        name: The runtime with its version, and with the option that makes sums exact.

    Raises:
        ExportError: The runtime refuses the model.
        ModelError: It has weights in another file.
    """

    def __init__(self, content: bytes, *, threads: int = 0, exact: bool = True) -> None:
        # A file may name any path of this machine for its weights, and the runtime would read it.
        refuse_other_files(content, "the integer model")
        # The option costs time, and other processors sum exactly without it.
        exact = exact and saturates_pairs()
        self.name = f"{RUNTIME}, {EXACT}" if exact else RUNTIME
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that spin between runs would hold the cores of the engine.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._session = ort.InferenceSession(
                _exact(content, options) if exact else content,
                options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:  # the runtime raises a dozen unrelated classes
            raise ExportError(f"{RUNTIME} refuses the model: {_first_line(error)}") from error
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; return its outputs by name.

        Raises:
            ExportError: The runtime fails on these inputs.
        """
        try:
            arrays = self._session.run(self._outputs, dict(feeds))
        except Exception as error:  # see above
            raise ExportError(f"{RUNTIME} fails on this input: {_first_line(error)}") from error
        return dict(zip(self._outputs, arrays, strict=True))


def _exact(content: bytes, options: ort.SessionOptions) -> bytes:
    """Set the options for exact sums; return the model to open."""
    model = exact_sums(ir.from_proto(onnx.load_from_string(content)), options)
    return bytes(ir.to_proto(model).SerializeToString())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def verify_onnx_integer(
    plan: QuantizedGraph,
    content: bytes,
    batches: Iterable[Feeds],
    *,
    float_ends: bool = False,
    threads: int = 0,
) -> Verification:
    """Compare an integer ONNX model in ONNX Runtime with the integers that its plan says.

    Args:
        plan: The plan.
        content: What was written from it.
        batches: Inputs by name: floats, or codes for inputs that are integers.
        float_ends: It takes and gives floats.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
    """
    program = integer_program(plan, float_ends=float_ends)
    graph = realize(program)
    shown = graph.shown()
    exact = not plan.target.saturates_pairs
    # A second session, as further outputs may change what the runtime fuses.
    shown_model = integer_model(graph, program, tuple(shown))
    watched = OnnxIntegerRuntime(shown_model, threads=threads, exact=exact)
    written = OnnxIntegerRuntime(content, threads=threads, exact=exact)
    by_default = None
    if exact and saturates_pairs():
        default = OnnxIntegerRuntime(content, threads=threads, exact=False)
        by_default = ByDefault(default.run, ir.from_proto(onnx.load_from_string(content)))

    def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
        values = watched.run(feeds)
        stored = {t.name: place.as_stored(values[name]) for name, (t, place) in shown.items()}
        return written.run(feeds), stored

    reference = EngineBeside(program, (tensor for tensor, _ in shown.values()), threads=threads)
    given = (stored_feeds(program, feeds) for feeds in batches)
    return compare(plan, written.name, run, reference, given, program.outputs, by_default)
