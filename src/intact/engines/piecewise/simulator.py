"""Simulates many quantization plans of one float graph, and computes what they share only once.

A search tries hundreds of plans that differ in a few bit-widths. So the graph is cut into pieces
wherever some tensor is quantized, each piece is an ONNX Runtime session, and quantizers run in
between. A plan with ``conv7`` at 4 instead of 8 bits then compiles one small session anew, and
starts from the cached activations in front of ``conv7``.

The cut is in `pieces.py`, where quantizers lie in `streams.py`, a plan resolved to pieces in
`plan.py`, and what is kept from plan to plan in `caches.py`.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from intact._memo import Memo
from intact.config import TensorQuantConfig
from intact.engines.piecewise.caches import Checkpoints, CompiledCache
from intact.engines.piecewise.pieces import Cut, cut, piece_model
from intact.engines.piecewise.plan import Flow, PiecewisePlan, Step
from intact.engines.piecewise.streams import Layout, Quantizer, Streams, quantizer_of
from intact.engines.session import Feeds, make_session, run_session
from intact.errors import PlanError
from intact.graph import Graph
from intact.graph.files.tensors import weight_bytes
from intact.graph.ops import is_constant
from intact.plan import QuantizedGraph, refuse_unready
from intact.plan.overflows import Overflows

Array = npt.NDArray[Any]

Arrays = dict[str, npt.NDArray[Any]]

_CUTS = 64

"""Number of splits of the graph in the cache."""

_LAYOUTS = 256

"""Number of structures of plans whose places of quantizers are kept."""

_BOUNDS = 4096

"""Number of bounds of sums that are kept: one for each layer and its grids and scales."""

_INTEGERS = 4096

"""Number of stored integers of constants whose digests are kept."""

_QUANTIZERS = 4096

"""Number of quantizers in the cache; candidates share most of them."""

_SESSION_BYTES = 1 << 16

"""Approximate size of a session without weights, in bytes."""


class PiecewiseSimulator:
    """Simulates plans of one graph; their common parts are compiled and run once.

    It computes the same as `Simulator` for each plan, and also reproduces wrap-around of
    accumulators as far as float32 can (see `intact.engines.limits.needs_integers`). The graph is
    split wherever the plan quantizes; SimQ runs between the pieces. Another width of an activation
    changes only quantizer parameters, another width of a weight compiles a small session.
    Activations at the graph's articulation points are cached, so that a plan that equals earlier
    ones up to there resumes from there. Results do not depend on the caches or on threads.

    Args:
        graph: The normalized float graph of all plans.
        cache_bytes: Size limit of cached activations.
        session_bytes: Size limit of compiled pieces, by their weights.

    Attributes:
        steps_run: Number of pieces run so far.
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
        self._memo = Memo()
        self._cuts: CompiledCache[Cut] = CompiledCache(_CUTS)
        self._sessions: CompiledCache[tuple[ort.InferenceSession, tuple[str, ...]]] = CompiledCache(
            session_bytes
        )
        self._quantizers: CompiledCache[Quantizer] = CompiledCache(_QUANTIZERS)
        self._checkpoints = Checkpoints(cache_bytes)
        self._lock = Lock()
        self.steps_run = 0

    @property
    def kept_bytes(self) -> int:
        """Size of the cached activations in bytes."""
        return self._checkpoints.size

    @property
    def compiled(self) -> int:
        """Number of pieces compiled so far."""
        return self._sessions.made

    @property
    def compiled_bytes(self) -> int:
        """Size of the compiled pieces that are kept, by their weights."""
        return self._sessions.size

    def prepare(self, plan: QuantizedGraph) -> PiecewisePlan:
        """Prepare a plan for running, without compiling.

        Args:
            plan: A calibrated plan of the simulator's graph; it must not change while the result is
                used.

        Raises:
            PlanError: An end has no scale yet, or the plan belongs to another graph.
        """
        if plan.graph is not self.graph and plan.graph.hash != self.graph.hash:
            raise PlanError(
                "the plan belongs to another graph", remedy="make a simulator of its graph"
            )
        refuse_unready(plan)
        remembered = self._memo.bounded
        layout = remembered("layouts", _LAYOUTS)(plan.structure(), partial(Layout.from_plan, plan))
        overflows = Overflows.of(plan, remembered("bounds", _BOUNDS))
        streams = Streams.from_plan(plan, layout, overflows, self._quantizer)
        found = self._cuts.get(streams.places, lambda: (cut(self.graph, streams), 1))
        return PiecewisePlan.resolve(
            found,
            streams,
            is_exact=not overflows.need_integers,
            memo=remembered("integers", _INTEGERS),
        )

    def _quantizer(self, config: TensorQuantConfig) -> Quantizer:
        """Return the quantizer of a config, shared by all plans with equal grid and scale."""
        if config.params is None or config.grid.exponential:  # it holds the plan's own config
            return quantizer_of(config)
        return self._quantizers.get(config.key, lambda: (quantizer_of(config), 1))

    def run(self, prepared: PiecewisePlan, chunk: int, feeds: Feeds) -> Arrays:
        """Run one chunk of the samples; thread-safe.

        Args:
            prepared: A result of `prepare` of this simulator.
            chunk: Identifies the feeds: one number must always have the same data.
            feeds: The model's inputs by name.

        Returns:
            The model's outputs by name; they must not be changed.

        Raises:
            ModelError: The runtime rejects a piece or fails on these inputs.
            DataError: A value that is quantized logarithmically is NaN.
        """
        found: Arrays = {}
        needed = self._steps_to_run(prepared, chunk, feeds, found)
        flow = Flow(prepared, needed, {**self._fixed, **feeds, **found})
        with self._lock:
            self.steps_run += len(needed)
        for step in needed:
            session, names = self._session(step)
            arrays = [flow.take(stream) for stream in step.piece.inputs]
            outputs = step.piece.made
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

        def compile_piece() -> tuple[tuple[ort.InferenceSession, tuple[str, ...]], int]:
            constants = {
                reader: point.config.dequantize(point.constant_codes())
                for reader, point in step.constants.items()
            }
            model, names = piece_model(self.graph, step.piece, constants)
            if step.float16:
                from intact.plan.float16 import compute  # which few plans need

                compute(model, step.float16, step.rounded)
            size = weight_bytes(model) + _SESSION_BYTES
            return (make_session(model, threads=1, shares_memory=True), names), size

        return self._sessions.get(step.variant, compile_piece)

    def _steps_to_run(
        self, prepared: PiecewisePlan, chunk: int, feeds: Feeds, found: Arrays
    ) -> list[Step]:
        """List the steps that must run, in order; add cached checkpoints to ``found``."""
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
