"""A written model in ONNX Runtime, which computes in float what it says."""

from __future__ import annotations

from intact.engines.session import make_session, run_session
from intact.errors import ExportError, ModelError
from intact.formats.base.format import Feeds
from intact.formats.onnx_levels.write import LevelsModel


class LevelsRuntime:
    """A compiled model.

    Args:
        exported: What was written.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses it.
    """

    def __init__(self, exported: LevelsModel, *, threads: int = 0) -> None:
        try:
            self._session = make_session(exported.model, threads=threads)
        except ModelError as error:
            raise ExportError(error.with_flags) from error
        self._outputs = [str(value.name) for value in exported.model.graph.outputs]

    def run(self, feeds: Feeds) -> Feeds:
        """Run one batch; return the outputs by name.

        Raises:
            ExportError: The runtime fails on these inputs.
        """
        try:
            arrays = run_session(self._session, dict(feeds), self._outputs)
        except ModelError as error:
            raise ExportError(error.with_flags) from error
        return dict(zip(self._outputs, arrays, strict=True))
