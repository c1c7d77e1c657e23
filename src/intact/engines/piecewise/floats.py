"""Runs a float model again with some tensors or constants replaced, computing only what changes.

To measure what quantizing one layer costs, the model runs once on a batch, and then for each layer
only from that layer's result on::

    pieces = FloatPieces(graph, ["conv1", "conv2"])
    known = pieces.values(feeds)  # one whole run
    outputs = pieces.run(known, {"conv2": quantized_conv2})  # what is behind conv2
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from intact.engines.piecewise.pieces import Piece, cut, piece_model
from intact.engines.piecewise.streams import Reader, Streams
from intact.engines.session import Feeds, make_session, run_session
from intact.graph import Graph
from intact.graph.ops import constant_array

Array = npt.NDArray[Any]

_MOST_BYTES = 1 << 28
"""Bytes of a batch's tensors between pieces that are kept; the largest are computed again."""


class FloatPieces:
    """The float model cut at some tensors, so that only what reads a changed one runs again.

    Args:
        graph: The float model.
        tensors: Names of the tensors that can be replaced.
    """

    def __init__(self, graph: Graph, tensors: Collection[str]) -> None:
        self._graph = graph
        self._pieces = cut(graph, Streams(cuts=frozenset(tensors))).pieces
        self._sessions = [_session(graph, piece, {}) for piece in self._pieces]
        self._exchanged: frozenset[int] = frozenset()
        self._outputs = [str(value.name) for value in graph.outputs]
        stored = {str(value.name): constant_array(value) for value in graph.outputs}
        self._fixed = {name: array for name, array in stored.items() if array is not None}
        reads = (stream.value for piece in self._pieces for stream in piece.inputs)
        self._reads = Counter((*reads, *self._outputs))

    def exchanged(self, constants: Mapping[Reader, Array]) -> FloatPieces:
        """Return the model with other constants, by the nodes and slots that read them."""
        # Shares pieces and sessions but for those with other constants, which are compiled anew.
        found = copy.copy(self)
        found._sessions = list(self._sessions)
        changed = set(self._exchanged)
        for at, piece in enumerate(self._pieces):
            own = {reader: constants[reader] for reader in piece.constants if reader in constants}
            if own:
                changed.add(at)
                # The store that sessions share keeps what it once held: these come and go.
                found._sessions[at] = _session(self._graph, piece, own, shares_memory=False)
        found._exchanged = frozenset(changed)
        return found

    def values(self, feeds: Feeds, *, limit: float = _MOST_BYTES) -> dict[str, Array]:
        """Run one batch, and return what `run` goes on from: inputs, outputs and tensors between.

        Args:
            feeds: The model's inputs by name.
            limit: Bytes of the tensors; beyond it, the largest are left out.
        """
        known = {**self._fixed, **feeds}
        sizes: dict[str, int] = {}
        left = Counter(self._reads)
        dropped: set[str] = set()
        for piece, session in zip(self._pieces, self._sessions, strict=True):
            made = _run(piece, session, known)
            known |= made
            sizes |= {name: array.nbytes for name, array in made.items()}
            left.subtract(stream.value for stream in piece.inputs)
            # The largest first: it frees most, and what makes it runs again if someone needs it.
            while sum(sizes.values()) > limit:
                largest = max(sizes, key=lambda name: sizes[name])
                del sizes[largest]
                dropped.add(largest)
            for name in [name for name in dropped if left[name] <= 0]:
                known.pop(name, None)
        return known

    def run(self, known: Mapping[str, Array], changed: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name, with other arrays for some tensors.

        Args:
            known: What `values` returns for the batch, of this model or of that before constants
                were exchanged.
            changed: The other arrays by the names of their tensors.
        """
        now = {**known, **changed}
        for at in self._pieces_to_run(known, changed):
            made = _run(self._pieces[at], self._sessions[at], now)
            now |= {name: array for name, array in made.items() if name not in changed}
        return {name: now[name] for name in self._outputs}

    def _pieces_to_run(self, known: Mapping[str, Array], changed: Mapping[str, Array]) -> list[int]:
        """List the pieces that compute something else than is known, and what these need."""
        stale = set(changed)
        for at, piece in enumerate(self._pieces):
            if at in self._exchanged or any(stream.value in stale for stream in piece.inputs):
                stale |= set(piece.made)
        there = {*changed, *(name for name in known if name not in stale)}
        wanted = set(self._outputs)
        found = []
        for at in reversed(range(len(self._pieces))):
            piece = self._pieces[at]
            if (wanted - there) & set(piece.made):
                found.append(at)
                wanted |= {stream.value for stream in piece.inputs}
        return found[::-1]


def _session(
    graph: Graph, piece: Piece, constants: Mapping[Reader, Array], *, shares_memory: bool = True
) -> ort.InferenceSession:
    model, _ = piece_model(graph, piece, constants)
    return make_session(model, threads=1, shares_memory=shares_memory)


def _run(
    piece: Piece, session: ort.InferenceSession, known: Mapping[str, Array]
) -> dict[str, Array]:
    feeds = {stream.value: known[stream.value] for stream in piece.inputs}
    return dict(zip(piece.made, run_session(session, feeds, piece.made), strict=True))
