"""Simulates many quantization plans of one float graph, and computes what they share only once.

A search tries hundreds of plans that differ in a few bit-widths. So the graph is cut into pieces
wherever some tensor is quantized, each piece is an ONNX Runtime session, and quantizers run in
between. A plan with ``conv7`` at 4 instead of 8 bits then compiles one small session anew, and
starts from the cached activations in front of ``conv7``.

`PiecewiseSimulator` runs plans. `Flow` hands tensors from piece to piece within one run.
`Checkpoints` caches activations, `CompiledCache` caches sessions and quantizers, both within a
size.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from intact._memo import Memo
from intact.config import TensorQuantConfig
from intact.engines.piecewise.pieces import Cut, cut, piece_model
from intact.engines.piecewise.plan import PiecewisePlan, Step
from intact.engines.piecewise.streams import Layout, Quantizer, Stream, Streams, quantizer_of
from intact.engines.session import Feeds, make_session, run_session
from intact.errors import DataError, PlanError
from intact.graph import Graph
from intact.graph.files.tensors import weight_bytes
from intact.graph.ops import is_constant
from intact.plan import QuantizedGraph, refuse_unready
from intact.plan.overflows import Overflows

Array = npt.NDArray[Any]


class Flow:
    """Hands each step of a run the streams that it reads, and frees them after their last reader.

    A `Stream` is a tensor as one reader gets it: as computed, or behind its quantizer. The computed
    tensor itself is the stream without an end.

    Args:
        prepared: The plan that is run.
        steps: The steps that will run.
        given: Arrays of values that are not computed; they are not changed.
    """

    def __init__(
        self, prepared: PiecewisePlan, steps: Iterable[Step], given: Mapping[str, Array]
    ) -> None:
        self._quantizers = prepared.quantizers
        self._computed: dict[str, Array] = dict(given)
        # Values that nobody else holds, which a quantizer may overwrite.
        self._ours: set[str] = set()
        self._streams: dict[Stream, Array] = {}
        reads = [stream for step in steps for stream in step.piece.inputs]
        # How often each stream is still read: the last reader frees it, or lets it be overwritten.
        self._left = Counter((*reads, *prepared.outputs.values()))
        self._read = frozenset(self._left)  # a step may hold them while it reads others
        for stream in [stream for stream in self._left if stream.end]:
            self._left[Stream(stream.value)] += 1  # computed from the producer's output

    def put(self, value: str, array: Array, *, is_ours: bool) -> None:
        """Store a computed value; it may be overwritten if ``is_ours``."""
        self._computed[value] = array
        if is_ours:
            self._ours.add(value)

    def take(self, stream: Stream) -> Array:
        """Return a stream for one of its readers, which must not change it.

        Raises:
            DataError: It is a missing input of the model.
        """
        array = self._streams.get(stream)
        if array is None:
            array = self._make(stream)
        self._left[stream] -= 1
        if self._left[stream]:
            self._streams[stream] = array
        else:
            self._streams.pop(stream, None)
        return array

    def _make(self, stream: Stream) -> Array:
        quantizer = self._quantizers.get(stream)
        if not stream.end:
            array = self._source(stream.value)
            in_place = stream.value in self._ours
        else:
            source = Stream(stream.value)
            array = self.take(source)
            is_last = source not in self._streams and source not in self._read
            in_place = is_last and (source in self._quantizers or stream.value in self._ours)
        if quantizer is None:
            return array
        return np.asarray(quantizer(array, array if in_place else None))

    def _source(self, value: str) -> Array:
        try:
            return self._computed.pop(value)
        except KeyError:
            raise DataError(
                f"input {value!r} is missing", remedy="give an array of that name"
            ) from None


Key: TypeAlias = tuple[int, bytes]

"""Number of a chunk, and the key of a value."""

_AGEING = 4096

"""Requests after which all counts are halved, so that unused entries are evicted."""


class Checkpoints:
    """A cache of activations with a size limit; thread-safe.

    An array is cached from the second request of its key on, and evicts others only if it is
    requested more often (TinyLFU, Einziger et al. 2017): so the activations of a single candidate
    do not evict those that all candidates share.

    Args:
        limit: Size limit in bytes; 0 caches nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._arrays: OrderedDict[Key, npt.NDArray[Any]] = OrderedDict()
        self._counts: dict[Key, int] = {}
        self._requests = 0
        self.size = 0

    def find(self, key: Key) -> npt.NDArray[Any] | None:
        """Return a cached array, which must not be changed, and count the request."""
        with self._lock:
            self._count(key)
            array = self._arrays.get(key)
            if array is not None:
                self._arrays.move_to_end(key)
            return array

    def offer(self, key: Key, array: npt.NDArray[Any]) -> bool:
        """Cache an array if it is requested often enough; return whether it was cached."""
        with self._lock:
            count = self._counts.get(key, 0)
            if count < 2 or array.nbytes > self._limit or key in self._arrays:
                return False
            # In the order of last use: the first that are asked for less often make room.
            victims, freed = [], self._limit - self.size
            for other, theirs in self._arrays.items():
                if freed >= array.nbytes:
                    break
                if self._counts.get(other, 0) < count:
                    victims.append(other)
                    freed += theirs.nbytes
            if freed < array.nbytes:
                return False
            for victim in victims:
                self.size -= self._arrays.pop(victim).nbytes
            # Shared by all plans from now on: whoever wrote to it would change the results of
            # others.
            array.flags.writeable = False
            self._arrays[key] = array
            self.size += array.nbytes
            return True

    def _count(self, key: Key) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1
        self._requests += 1
        if self._requests >= max(_AGEING, 8 * len(self._arrays)):
            self._requests = 0
            self._counts = {k: count // 2 for k, count in self._counts.items() if count > 1}


Made = TypeVar("Made")
"""The kind of object that a cache holds: sessions, quantizers, cuts of the graph."""


class CompiledCache(Generic[Made]):
    """A least-recently-used cache of compiled objects, with a size limit; thread-safe.

    Args:
        limit: Limit of the sum of sizes; the last entry stays even if it is larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, tuple[Made, int]] = OrderedDict()
        self.size = 0
        self.made = 0

    def get(self, key: Hashable, make: Callable[[], tuple[Made, int]]) -> Made:
        """Return the entry, or make it: ``make`` returns it with its size."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
            # Inside the lock: two threads that want the same session would compile it twice, each
            # with its weights.
            entry = make()
            self.made += 1
            self._entries[key] = entry
            self.size += entry[1]
            while self.size > self._limit and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self.size -= freed
            return entry[0]


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
