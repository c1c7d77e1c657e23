"""Simulates a plan: quantized arithmetic in float32, in one session (SimQ of [tvm]).

Scales, bounds and switches are inputs, so another calibration of the same structure needs no
compilation. Weights are constants, already fake-quantized: as inputs they would lose ONNX Runtime's
blocked layout (18 -> 31 ms, measured).

The simulation is exact as long as every sum of ``|q_x * q_w|`` is below 2**24, where float32
represents all integers; otherwise it is a close approximation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.engines.quantizer_nodes import (
    QuantizerInputs,
    add_dynamic_quantizer,
    add_quantizer,
    fills_bytes,
)
from intact.engines.session import Feeds, Optimization, make_session, run_session
from intact.errors import PlanError
from intact.graph.edit import Editor
from intact.plan import (
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantization_points,
    quantizes,
    refuse_unready,
)
from intact.plan.dynamic import DynamicPoint, dynamic_points, dynamic_quantizer
from intact.plan.overflows import wrap_sums

Arrays = dict[str, np.ndarray[Any, Any]]


class Simulator:
    """A compiled simulation of a plan.

    Args:
        plan: A calibrated plan; its weights and its structure are compiled in.
        threads: Threads inside one operator; 0 lets the runtime choose.
        teacher_forced: Split the model at every quantized activation: each part reads its
            activations from the caller (see ``teacher_inputs``), so that an error in one layer does
            not affect the next.
        switched: Quantizers can be disabled, which costs time.
        tensors: Names of further activations that are returned with the outputs, as their readers
            get them.
        optimization: How far the runtime may rewrite the model; not at all for a single run, which
            is over before that pays.

    Raises:
        PlanError: The plan has ends without a scale.

    Attributes:
        points: The quantized activations, by end.
        teacher_inputs: With ``teacher_forced``, the input name of each point.
        outputs: The graph's own outputs.
    """

    def __init__(
        self,
        plan: QuantizedGraph,
        *,
        threads: int = 0,
        teacher_forced: bool = False,
        switched: bool = False,
        tensors: Sequence[str] = (),
        optimization: Optimization = Optimization.ALL,
    ) -> None:
        refuse_unready(plan)
        editor = Editor(plan.graph.model)
        wrap_sums(editor, plan)
        self.outputs = tuple(str(value.name) for value in plan.graph.outputs)
        shown = {name: editor.value(name) for name in tensors if name not in self.outputs}
        self.points: dict[TensorEnd, QuantPoint] = {}
        self.teacher_inputs: dict[TensorEnd, str] = {}
        self._parameters: dict[TensorEnd, QuantizerInputs] = {}
        self._results: dict[TensorEnd, str] = {}
        for point in quantization_points(plan):
            if point.is_constant:
                bake(editor, point)
            # What is passed on is on the grid of another point already: a second quantizer would
            # change nothing.
            elif not point.is_passed_on:
                self._add(editor, point, teacher_forced, switched)
                name = str(point.value.name)
                if name in shown:
                    shown[name] = editor.value(self._results[point.end])
        for dynamic in dynamic_points(plan):
            _quantize_dynamically(editor, plan, dynamic)
        results = editor.model.graph.outputs
        results.extend(value for value in shown.values() if not any(value is r for r in results))
        self._tensors = {name: str(value.name) for name, value in shown.items()}
        model = editor.finish()
        if plan.float16 is not None:
            from intact.plan.float16 import as_computed  # which few plans need

            as_computed(model, plan)
        self._session = make_session(
            model, threads=threads, optimization=optimization, fuses_quantizers=False
        )

    def _add(self, editor: Editor, point: QuantPoint, teacher_forced: bool, switched: bool) -> None:
        value = editor.value(str(point.value.name))
        result, parameters = add_quantizer(
            editor, value, point.config, f"simq/{point.end}", switched=switched
        )
        if teacher_forced:
            source = teach(editor, point)
            self.teacher_inputs[point.end] = str(source.name)
        else:
            source = result
            editor.redirect(value, source, _readers(point))
        # The output of the graph is what the quantizer gives; readers that are named later find the
        # same value.
        if point.at_output:
            editor.replace_output(value, result)
            editor.rebind(str(point.value.name), source)
        if not any(output is result for output in editor.model.graph.outputs):
            editor.model.graph.outputs.append(result)
        self.points[point.end] = point
        self._parameters[point.end] = parameters
        self._results[point.end] = str(result.name)

    def run(
        self,
        feeds: Feeds,
        observe: Sequence[TensorEnd] = (),
        plan: QuantizedGraph | None = None,
        disabled: frozenset[TensorEnd] = frozenset(),
    ) -> tuple[Arrays, Mapping[TensorEnd, np.ndarray[Any, Any]]]:
        """Run one batch.

        Args:
            feeds: The model's inputs (and the teacher inputs, if forced), by name.
            observe: Points whose quantized values are returned.
            plan: Another calibration of the same structure; None for the compiled one. Its weights
                and biases are not used: the compiled ones are.
            disabled: Points that do not quantize, if the simulator is ``switched``.

        Returns:
            The graph's outputs and the further tensors by name, and the observed values (float32,
            fake-quantized).

        Raises:
            PlanError: ``plan`` has no config or scale for a point, or one with another rounding or
                spacing or another number of codes; or an observed or disabled end is not a point.
        """
        for end in (*observe, *disabled):
            if end not in self.points:
                raise PlanError(
                    f"{end} is not simulated on its own",
                    remedy="name one of the simulator's points",
                )
        full = dict(feeds)
        for end, parameters in self._parameters.items():
            config = self.points[end].config
            if plan is not None:
                config = _checked_config(plan, end, config)
            full |= parameters.feeds(config, enabled=end not in disabled)
        returned = {**{name: name for name in self.outputs}, **self._tensors}
        names = [*returned.values(), *(self._results[end] for end in observe)]
        arrays = run_session(self._session, full, names)
        count = len(returned)
        return dict(zip(returned, arrays, strict=False)), dict(
            zip(observe, arrays[count:], strict=True)
        )


def _checked_config(
    plan: QuantizedGraph, end: TensorEnd, compiled: TensorQuantConfig
) -> TensorQuantConfig:
    """Return the config of another calibration, after checking it against the compiled one."""
    config = plan.configs.get(end)
    is_in_effect = config is not None and (quantizes(config) or config.state is compiled.state)
    if config is None or config.params is None or not is_in_effect:
        raise PlanError(f"{end} has no scale", remedy="calibrate the plan first")
    same_rounding = config.rounding is compiled.rounding
    same_spacing = config.steps_per_octave == compiled.steps_per_octave
    if not same_rounding or not same_spacing or fills_bytes(config) < fills_bytes(compiled):
        raise PlanError(
            f"{end} has another rounding, spacing or number of codes than the compiled plan",
            remedy="make a new Simulator",
        )
    return config


def _quantize_dynamically(editor: Editor, plan: QuantizedGraph, point: DynamicPoint) -> None:
    """Add a quantizer whose scale the session computes."""
    arithmetic = plan.arithmetic_of(point.readers[0][0])
    quantizer = dynamic_quantizer(point.grid, arithmetic)
    value = editor.value(str(point.value.name))
    result = add_dynamic_quantizer(editor, value, quantizer, f"simq/{point.ends[0]}")
    editor.redirect(value, result, _readers(point))


def bake(editor: Editor, point: QuantPoint) -> None:
    """Replace a constant by its fake-quantized values, for the readers that quantize it.

    They are computed when the model is serialized, so only one weight at a time is in memory.
    """
    tensor = ir.LazyTensor(
        lambda: ir.Tensor(point.config.dequantize(point.constant_codes())),
        ir.DataType.FLOAT,
        ir.Shape(() if point.value.const_value is None else point.value.const_value.shape.numpy()),
    )
    baked = editor.initializer(f"{point.value.name}/{point.end}", tensor)
    editor.redirect(editor.value(str(point.value.name)), baked, _readers(point))


def teach(editor: Editor, point: QuantPoint | DynamicPoint) -> ir.Value:
    """Let the readers of a quantized activation read a new input of the model instead."""
    value = editor.value(str(point.value.name))
    rank = None if value.shape is None else [None] * len(value.shape)
    source = editor.input(f"teacher/{point.end}", ir.DataType.FLOAT, rank or [])
    if rank is None:
        source.shape = None
    editor.redirect(value, source, _readers(point))
    return source


def _readers(point: QuantPoint | DynamicPoint) -> list[tuple[str, int]]:
    return [(str(node.name), slot) for node, slot in point.readers]
