"""SimQ as ONNX nodes: quantise and dequantise in float32, with parameters as inputs.

Source: the TVM document, "Simulated Quantize", with its slip mended: the value that is rounded
is the clipped one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.config import Rounding, TensorQuantConfig
from intact.errors import PlanError
from intact.graph.edit import Editor
from intact.numerics.logarithmic import STEPS_PER_OCTAVE
from intact.run.session import Feeds


@dataclass(frozen=True)
class QuantizerInputs:
    """The names of a quantiser's parameter inputs.

    Attributes:
        scale: Scale, ``[]``, or ``[channels, 1, ...]`` to lie along the channel axis.
        low: Smallest code relative to the zero point, like the scale.
        high: Largest code, likewise.
        enabled: Whether it quantises, ``[]``.
        trailing: Axes behind the channel axis; None for one scale.
    """

    scale: str
    low: str
    high: str
    enabled: str
    trailing: int | None = None

    def feeds(self, config: TensorQuantConfig, *, enabled: bool = True) -> Feeds:
        """Return the values that make the quantiser compute ``config``.

        ``low`` and ``high`` are codes relative to the zero point, so that 0.0 stays 0.
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
    """Add the nodes of one quantiser after ``value``.

    Args:
        editor: The copy of the model that is edited.
        value: The float32 value to quantise, of any shape.
        config: Only its structure is compiled in: rounding, spacing and channel axis.
        name: Prefix of the new names.

    Returns:
        The quantised value and the names of the parameter inputs.

    Raises:
        PlanError: There is one scale a channel, and the rank of the value is not known.
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
        result = _logarithmic(chain, value, scale, low, high)
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
    """Return the number of axes behind the channel axis, None where there is one scale."""
    axis = config.granularity.axis
    if axis is None:
        return None
    if value.shape is None:
        raise PlanError(f"{name}: one scale a channel for a tensor of unknown rank")
    return len(value.shape) - 1 - axis


class _Chain:
    """Adds nodes with names of one prefix."""

    def __init__(self, editor: Editor, name: str) -> None:
        self._editor = editor
        self._name = name

    def __call__(
        self, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """Add a node; its result has the type of its last input unless told otherwise."""
        result = dtype or inputs[-1].dtype or ir.DataType.FLOAT
        attributes: dict[str, int | float | str] = {"to": int(result)} if op_type == "Cast" else {}
        return self._editor.node(op_type, inputs, f"{self._name}/{op_type}", attributes, result)

    def to(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self("Cast", value, dtype=dtype)

    def constant(
        self, number: float, dtype: type[np.float32] | type[np.float64] = np.float32
    ) -> ir.Value:
        return self._editor.initializer(f"{self._name}/constant", ir.tensor(dtype(number)))

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
    """Return round-half-even and what it left, which is exact in float32."""
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
    chain: _Chain, value: ir.Value, scale: ir.Value, low: ir.Value, high: ir.Value
) -> ir.Value:
    """Levels ``scale * 2**(k / STEPS_PER_OCTAVE)`` with k = 1..high, and 0.

    In float64, as ``numerics.logarithmic`` computes it: float32 logarithms would put values near
    the middle between two levels on the wrong one.
    """
    steps = chain.constant(float(STEPS_PER_OCTAVE), np.float64)
    per_nat = chain.constant(STEPS_PER_OCTAVE / np.log(2.0), np.float64)
    two, zero = chain.constant(2.0, np.float64), chain.constant(0.0, np.float64)
    first, last = chain.to(scale, ir.DataType.DOUBLE), chain.to(high, ir.DataType.DOUBLE)
    ratio = chain("Div", chain("Abs", chain.to(value, ir.DataType.DOUBLE)), first)
    position = chain("Mul", chain("Log", ratio), per_nat)
    codes = chain("Round", chain("Clip", position, zero, last))
    level = chain("Mul", chain("Pow", two, chain("Div", codes, steps)), first)
    is_zero = chain("Equal", codes, zero, dtype=ir.DataType.BOOL)
    magnitude = chain("Where", is_zero, zero, level)
    # One-sided levels (low = 0) have no negative side.
    sign = chain("Max", chain("Sign", value), low)
    return chain("Mul", sign, chain.to(magnitude, ir.DataType.FLOAT))
