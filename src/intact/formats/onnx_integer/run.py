"""An integer ONNX model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
import onnxruntime as ort

from intact.engines.exact_sums import EXACT, exact_sums, saturates_pairs
from intact.errors import ExportError
from intact.graph.files.checks import refuse_other_files
from intact.program import Array

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
        refuse_other_files(content, "the integer model")
        exact = exact and saturates_pairs()
        self.name = f"{RUNTIME}, {EXACT}" if exact else RUNTIME
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
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
