"""Simulated execution (SimQ of [tvm]): quantized arithmetic in float32, in one compiled session.

Scales, bounds and switches are inputs, so another calibration of the same structure needs no
compilation. Weights are constants, already fake-quantized: as inputs they would lose ONNX Runtime's
blocked layout (18 -> 31 ms, measured).

The simulation is exact as long as every sum of ``|q_x * q_w|`` is below 2**24, where float32
represents all integers; otherwise it is a close approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from intact.config import Rounding, TensorQuantConfig
from intact.engines.session import Feeds, make_session, run_session
from intact.errors import PlanError
from intact.graph.edit import Editor
from intact.numerics.logarithmic import zero_below
from intact.plan import (
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantization_points,
    quantizes,
    refuse_unready,
)


class QuantizerInputs(msgspec.Struct, frozen=True):
    """The names of a quantizer's parameter inputs.

    Attributes:
        scale: Scale, ``[]``, or ``[channels, 1, ...]`` to broadcast along the channel axis.
        low: Smallest code minus the zero point, shaped like the scale.
        high: Largest code minus the zero point, shaped like the scale.
        enabled: Whether it quantizes, ``[]``.
        trailing: Number of axes after the channel axis; None for one scale.
    """

    scale: str
    low: str
    high: str
    enabled: str
    trailing: int | None = None

    def feeds(self, config: TensorQuantConfig, *, enabled: bool = True) -> Feeds:
        """Compute the parameter inputs for a config.

        ``low`` and ``high`` are relative to the zero point, so that 0.0 stays 0.
        """
        params = config.params
        scale = np.ones((), np.float32) if params is None else params.scale
        zero_point = np.zeros((), np.int64) if params is None else params.zero_point
        numbers = {
            self.scale: scale,
            self.low: config.quant_min - zero_point,
            self.high: config.quant_max - zero_point,
        }
        shape = () if self.trailing is None else (-1, *(1,) * self.trailing)
        arrays = {
            name: np.asarray(array, np.float32).reshape(shape) for name, array in numbers.items()
        }
        return {**arrays, self.enabled: np.asarray(enabled)}


def add_quantizer(
    editor: Editor, value: ir.Value, config: TensorQuantConfig, name: str
) -> tuple[ir.Value, QuantizerInputs]:
    """Add the nodes of one quantizer after ``value``.

    Args:
        editor: The copy of the model that is edited.
        value: The float32 value to quantize, of any shape.
        config: Only rounding, spacing and channel axis are compiled in.
        name: Prefix of the new names.

    Returns:
        The quantized value and the names of the parameter inputs.

    Raises:
        PlanError: The scale is per channel, and the rank of the value is unknown.
    """
    trailing = _axes_behind(value, config, name)
    shape = [] if trailing is None else [None, *[1] * trailing]
    scale, low, high = (
        editor.input(f"{name}/{part}", ir.DataType.FLOAT, shape)
        for part in ("scale", "low", "high")
    )
    enabled = editor.input(f"{name}/enabled", ir.DataType.BOOL, [])
    chain = _Chain(editor, name)
    if config.grid.exponential:
        result = _logarithmic(chain, value, scale, low, high, config.grid.octave)
    else:
        steps = chain("Div", value, scale)
        rounded = ROUNDERS[config.rounding](chain, steps)
        if trailing is None:
            codes = chain("Clip", rounded, low, high)
        else:  # Clip takes one pair of bounds
            codes = chain("Min", chain("Max", rounded, low), high)
        result = chain("Mul", codes, scale)
    result = chain("Where", enabled, result, value)
    result.shape = value.shape
    return result, QuantizerInputs(
        str(scale.name), str(low.name), str(high.name), str(enabled.name), trailing
    )


def _axes_behind(value: ir.Value, config: TensorQuantConfig, name: str) -> int | None:
    """Count the axes after the channel axis; None for one scale."""
    axis = config.granularity.axis
    if axis is None:
        return None
    if value.shape is None:
        raise PlanError(f"{name}: one scale per channel for a tensor of unknown rank")
    return len(value.shape) - 1 - axis


class _Chain:
    """Adds nodes with a common name prefix."""

    def __init__(self, editor: Editor, name: str) -> None:
        self._editor = editor
        self._name = name

    def __call__(
        self, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """Add a node; its result has the type of its last input unless given."""
        result = dtype or inputs[-1].dtype or ir.DataType.FLOAT
        attributes: dict[str, int | float | str] = {"to": int(result)} if op_type == "Cast" else {}
        return self._editor.node(op_type, inputs, f"{self._name}/{op_type}", attributes, result)

    def to(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self("Cast", value, dtype=dtype)

    def constant(
        self, number: float, dtype: type[np.float32] | type[np.float64] = np.float32
    ) -> ir.Value:
        return self._editor.initializer(f"{self._name}/constant", dtype(number))

    def equals(self, value: ir.Value, number: float) -> ir.Value:
        equal = self("Equal", value, self.constant(number), dtype=ir.DataType.BOOL)
        return self.to(equal, ir.DataType.FLOAT)


def _half_even(chain: _Chain, steps: ir.Value) -> ir.Value:
    return chain("Round", steps)


def _half_up(chain: _Chain, steps: ir.Value) -> ir.Value:
    rounded, rest = _nearest(chain, steps)
    return chain("Add", rounded, chain.equals(rest, 0.5))


def _half_down(chain: _Chain, steps: ir.Value) -> ir.Value:
    rounded, rest = _nearest(chain, steps)
    return chain("Sub", rounded, chain.equals(rest, -0.5))


def _half_away(chain: _Chain, steps: ir.Value) -> ir.Value:
    sign = chain("Sign", steps)
    return chain("Mul", sign, _half_up(chain, chain("Abs", steps)))


def _half_toward_zero(chain: _Chain, steps: ir.Value) -> ir.Value:
    sign = chain("Sign", steps)
    return chain("Mul", sign, _half_down(chain, chain("Abs", steps)))


def _up(chain: _Chain, steps: ir.Value) -> ir.Value:
    return chain("Ceil", steps)


def _nearest(chain: _Chain, steps: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return round-half-even and the remainder, which is exact in float32."""
    rounded = chain("Round", steps)
    return rounded, chain("Sub", steps, rounded)


ROUNDERS: dict[Rounding, Callable[[_Chain, ir.Value], ir.Value]] = {
    Rounding.HALF_EVEN: _half_even,
    Rounding.NEAREST: _half_even,
    Rounding.HALF_UP: _half_up,
    Rounding.HALF_DOWN: _half_down,
    Rounding.HALF_AWAY_FROM_ZERO: _half_away,
    Rounding.HALF_TOWARD_ZERO: _half_toward_zero,
    Rounding.UP: _up,
}


def _logarithmic(
    chain: _Chain, value: ir.Value, scale: ir.Value, low: ir.Value, high: ir.Value, octave: int
) -> ir.Value:
    """Fake-quantize to levels ``scale * 2**(k / octave)`` with k = 1..high, and 0.

    In float64, as in ``numerics.logarithmic``: with float32 logarithms, values near the middle
    between two levels could be rounded to the wrong one.
    """
    steps = chain.constant(float(octave), np.float64)
    per_nat = chain.constant(octave / np.log(2.0), np.float64)
    two, zero = chain.constant(2.0, np.float64), chain.constant(0.0, np.float64)
    one, least = chain.constant(1.0, np.float64), chain.constant(zero_below(octave), np.float64)
    first, last = chain.to(scale, ir.DataType.DOUBLE), chain.to(high, ir.DataType.DOUBLE)
    ratio = chain("Div", chain("Abs", chain.to(value, ir.DataType.DOUBLE)), first)
    position = chain("Mul", chain("Log", ratio), per_nat)
    # Clip takes float64 from opset 12 on only.
    codes = chain("Round", chain("Min", chain("Max", position, one), last))
    level = chain("Mul", chain("Pow", two, chain("Div", codes, steps)), first)
    is_zero = chain("Less", ratio, least, dtype=ir.DataType.BOOL)
    magnitude = chain("Where", is_zero, zero, level)
    # One-sided levels (low = 0) have no negative side.
    sign = chain("Max", chain("Sign", value), low)
    return chain("Mul", sign, chain.to(magnitude, ir.DataType.FLOAT))


Arrays = dict[str, np.ndarray[Any, Any]]


class Simulator:
    """A compiled simulation of a plan.

    Args:
        plan: A calibrated plan; its weights and its structure are compiled in.
        threads: Threads inside one operator; 0 lets the runtime choose.
        teacher_forced: Split the model at every quantized activation: each part reads its
            activations from the caller (see ``teacher_inputs``), so that an error in one layer does
            not affect the next.

    Raises:
        PlanError: The plan has ends without a scale.

    Attributes:
        points: The quantized activations, by end.
        teacher_inputs: With ``teacher_forced``, the input name of each point.
        outputs: The graph's own outputs.
    """

    def __init__(
        self, plan: QuantizedGraph, *, threads: int = 0, teacher_forced: bool = False
    ) -> None:
        refuse_unready(plan)
        editor = Editor(plan.graph.model)
        self.outputs = tuple(str(value.name) for value in plan.graph.outputs)
        self.points: dict[TensorEnd, QuantPoint] = {}
        self.teacher_inputs: dict[TensorEnd, str] = {}
        self._parameters: dict[TensorEnd, QuantizerInputs] = {}
        self._results: dict[TensorEnd, str] = {}
        for point in quantization_points(plan):
            if point.is_constant:
                _bake(editor, point)
            elif not point.is_passed_on:
                self._add(editor, point, teacher_forced)
        self._session = make_session(editor.finish(), threads=threads)

    def _add(self, editor: Editor, point: QuantPoint, teacher_forced: bool) -> None:
        value = editor.value(str(point.value.name))
        result, parameters = add_quantizer(editor, value, point.config, f"simq/{point.end}")
        readers = [(str(node.name), slot) for node, slot in point.readers]
        source = result
        if teacher_forced:
            rank = None if value.shape is None else [None] * len(value.shape)
            source = editor.input(f"teacher/{point.end}", ir.DataType.FLOAT, rank or [])
            if rank is None:
                source.shape = None
            self.teacher_inputs[point.end] = str(source.name)
        editor.redirect(value, source, readers)
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
            disabled: Points that do not quantize.

        Returns:
            The graph's outputs by name, and the observed values (float32, fake-quantized).

        Raises:
            PlanError: ``plan`` has no config or scale for a point, or one with another rounding or
                spacing; or an observed or disabled end is not a point.
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
                config = _recalibrated(plan, end, config)
            full |= parameters.feeds(config, enabled=end not in disabled)
        names = [*self.outputs, *(self._results[end] for end in observe)]
        arrays = run_session(self._session, full, names)
        count = len(self.outputs)
        return dict(zip(self.outputs, arrays, strict=False)), dict(
            zip(observe, arrays[count:], strict=True)
        )


def _recalibrated(
    plan: QuantizedGraph, end: TensorEnd, compiled: TensorQuantConfig
) -> TensorQuantConfig:
    """Return the config of another calibration, after checking it against the compiled one."""
    config = plan.configs.get(end)
    if config is None or config.params is None or not quantizes(config):
        raise PlanError(f"{end} has no scale", remedy="calibrate the plan first")
    same_rounding = config.rounding is compiled.rounding
    if not same_rounding or config.steps_per_octave != compiled.steps_per_octave:
        raise PlanError(
            f"{end} has another rounding or spacing than the compiled plan",
            remedy="make a new Simulator",
        )
    return config


def _bake(editor: Editor, point: QuantPoint) -> None:
    """Replace a constant by its fake-quantized values, for the readers that quantize it.

    They are computed when the model is serialized, so only one weight at a time is in memory.
    """
    tensor = ir.LazyTensor(
        lambda: ir.Tensor(point.config.dequantize(point.constant_codes())),
        ir.DataType.FLOAT,
        ir.Shape(() if point.value.const_value is None else point.value.const_value.shape.numpy()),
    )
    baked = editor.initializer(f"{point.value.name}/{point.end}", tensor)
    readers = [(str(node.name), slot) for node, slot in point.readers]
    editor.redirect(editor.value(str(point.value.name)), baked, readers)
