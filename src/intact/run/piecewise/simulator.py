"""The simulation of many plans of one graph, in pieces that they share."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from intact.config import TensorQuantConfig
from intact.errors import PlanError
from intact.graph import Graph
from intact.graph.files.tensors import weight_bytes
from intact.graph.ops import is_constant
from intact.plan import QuantizedGraph, refuse_unready
from intact.run.piecewise.cache import Checkpoints, Compiled
from intact.run.piecewise.flow import Flow
from intact.run.piecewise.model import piece_model
from intact.run.piecewise.pieces import Cut, cut
from intact.run.piecewise.prepared import Prepared, Step
from intact.run.piecewise.quantizer import Quantizer, quantizer_of
from intact.run.piecewise.streams import Streams
from intact.run.session import Feeds, make_session, run_session

Arrays = dict[str, npt.NDArray[Any]]

_CUTS = 64
"""Topologies whose cut is remembered: those of a search's base and of what is near it."""

_QUANTIZERS = 4096
"""Quantisers that are remembered: candidates share most of them."""

_SESSION_BYTES = 1 << 16
"""What a session takes beside its weights, roughly."""


class PiecewiseSimulator:
    """Simulates plans of one graph; what they have in common is compiled and run once.

    Gives what `intact.run.simulate.Simulator` gives of each plan, and also follows sums that leave
    an accumulator that wraps round, as far as float32 can (see `intact.run.limits.needs_integers`).
    The graph is cut wherever the plan quantises; SimQ runs between the pieces. Another width costs
    a few numbers, another width of a weight a small session. Activations at the graph's
    articulation points are kept, so that a plan that agrees with earlier ones up to there goes on
    from there. Results depend neither on what is kept nor on threads.

    Args:
        graph: The normalised float graph of all plans.
        cache_bytes: Bound of the activations that are kept.
        session_bytes: Bound of the compiled pieces that are kept, by their weights.

    Attributes:
        steps_run: How many pieces were run so far.
    """

    def __init__(
        self, graph: Graph, *, cache_bytes: int = 1 << 30, session_bytes: int = 1 << 29
    ) -> None:
        self.graph = graph
        self._fixed: Arrays = {
            str(value.name): value.const_value.numpy()
            for value in graph.outputs
            if is_constant(value) and value.const_value is not None
        }
        self._cuts: Compiled[Cut] = Compiled(_CUTS)
        self._sessions: Compiled[tuple[ort.InferenceSession, tuple[str, ...]]] = Compiled(
            session_bytes
        )
        self._quantizers: Compiled[Quantizer] = Compiled(_QUANTIZERS)
        self._checkpoints = Checkpoints(cache_bytes)
        self._lock = Lock()
        self.steps_run = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the activations that are kept."""
        return self._checkpoints.size

    @property
    def compiled(self) -> int:
        """How many pieces were compiled so far."""
        return self._sessions.made

    def prepare(self, plan: QuantizedGraph) -> Prepared:
        """Return what running a plan takes; compiles nothing.

        Args:
            plan: A calibrated plan of the simulator's graph; not changed, and not to be changed
                while what is returned is in use.

        Raises:
            PlanError: An end has no scale yet, or the plan is of another graph.
        """
        if plan.graph is not self.graph and plan.graph.hash != self.graph.hash:
            raise PlanError("the plan is of another graph", remedy="make a simulator of its graph")
        refuse_unready(plan)
        streams = Streams.of(plan, self._quantizer)
        found = self._cuts.get(streams.places, lambda: (cut(self.graph, streams), 1))
        return Prepared.of(found, streams)

    def _quantizer(self, config: TensorQuantConfig) -> Quantizer:
        """Return what puts data on a config's grid; one for all plans that agree on it."""
        params = config.params
        if params is None or config.grid.exponential:  # the quantiser holds the plan's own config
            return quantizer_of(config)
        arrays = ((array.shape, array.tobytes()) for array in params)
        return self._quantizers.get((config.grid, *arrays), lambda: (quantizer_of(config), 1))

    def run(self, prepared: Prepared, chunk: int, feeds: Feeds) -> Arrays:
        """Run one chunk of the samples.

        Chunks may be run side by side, on threads.

        Args:
            prepared: By `prepare` of this simulator.
            chunk: Names the feeds: the same number must always come with the same data.
            feeds: The model's inputs by name.

        Returns:
            The model's outputs by name, not to be written to.

        Raises:
            ModelError: The runtime refuses a piece or fails on these inputs.
            DataError: A value is NaN where levels are logarithmic.
        """
        found: Arrays = {}
        needed = self._needed(prepared, chunk, feeds, found)
        flow = Flow(prepared, needed, {**self._fixed, **feeds, **found})
        with self._lock:
            self.steps_run += len(needed)
        for step in needed:
            session, names = self._session(step)
            arrays = [flow.take(stream) for stream in step.piece.inputs]
            outputs = [str(value.name) for value in step.piece.outputs]
            results = run_session(session, dict(zip(names, arrays, strict=True)), outputs)
            del arrays
            for name, array in zip(outputs, results, strict=True):
                kept = name in prepared.checkpoints and self._checkpoints.offer(
                    (chunk, prepared.keys[name]), array
                )
                flow.put(name, array, is_ours=not kept)
        return {name: flow.take(stream) for name, stream in prepared.outputs.items()}

    def _session(self, step: Step) -> tuple[ort.InferenceSession, tuple[str, ...]]:
        """Return a step's session and the names of its inputs."""

        def compiled() -> tuple[tuple[ort.InferenceSession, tuple[str, ...]], int]:
            constants = {
                reader: point.config.dequantize(point.constant_codes())
                for reader, point in step.constants.items()
            }
            model, names = piece_model(self.graph, step.piece, constants)
            size = weight_bytes(model) + _SESSION_BYTES
            return (make_session(model, threads=1, shares_memory=True), names), size

        return self._sessions.get(step.variant, compiled)

    def _needed(self, prepared: Prepared, chunk: int, feeds: Feeds, found: Arrays) -> list[Step]:
        """Return the steps that have to run, in order; put checkpoints into ``found``."""
        wanted: dict[int, None] = {}
        waiting = [stream.value for stream in prepared.outputs.values()]
        seen = {*feeds, *self._fixed}
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in prepared.checkpoints:
                array = self._checkpoints.find((chunk, prepared.keys[name]))
                if array is not None:
                    found[name] = array
                    continue
            at = prepared.producers.get(name)
            if at is not None and at not in wanted:
                wanted[at] = None
                waiting += [stream.value for stream in prepared.steps[at].piece.inputs]
        return [prepared.steps[at] for at in sorted(wanted)]
