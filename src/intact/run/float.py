"""The float model, run as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact.graph import Graph
from intact.run.session import Feeds, make_session, run_session


class FloatModel:
    """A compiled float graph.

    Args:
        graph: The graph.
        threads: Threads inside one operator; 0 lets the runtime choose.
    """

    def __init__(self, graph: Graph, *, threads: int = 0) -> None:
        self.outputs = tuple(str(value.name) for value in graph.outputs)
        self._session = make_session(graph.model, threads=threads)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray[Any, Any]]:
        """Run one batch and return the outputs by name."""
        return dict(zip(self.outputs, run_session(self._session, feeds), strict=True))
