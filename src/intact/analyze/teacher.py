"""The float model with something replaced, so that each error is seen by itself.

Each layer reads what the float model computes, or one of its tensors or constants is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.analyze.side_by_side import Array, ComparedPoint
from intact.config import TensorQuantConfig
from intact.engines.session import Feeds, make_session, run_session
from intact.engines.simulate import bake, teach
from intact.errors import PlanError
from intact.graph.edit import Editor
from intact.graph.ops import constant_array
from intact.numerics.dynamic import DynamicQuantizer
from intact.plan import (
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantization_points,
    refuse_unready,
)
from intact.plan.dynamic import dynamic_points, dynamic_quantizer


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

    The model is cut at every quantized activation, and has its weights quantized. What it reads
    there is given as it is, or quantized, and so is what each layer computes.

    Args:
        plan: A plan with scales.
        places: The results of the layers.

    Raises:
        PlanError: An end has no scale yet.

    Attributes:
        places: Those that are computed, in the order given.
        tensors: Of the float model: what the layers read and compute.
    """

    def __init__(self, plan: QuantizedGraph, places: Sequence[ComparedPoint]) -> None:
        refuse_unready(plan)
        editor = Editor(plan.graph.model)
        points: dict[TensorEnd, QuantPoint] = {}
        self._read: dict[str, QuantPoint] = {}
        for point in quantization_points(plan):
            if point.is_constant:
                bake(editor, point)
            elif not point.is_passed_on:
                points[point.end] = point
                self._read[str(teach(editor, point).name)] = point
        self._running: dict[str, tuple[str, DynamicQuantizer]] = {}
        for running in dynamic_points(plan):
            quantizer = dynamic_quantizer(running.grid, plan.arithmetic_of(running.readers[0][0]))
            given = str(teach(editor, running).name)
            self._running[given] = str(running.value.name), quantizer
        self.places = tuple(each for each in places if each.end is None or each.end in points)
        self._results = [
            (place.tensor, points[place.end].config if place.end else None) for place in self.places
        ]
        self._outputs = list(dict.fromkeys(place.tensor for place in self.places))
        if self._outputs:  # a model must have some
            editor.model.graph.outputs.clear()
            editor.model.graph.outputs.extend(map(editor.value, self._outputs))
        inputs = {str(value.name) for value in plan.graph.inputs}
        read = (str(point.value.name) for point in points.values())
        beside = (value for value, _ in self._running.values())
        names = dict.fromkeys((*read, *beside, *self._outputs))
        self.tensors = tuple(name for name in names if name not in inputs)
        self._session = make_session(editor.finish(), threads=1)

    def run(self, feeds: Feeds, floats: Feeds) -> Iterator[OwnResult]:
        """Run one batch, and yield the result of each place.

        Args:
            feeds: The model's inputs by name.
            floats: What the float model computes for ``tensors``.
        """
        known = {**feeds, **floats}
        read = {name: known[str(point.value.name)] for name, point in self._read.items()}
        read |= {name: known[value] for name, (value, _) in self._running.items()}
        weights = self._taught({**feeds, **read})
        levels = {name: self._quantized(name, array) for name, array in read.items()}
        results = self._taught({**feeds, **levels})
        del read, levels
        for name, config in self._results:
            yield OwnResult(known[name], weights[name], _levels(config, results[name]))

    def _quantized(self, name: str, array: Array) -> Array:
        if name in self._running:
            found: Array = self._running[name][1].fake_quantize(array)
            return found
        return _levels(self._read[name].config, array)

    def _taught(self, feeds: Feeds) -> Feeds:
        arrays = run_session(self._session, feeds, self._outputs) if self._outputs else []
        return dict(zip(self._outputs, arrays, strict=True))


def _levels(config: TensorQuantConfig | None, array: Array) -> Array:
    """Quantize and dequantize where there is a config; NaN stays."""
    if config is None:
        return array
    lost = np.isnan(array)
    if not lost.any():
        return config.fake_quantize(array, inplace=False)
    found = config.fake_quantize(np.where(lost, 0, array), inplace=False)
    found[lost] = np.nan
    return found


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


class Exchanged:
    """The float model with constants replaced.

    Args:
        plan: Its graph is the float model.
        points: Quantizers of the constants that can be replaced, for the readers of each.
    """

    def __init__(self, plan: QuantizedGraph, points: Sequence[QuantPoint]) -> None:
        editor = Editor(plan.graph.model)
        self._inputs: dict[TensorEnd, str] = {}
        for point in points:
            value, array = editor.value(str(point.value.name)), constant_array(point.value)
            if array is None:
                raise PlanError(f"{point.end}: {point.value.name} is not a constant of the model")
            given = editor.optional_input(f"exchange/{point.end}", array)
            editor.redirect(value, given, [(str(node.name), slot) for node, slot in point.readers])
            self._inputs[point.end] = str(given.name)
        self._outputs = [str(value.name) for value in plan.graph.outputs]
        self._session = make_session(editor.finish(), threads=1)

    def run(self, feeds: Feeds, constants: Mapping[TensorEnd, Array]) -> dict[str, Array]:
        """Run one batch with these constants, float32, and return the outputs by name."""
        given = {self._inputs[end]: array for end, array in constants.items()}
        found = run_session(self._session, {**feeds, **given}, self._outputs)
        return dict(zip(self._outputs, found, strict=True))
