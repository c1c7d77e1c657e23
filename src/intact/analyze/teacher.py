"""Runs each quantized layer on the float model's activations, to see its own error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from intact.analyze.side_by_side import Array, ComparedPoint
from intact.config import TensorQuantConfig
from intact.engines.session import Feeds, make_session, run_session
from intact.engines.simulate import bake, teach
from intact.graph.edit import Editor
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
        tensors: What the layers read and compute in the float model.
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
        # One thread, because callers run batches side by side.
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
        # Activations of all layers are held here: these are needed no more while the caller sums.
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
    # No code stands for NaN: what quantizing makes of it would hide that it was there.
    lost = np.isnan(array)
    if not lost.any():
        return config.fake_quantize(array, inplace=False)
    found = config.fake_quantize(np.where(lost, 0, array), inplace=False)
    found[lost] = np.nan
    return found
