"""Compares a QDQ model in ONNX Runtime with the integer engine, and with the simulation.

The weights of float nodes, and the rows looked up, are compared with the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.engines.exact_sums import saturates_pairs
from intact.engines.integer.engine import IntegerEngine
from intact.engines.limits import limits_of_simulation
from intact.engines.session import make_session, run_session
from intact.engines.simulate import Simulator
from intact.errors import ConfigError, PlanError
from intact.formats.base.block_layers import BlockLayers
from intact.formats.base.comparison import LayerComparison, activations
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import (
    Arrays,
    ByDefault,
    EngineBeside,
    OutputsOfSimulation,
    compare,
)
from intact.formats.onnx_qdq.caches import CacheLayers
from intact.formats.onnx_qdq.dynamic import running_tensors, showing
from intact.formats.onnx_qdq.executed import executed_of, loaded
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.write import QDQ_FILE, QdqModel
from intact.plan import Codes, QuantizedGraph, TensorEnd, quantization_points
from intact.plan.stored_weights import is_cached
from intact.program import Program, Tensor
from intact.program.lower import lower


class StoredComparison:
    """Compares integers that no layer of integers shows.

    Weights are compared as the file has them, once. Rows of tables are compared as the runtime
    looked them up.

    Args:
        plan: The plan.
        exported: What was written from it.

    Attributes:
        layers: What was found, by the ends of the plan.
        watched: Names of the values that the runtime has to show: what was looked up by the end of
            the table, indices by the end where the node reads them.

    Raises:
        PlanError: The model lacks a constant.
    """

    def __init__(self, plan: QuantizedGraph, exported: QdqModel) -> None:
        self._exported = exported
        self._tables: dict[TensorEnd, Codes] = {}
        self._found: dict[TensorEnd, LayerComparison] = {}
        self.watched: dict[TensorEnd, str] = {}
        inputs = {str(value.name) for value in exported.model.graph.inputs}
        for point in quantization_points(plan):
            for node, slot in point.readers:
                end = TensorEnd.input(str(node.name), slot)
                if end in exported.blocks:
                    self._blocks(end, point.constant_codes())
                if end not in exported.stored:
                    continue
                expected = point.constant_codes()
                # A weight is compared as the file holds it: the runtime turns it into floats before
                # its first run and shows no codes.
                if end not in exported.gathered:
                    self._weight(end, expected)
                    continue
                self._tables[end] = expected
                self._found[end] = LayerComparison(str(end), operation="Gather of codes")
                at = exported.gathered[end]
                self.watched[end] = at.codes
                if at.indices not in inputs:
                    self.watched[_indices_end(end)] = at.indices

    @property
    def layers(self) -> list[LayerComparison]:
        """What was found, in the order of the plan."""
        return list(self._found.values())

    def add(self, feeds: Feeds, shown: Mapping[TensorEnd, npt.NDArray[Any]]) -> None:
        """Compare the rows that one batch looked up."""
        for end, table in self._tables.items():
            at = self._exported.gathered[end]
            # Indices that the model computes are the runtime's own, so that only the lookup is
            # compared.
            indices = shown[_indices_end(end)] if _indices_end(end) in shown else feeds[at.indices]
            rows = np.take(table, indices, at.axis).astype(np.int64)
            self._found[end].add(shown[end].astype(np.int64), rows)

    def _weight(self, end: TensorEnd, expected: Codes) -> None:
        stored = _constant(self._exported, self._exported.stored[end])
        found = LayerComparison(str(end), operation="weight of a float node")
        found.add(stored.astype(np.int64), expected.astype(np.int64))
        self._found[end] = found

    def _blocks(self, end: TensorEnd, expected: Codes) -> None:
        stored = self._exported.blocks[end]
        found = LayerComparison(str(end), operation="weight in blocks")
        found.add(stored.codes_of(_constant(self._exported, stored.codes)), expected)
        self._found[end] = found


def _constant(exported: QdqModel, name: str) -> npt.NDArray[Any]:
    """Return a constant of a written model.

    Raises:
        PlanError: There is none of that name.
    """
    stored = exported.model.graph.initializers.get(name)
    if stored is None or stored.const_value is None:
        raise PlanError(
            f"{QDQ_FILE}: not the model of this plan, it has no constant {name!r}",
            remedy="quantize again",
        )
    return stored.const_value.numpy()


def _indices_end(table: TensorEnd) -> TensorEnd:
    return TensorEnd.input(table.node, 1)


_Codes = dict[TensorEnd, npt.NDArray[Any]]


class _Shown(NamedTuple):
    """What the runtime shows of one batch.

    Attributes:
        codes: Integers by tensor end.
        values: What lies around layers of dynamic activations, and of weights in blocks, by name of
            the model's value.
    """

    codes: _Codes
    values: Arrays


_MOVED = "it only moves integers, which are compared where they are made"
_IN_FLOAT = "it is computed in float"


def verify_qdq(
    plan: QuantizedGraph, exported: QdqModel, batches: Iterable[Feeds], *, threads: int = 0
) -> Verification:
    """Compare a written model in ONNX Runtime with the integers that its plan says.

    Args:
        plan: The plan.
        exported: What was written from it.
        batches: Inputs by name; every activation of a batch is held, several times.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
    """
    program = lower(plan)
    reference = _Reference(plan, program, exported, threads)
    # A target that saturates describes just that; others are compared with exact sums, and what
    # apps get is said apart.
    exact = not plan.target.saturates_pairs
    as_used = loaded(exported, plan, threads=threads, exact=exact)
    names = [*reference.running.shown.values(), *reference.blocks.watched]
    names += reference.caches.watched
    watched_model = showing(exported.model, names)
    # Two sessions: with more outputs the runtime may fuse otherwise, and outputs have to be those
    # of the file.
    watched = QdqRuntime(watched_model, reference.codes, threads=threads, exact=exact)
    by_default = None
    if exact and saturates_pairs():
        default = QdqRuntime(exported.model, threads=threads, exact=False)
        by_default = ByDefault(lambda feeds: default.run(feeds)[0], exported.model)

    def run(feeds: Feeds) -> tuple[Arrays, _Shown]:
        values, codes = watched.run(feeds)
        shown = _Shown({end: _plain(array) for end, array in codes.items()}, {**feeds, **values})
        return as_used.run(feeds)[0], shown

    found = compare(plan, as_used.name, run, reference, batches, by_default=by_default)
    found.layers = [*found.layers, *reference.stored.layers, *reference.caches.layers]
    found.float_layers = [*reference.blocks.layers, *reference.caches.floats]
    found.simulation = reference.simulation.layers
    found.in_float = dict(program.in_float)
    executed = executed_of(exported, plan)
    found.float_nodes = dict(executed.in_float)
    found.integer_nodes = dict(executed.in_integers)
    found.changed = executed.changed
    found.not_compared = {
        str(point.end): _MOVED if point.is_passed_on else _IN_FLOAT
        for point in quantization_points(plan)
        if point.end in exported.codes and point.end not in reference.tensors
    }
    found.no_engine = reference.no_engine
    found.not_simulated = limits_of_simulation(plan)
    return found


class _Reference:
    """The engine and the simulation, both fed with the runtime's integers.

    A plan that was read can have scales that its target's arithmetic has no way to compute with;
    the outputs of the simulation take the engine's place then.

    Attributes:
        tensors: The tensor of each quantization point that the engine and the model hold, in the
            steps' order.
        codes: Names of the integers in the model, by their ends.
        running: What lies around layers of dynamic activations.
        simulation: The simulation.
        no_engine: Why there is no engine, "" if there is one.
    """

    def __init__(
        self, plan: QuantizedGraph, program: Program, exported: QdqModel, threads: int
    ) -> None:
        self.tensors: dict[TensorEnd, Tensor] = {}
        for tensor in activations(program):
            if tensor.encoding is not None and tensor.end in exported.codes:
                # Several steps may give one end; the first makes the codes, the others move them.
                self.tensors.setdefault(tensor.end, tensor)
        self.no_engine = ""
        self.running = running_tensors(program, _ends(exported), exported.dynamic)
        self._outputs: EngineBeside | OutputsOfSimulation
        try:
            self._outputs = EngineBeside(
                program,
                (*self.tensors.values(), *self.running.computed),
                self.running.given,
                threads=threads,
            )
        # What was read may round or scale as no engine of this target does.
        except (ConfigError, PlanError) as error:
            self.no_engine = str(error)
            self._outputs = OutputsOfSimulation(plan, threads=threads)
        self.simulation = _SimulatedLayers(plan, threads)
        compared = {*self.tensors, *self.simulation.ends}
        self.codes = {end: name for end, name in exported.codes.items() if end in compared}
        self.stored = StoredComparison(plan, exported)
        self.codes |= self.stored.watched
        graph = exported.model.graph
        ports = {str(value.name) for value in (*graph.inputs, *graph.outputs)}
        self.blocks = BlockLayers(plan, ports)
        self.caches = CacheLayers(plan, ports, partial(_float_runner, threads=threads))

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor, computed from the runtime's own."""
        return self._outputs.layers

    @property
    def end_to_end(self) -> list[LayerComparison]:
        """The same tensors, computed from the engine's own."""
        return self._outputs.end_to_end

    @property
    def engine(self) -> IntegerEngine | None:
        """The engine, if there is one."""
        return self._outputs.engine

    def add(self, feeds: Feeds, shown: _Shown) -> Arrays:
        """Compare one batch with both; return the outputs that the engine expects."""
        codes, names = shown.codes, self.running.shown
        stored = {t.name: t.as_stored(codes[end]) for end, t in self.tensors.items()}
        running = (*self.running.computed, *self.running.given)
        stored |= {t.name: t.as_stored(shown.values[names[t.name]]) for t in running}
        expected = self._outputs.add(feeds, stored)
        self.stored.add(feeds, codes)
        self.blocks.add(shown.values)
        self.caches.add(shown.values)
        self.simulation.add(feeds, codes | self.caches.codes(shown.values))
        return expected


class _SimulatedLayers:
    """The simulation, each layer computed from the runtime's own integers.

    Attributes:
        ends: The quantized activations that it has.
    """

    def __init__(self, plan: QuantizedGraph, threads: int) -> None:
        self._plan = plan
        self._simulator = Simulator(plan, threads=threads, teacher_forced=True)
        points = self._simulator.points.items()
        # Codes of caches are compared with what was appended, by themselves.
        self.ends = tuple(end for end, point in points if not is_cached(point.config))
        self._found = {end: LayerComparison(str(end)) for end in self.ends}

    @property
    def layers(self) -> list[LayerComparison]:
        """Each activation, in graph order."""
        return list(self._found.values())

    def add(self, feeds: Feeds, integers: Mapping[TensorEnd, npt.NDArray[Any]]) -> None:
        """Compare one batch of the runtime's integers."""
        values = {
            name: self._plan.configs[end].dequantize(integers[end])
            for end, name in self._simulator.teacher_inputs.items()
        }
        _, simulated = self._simulator.run(feeds | values, observe=self.ends)
        for end, array in simulated.items():
            # NaN has the lowest code in the runtime, as in the engine (`to_codes`).
            numbers = np.where(np.isnan(array), -np.inf, array)
            codes = self._plan.configs[end].quantize(numbers)
            self._found[end].add(integers[end], codes)


def _float_runner(model: ir.Model, threads: int) -> Callable[[Feeds], Feeds]:
    """Load a float model."""
    session = make_session(model, threads=threads)
    names = [str(value.name) for value in model.graph.outputs]
    return lambda feeds: dict(zip(names, run_session(session, feeds, names), strict=True))


def _ends(exported: QdqModel) -> set[str]:
    graph = exported.model.graph
    return {str(value.name) for value in (*graph.inputs, *graph.outputs)}


def _plain(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Codes of a type that NumPy lacks (int4, uint4), in one that it has."""
    return codes if codes.dtype.kind in "iu" else codes.astype(np.int64)
