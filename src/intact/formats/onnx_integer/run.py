"""An integer ONNX model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import onnxruntime as ort

from intact.errors import ExportError
from intact.program import Array

RUNTIME = f"ONNX Runtime {ort.__version__}"


class OnnxIntegerRuntime:
    """A model made ready to run.

    Args:
        content: The file.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses the model.
    """

    def __init__(self, content: bytes, *, threads: int = 0) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._session = ort.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime raises a dozen unrelated classes
            raise ExportError(f"{RUNTIME} refuses the model: {_first_line(error)}") from error
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; return what the model hands out, by name.

        Raises:
            ExportError: The runtime fails on these inputs.
        """
        try:
            arrays = self._session.run(self._outputs, dict(feeds))
        except Exception as error:  # see above
            raise ExportError(f"{RUNTIME} fails on this input: {_first_line(error)}") from error
        return dict(zip(self._outputs, arrays, strict=True))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
