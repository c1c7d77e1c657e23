"""Each layer by itself: it reads what the float model computes, so that no error is handed on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.analyze.side_by_side import Array, ComparedPoint
from intact.calibrate.observe.observer import model_of_outputs
from intact.engines.session import Feeds, make_session, run_session
from intact.engines.simulate import Simulator
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph, TensorEnd


class OwnResult(NamedTuple):
    """What a layer computes from the float model's activations, arrays of one shape.

    Attributes:
        reference: The float layer.
        weights: Only its weights and bias are quantized.
        quantized: So are what it reads and its result.
    """

    reference: Array
    weights: Array
    quantized: Array


class TeacherForced:
    """Runs every layer of a plan on the float model's activations.

    Args:
        plan: A plan with scales.
        places: The results of the layers.

    Raises:
        PlanError: An end has no scale yet.

    Attributes:
        places: Those that the simulation computes, in the order given.
    """

    def __init__(self, plan: QuantizedGraph, places: Sequence[ComparedPoint]) -> None:
        self._simulator = Simulator(plan, threads=1, teacher_forced=True, switched=True)
        points = self._simulator.points
        self.places = tuple(each for each in places if each.end is None or each.end in points)
        self._sources = {end: str(point.value.name) for end, point in points.items()}
        inputs = {str(value.name) for value in plan.graph.inputs}
        wanted = [*self._sources.values(), *(each.tensor for each in self.places)]
        self._floats = [name for name in dict.fromkeys(wanted) if name not in inputs]
        self._session = make_session(model_of_outputs(plan.graph, self._floats), threads=1)

    def run(self, feeds: Feeds) -> list[OwnResult]:
        """Run one batch, and return the result of each place."""
        arrays = run_session(self._session, feeds, self._floats) if self._floats else []
        known = {**feeds, **dict(zip(self._floats, arrays, strict=True))}
        floats = {end: known[source] for end, source in self._sources.items()}
        points = self._simulator.points
        codes = {end: points[end].config.fake_quantize(each) for end, each in floats.items()}
        quantized = self._taught(feeds, codes)
        weights = self._taught(feeds, floats, disabled=frozenset(points))
        references = (known[place.tensor] for place in self.places)
        return list(map(OwnResult, references, weights, quantized))

    def _taught(
        self,
        feeds: Feeds,
        activations: dict[TensorEnd, Array],
        disabled: frozenset[TensorEnd] = frozenset(),
    ) -> list[Array]:
        simulator = self._simulator
        given = {name: activations[end] for end, name in simulator.teacher_inputs.items()}
        observed = [place.end for place in self.places if place.end is not None]
        outputs, found = simulator.run({**feeds, **given}, observed, disabled=disabled)
        return [
            outputs[place.tensor] if place.end is None else found[place.end]
            for place in self.places
        ]


class Replaced:
    """The float model with the result of one node replaced.

    Args:
        plan: Its graph is the float model.
        tensors: Names of the results that can be replaced, float32.
    """

    def __init__(self, plan: QuantizedGraph, tensors: Sequence[str]) -> None:
        editor = Editor(plan.graph.model)
        self._inputs: dict[str, tuple[str, str]] = {}
        self._off: Feeds = {}
        for tensor in dict.fromkeys(tensors):
            value = editor.value(tensor)
            consumers = plan.graph.consumers(plan.graph.value(tensor))
            readers = [(str(node.name), slot) for node, slot in consumers]
            flag = editor.input(f"replace/{tensor}/flag", ir.DataType.BOOL, [])
            given = editor.input(f"replace/{tensor}", ir.DataType.FLOAT, [])
            given.shape = None
            name = f"replace/{tensor}/Where"
            result = editor.node("Where", [flag, given, value], name)
            result.shape = value.shape
            editor.redirect(value, result, readers)
            editor.replace_output(value, result)
            self._inputs[tensor] = str(flag.name), str(given.name)
            self._off |= self._fed(tensor, np.zeros((), np.float32), is_on=False)
        self._outputs = [str(value.name) for value in plan.graph.outputs]
        self._session = make_session(editor.finish(), threads=1)

    def run(self, feeds: Feeds, tensor: str, array: Array) -> dict[str, Array]:
        """Run one batch with ``array`` for the tensor, and return the outputs by name."""
        full = {**feeds, **self._off, **self._fed(tensor, array, is_on=True)}
        found = run_session(self._session, full, self._outputs)
        return dict(zip(self._outputs, found, strict=True))

    def _fed(self, tensor: str, array: Array, *, is_on: bool) -> Feeds:
        flag, given = self._inputs[tensor]
        return {flag: np.asarray(is_on), given: array}
