"""Runs a plan node by node, in float and quantized at the same time.

A pass iterates over the nodes, and sees for each the inputs of both models, batch by batch::

    for stop in Walk(plan, samples, most=128):
        ...  # stop.in_float, stop.quantized; scales of stop.node may be changed here

A refinement may change the plan at each node, for example a weight's scale. Later nodes then run on
the activations of the changed plan. Activations that wait for their readers are in memory, and on
disk beyond a limit (`Shelf`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import QuantState
from intact.data.stream import Samples
from intact.engines.integer.islands import compiled_nodes
from intact.graph import IMPLICIT_SLOT, is_constant
from intact.graph.graph import values_read_inside
from intact.limits import WALKED_AT_ONCE
from intact.plan import QuantizedGraph, QuantPoint
from intact.program.lower.chains import Points
from intact.program.operations import FloatNodes

T = TypeVar("T")
Array: TypeAlias = npt.NDArray[Any]


class Shelf:
    """The memory for activations, and the folder for those beyond it.

    Args:
        most: Bytes in memory; None for no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._held = 0
        self._files = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_short(self) -> bool:
        """Whether more than half of the memory is taken: copies are made one at a time then."""
        return self.most is not None and (self._files > 0 or 2 * self._held > self.most)

    def put(self, array: Array) -> Array | Path:
        """Take an array: it stays as it is, or becomes a file where there is no room."""
        if self.most is None or self._held + array.nbytes <= self.most:
            self._held += array.nbytes
            return array
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="intact-walk-")
        self._files += 1
        path = Path(self._folder.name) / f"{self._files}.npy"
        np.save(path, array, allow_pickle=False)
        return path

    def get(self, kept: Array | Path) -> Array:
        """Return an array."""
        if isinstance(kept, Path):
            found: Array = np.load(kept, allow_pickle=False)
            return found
        return kept

    def drop(self, kept: Array | Path) -> None:
        """Forget an array."""
        if isinstance(kept, Path):
            kept.unlink()
        else:
            self._held -= kept.nbytes


class KeptActivations(MutableMapping[ir.Value, Array]):
    """The activations of one batch, on a shelf."""

    def __init__(self, shelf: Shelf, arrays: dict[ir.Value, Array]) -> None:
        self._shelf = shelf
        self._kept: dict[ir.Value, Array | Path] = {}
        self.update(arrays)

    def __getitem__(self, value: ir.Value) -> Array:
        """Return an activation, read anew where it is on disk."""
        return self._shelf.get(self._kept[value])

    def __setitem__(self, value: ir.Value, array: Array) -> None:
        """Keep an activation."""
        # Forgotten first, or the shelf would count both and its file would stay.
        if value in self._kept:
            del self[value]
        self._kept[value] = self._shelf.put(array)

    def __delitem__(self, value: ir.Value) -> None:
        """Forget an activation."""
        self._shelf.drop(self._kept.pop(value))

    def __contains__(self, value: object) -> bool:
        """Tell whether it is kept, without reading it."""
        return value in self._kept

    def __iter__(self) -> Iterator[ir.Value]:
        """Yield what is kept."""
        return iter(self._kept)

    def __len__(self) -> int:
        """Count what is kept."""
        return len(self._kept)


class LazySequence(Sequence[T], Generic[T]):
    """Items that are made each time they are asked for, so that one at a time takes memory.

    Args:
        make: From a number to an item.
        numbers: Those of the items.
    """

    def __init__(self, make: Callable[[int], T], numbers: Sequence[int]) -> None:
        self._make, self._numbers = make, numbers

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> LazySequence[T]: ...

    def __getitem__(self, at: int | slice) -> T | LazySequence[T]:
        """Make an item, or choose some."""
        if isinstance(at, slice):
            return LazySequence(self._make, self._numbers[at])
        return self._make(self._numbers[at])

    def __len__(self) -> int:
        """Count them."""
        return len(self._numbers)


Arrays: TypeAlias = dict[ir.Value, Array]
Run: TypeAlias = Callable[[Arrays], list[Array]]
"""Computes a node's outputs from its inputs and its quantized constants."""


@dataclass(frozen=True)
class Stop:
    """A node of the walk, before its quantized results are computed.

    Attributes:
        node: The node.
        run: Computes the node.
        in_float: Its inputs in the float model, for each batch.
        quantized: Its inputs in the quantized model, with the constants of the current plan.
        results: Its outputs in the float model, for each batch, in the order of its outputs; none
            where the walk leaves out ends.

    Where the memory of samples is limited, what is not in memory is read, or computed, each time it
    is asked for.
    """

    node: ir.Node
    run: Run
    in_float: Sequence[Arrays]
    quantized: Sequence[Arrays]
    results: Sequence[list[Array]]


class Walk:
    """Runs both models over some samples; activations are kept as long as a node reads them.

    Args:
        plan: A plan with scales; read again at each node.
        samples: The data; the first ``most`` samples are used. Their progress counts nodes, and
            activations beyond their memory wait on disk.
        most: Maximum number of samples.
        threads: Threads inside one operator; 0 lets the runtime choose.
        before: Called with each node before its quantized inputs are computed: it may change their
            scales.
        constants: Whether constants are quantized; else the quantized model has those in float.
        ends: Whether results are computed that no node reads. Those of a language model are its
            largest.
        together: Run nodes that no quantizer touches together, as far as they can be, and do not
            stop there: what only they read is not kept. Between two products of a decoder that
            is its attention.
    """

    def __init__(
        self,
        plan: QuantizedGraph,
        samples: Samples,
        *,
        most: int,
        threads: int = 0,
        before: Callable[[ir.Node], None] | None = None,
        constants: bool = True,
        ends: bool = True,
        together: bool = False,
    ) -> None:
        self._computes_ends, self._runs_together = ends, together
        self._plan, self._threads, self._before = plan, threads, before
        self._quantizes_constants = constants
        self.points = Points.of(plan)
        limited = samples.first(most)
        self._progress = samples.progress
        inputs = {str(value.name): value for value in plan.graph.inputs}
        batches: list[tuple[Arrays, int]] = [
            ({inputs[name]: array for name, array in feeds.items()}, count)
            for feeds, count in limited.real_batches(limited.batch_size(WALKED_AT_ONCE))
        ]
        is_divided = len(batches) == 1 and limited.fixed_batch is None
        first = _halves(*batches[0]) if is_divided else [values for values, _ in batches]
        self._shelf = Shelf(samples.memory)
        self._in_float = [KeptActivations(self._shelf, values) for values in first]
        # As computed: quantized when it is read, with the scale that its end has by then.
        self._quantized = [KeptActivations(self._shelf, values) for values in first]
        self._readers = Counter(
            value for node in plan.graph.nodes for value in _read(node) if not is_constant(value)
        )

    def __iter__(self) -> Iterator[Stop]:
        """Yield each node; the quantized model continues with the plan as changed by the caller."""
        count, done = len(self._plan.graph.nodes), 0
        for part in self._parts():
            if self._progress is not None:
                self._progress(done, count)
            done += len(part)
            if len(part) > 1:
                self._pass(part)
            else:
                yield from self._stop_at(part[0])
            self._forget(part)

    def _stop_at(self, node: ir.Node) -> Iterator[Stop]:
        """Yield a node, and go on with the plan as changed by the caller."""
        if self._before is not None:
            self._before(node)
        constants = self.constants(node)
        run = self.runner((node,), constants)
        floats = {v: v.const_value.numpy() for v in constants if v.const_value is not None}
        in_float, quantized = self._read_by(node, floats, constants)
        outputs = _outputs(node)
        if not self._computes_ends and not any(self._readers[value] for value in outputs):
            yield Stop(node, run, in_float, quantized, [])
            return
        for values, arrays in zip(self._in_float, in_float, strict=True):
            values.update(zip(outputs, run(arrays), strict=True))
        results = self._each(partial(self._results, outputs))
        yield Stop(node, run, in_float, quantized, results)
        # Read again, because the caller may have changed scales or integers at this stop.
        constants = self.constants(node)
        for values, before in zip(self._quantized, quantized, strict=True):
            values.update(zip(outputs, run(before | constants), strict=True))

    def _parts(self) -> Iterator[tuple[ir.Node, ...]]:
        """Yield the nodes in an order in which they can run, one by one or several together."""
        waiting: list[ir.Node] = []
        made: set[ir.Value] = set()
        for node in self._plan.graph.nodes:
            if self._runs_together and not self._is_touched(node):
                waiting.append(node)
                made.update(node.outputs)
                continue
            # A product that does not need what waits goes first: queries, keys and values follow
            # one another.
            if waiting and any(value in made for value in _read(node)):
                yield tuple(waiting)
                waiting, made = [], set()
            yield (node,)
        if waiting:
            yield tuple(waiting)

    def _is_touched(self, node: ir.Node) -> bool:
        """Tell whether a quantizer is at an input or output of a node."""
        name = str(node.name)
        slots = (*range(len(node.inputs)), IMPLICIT_SLOT)
        return any((name, slot) in self.points.at_input for slot in slots) or any(
            value in self.points.at_output for value in (*node.inputs, *node.outputs) if value
        )

    def _pass(self, part: tuple[ir.Node, ...]) -> None:
        """Run nodes that quantize nothing, in both models."""
        inside = Counter(value for node in part for value in _read(node))
        outputs = [
            value
            for node in part
            for value in _outputs(node)
            if self._readers[value] > inside[value]
            or (self._computes_ends and value.is_graph_output())
        ]
        if not outputs:
            return
        run = self.runner(part, {}, outputs)
        for kept in (self._in_float, self._quantized):
            for values in kept:
                values.update(zip(outputs, run(_select_read(part, values)), strict=True))

    def _read_by(
        self, node: ir.Node, floats: Arrays, constants: Arrays
    ) -> tuple[Sequence[Arrays], Sequence[Arrays]]:
        """Return what a node reads in either model, for each batch."""
        return (
            self._each(lambda at: _select_read((node,), self._in_float[at]) | floats),
            self._each(lambda at: self._inputs(node, self._quantized[at]) | constants),
        )

    def _results(self, outputs: Sequence[ir.Value], batch: int) -> list[Array]:
        return [self._in_float[batch][value] for value in outputs]

    def _each(self, make: Callable[[int], T]) -> Sequence[T]:
        """Return something of each batch: one at a time where memory is limited."""
        numbers = range(len(self._in_float))
        return LazySequence(make, numbers) if self._shelf.is_short else [make(at) for at in numbers]

    @property
    def batches(self) -> int:
        """Number of batches."""
        return len(self._in_float)

    def knows(self, value: ir.Value) -> bool:
        """Tell whether a value has been computed and is still kept."""
        return bool(self._in_float) and value in self._in_float[0]

    def in_float(self, value: ir.Value) -> list[Array]:
        """Return a known value in the float model, for each batch."""
        return [values[value] for values in self._in_float]

    def unquantized(self, value: ir.Value) -> list[Array]:
        """Return a known value in the quantized model before it is quantized, for each batch."""
        return [values[value] for values in self._quantized]

    def quantized(self, node: ir.Node, slot: int) -> list[Array]:
        """Return a known input of a node in the quantized model, for each batch."""
        value = node.inputs[slot]
        known = [] if value is None else [values[value] for values in self._quantized]
        return [self._at_input(node, slot, array) for array in known]

    def runner(
        self,
        nodes: Sequence[ir.Node],
        constants: Arrays,
        outputs: Sequence[ir.Value] | None = None,
    ) -> Run:
        """Compile nodes.

        Args:
            nodes: The nodes, in topological order.
            constants: The constants that are fed, by value.
            outputs: What is computed; the outputs of the last one if omitted.
        """
        inside = {value for node in nodes for value in node.outputs}
        read = [
            value
            for value in dict.fromkeys(value for node in nodes for value in _read(node))
            if value not in inside and (not is_constant(value) or value in constants)
        ]
        outputs = _outputs(nodes[-1]) if outputs is None else outputs
        functions = tuple(self._plan.graph.model.functions.values())
        operation = FloatNodes(tuple(nodes), tuple(read), tuple(outputs), functions)
        run = compiled_nodes(str(nodes[-1].name), operation, self._threads)
        return lambda arrays: run(arrays[value] for value in read)

    def constants(self, node: ir.Node) -> Arrays:
        """Return the quantized constants of a node: dequantized, or in float where they stay so."""
        found: Arrays = {}
        for slot, value in enumerate(node.inputs):
            point = self.points.at_input.get((str(node.name), slot))
            if value is not None and point is not None and point.is_constant:
                if self._quantizes_constants or value.const_value is None:
                    found[value] = point.config.dequantize(point.constant_codes())
                else:
                    found[value] = value.const_value.numpy()
        return found

    def _inputs(self, node: ir.Node, values: Mapping[ir.Value, Array]) -> Arrays:
        """Collect a node's inputs in the quantized model."""
        found = _select_read((node,), values)
        found = {value: self._at_output(value, array) for value, array in found.items()}
        for slot, value in enumerate(node.inputs):
            point = self.points.at_input.get((str(node.name), slot))
            if value is not None and point is not None and not point.is_constant:
                found[value] = point.config.fake_quantize(found[value], inplace=False)
        return found

    def _at_input(self, node: ir.Node, slot: int, array: Array) -> Array:
        value = node.inputs[slot]
        array = array if value is None else self._at_output(value, array)
        point = self.points.at_input.get((str(node.name), slot))
        return array if point is None else point.config.fake_quantize(array, inplace=False)

    def _at_output(self, value: ir.Value, array: Array) -> Array:
        point = self.points.at_output.get(value)
        return array if point is None else point.config.fake_quantize(array, inplace=False)

    def _forget(self, part: Sequence[ir.Node]) -> None:
        for node in part:
            self._readers.subtract(value for value in _read(node) if not is_constant(value))
        for value in dict.fromkeys(v for node in part for v in (*_read(node), *_outputs(node))):
            if self._readers[value] <= 0:
                for values in (*self._in_float, *self._quantized):
                    values.pop(value, None)


def _halves(values: Arrays, count: int) -> list[Arrays]:
    """Split a batch in two, so that one half can decide about what follows from the other."""
    if count < 2 or any(array.shape[:1] != (count,) for array in values.values()):
        return [values]
    half = count // 2
    return [
        {value: array[part] for value, array in values.items()}
        for part in (slice(None, half), slice(half, None))
    ]


def bake(
    plan: QuantizedGraph, points: Points, point: QuantPoint, state: QuantState, values: Array
) -> None:
    """Keep the integers of a constant in a plan, and in its points for the nodes to come."""
    if point.config.grid.block is None:
        codes = point.config.quantize(values.astype(np.float64))
    else:
        # Of few bits: a decoder's would take as much memory as its weights in float.
        kind = np.int8 if point.config.quant_min < 0 else np.uint8
        codes = point.config.quantize(values.astype(np.float32, copy=False)).astype(kind)
    point.config.transition(state)
    plan.baked[point.end] = codes
    # Points are made once; without this, later readers would round the weight again.
    baked = msgspec.structs.replace(point, baked=codes)
    for node, slot in point.readers:
        points.at_input[str(node.name), slot] = baked


def _read(node: ir.Node) -> list[ir.Value]:
    """List the values of the graph that a node reads, without duplicates."""
    inside = (value for value in values_read_inside(node) if value.graph is node.graph)
    values = (value for value in (*node.inputs, *inside) if value is not None)
    return list(dict.fromkeys(values))


def _select_read(nodes: Sequence[ir.Node], values: Mapping[ir.Value, Array]) -> Arrays:
    """Select the values that nodes read and do not make."""
    inside = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in _read(node))
    return {v: values[v] for v in read if v not in inside and not is_constant(v)}


def _outputs(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.outputs if value.name]
