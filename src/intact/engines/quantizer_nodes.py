"""Writes quantizers as nodes of an ONNX graph with scales, bounds and switches as inputs.

Two forms compute the same numbers, bit for bit. QuantizeLinear and DequantizeLinear do where there
are 256 codes and ties go to even: a MobileNetV2 takes 2 to 3 times as long as its float model then,
and 4 to 5 times with single operators, from which all else is put together (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import onnx_ir as ir

from intact.config import Rounding, TensorQuantConfig
from intact.engines.session import Feeds
from intact.errors import PlanError
from intact.graph.edit import Editor
from intact.numerics.dynamic import DynamicQuantizer
from intact.numerics.levels import Factor
from intact.numerics.logarithmic import zero_below
from intact.ops import functions
from intact.ops.operators import (
    Add,
    Cast,
    Clip,
    DequantizeLinear,
    Div,
    DynamicQuantizeLinear,
    Equal,
    Greater,
    Less,
    Max,
    Min,
    Mul,
    Named,
    Pad,
    Pow,
    QuantizeLinear,
    ReduceMax,
    ReduceMin,
    Reshape,
    Slice,
    Sub,
    Where,
    type_of,
)


class QuantizerInputs(msgspec.Struct, frozen=True):
    """The names of a quantizer's parameter inputs.

    Attributes:
        scale: Scale, ``[]``, or ``[channels, 1, ...]`` to broadcast along the channel axis.
        bounds: Smallest and largest code minus the zero point, each shaped like the scale; or, for
            codes in bytes, the zero point minus the smallest code, uint8.
        enabled: Whether it quantizes, ``[]``; None if it always does.
        trailing: Number of axes after the channel axis; None for one scale.
        in_bytes: Codes are stored as uint8, counted from the smallest.
    """

    scale: str
    bounds: tuple[str, ...]
    enabled: str | None = None
    trailing: int | None = None
    in_bytes: bool = False

    def feeds(self, config: TensorQuantConfig, *, enabled: bool = True) -> Feeds:
        """Compute the parameter inputs for a config.

        All are relative to the zero point, so that 0.0 stays 0.

        Raises:
            PlanError: Codes are stored as uint8, and the config's do not fit; or the quantizer
                has no switch, and is to be disabled.
        """
        params = config.params
        scale = np.ones((), np.float32) if params is None else params.scale
        zero_point = np.zeros((), np.int64) if params is None else params.zero_point
        switch: Feeds = {}
        if self.enabled is not None:
            switch = {self.enabled: np.asarray(enabled)}
        elif not enabled:
            raise PlanError("a quantizer without a switch cannot be disabled")
        shape = () if self.trailing is None else (-1, *(1,) * self.trailing)
        scales = {self.scale: np.asarray(scale, np.float32).reshape(shape)}
        low, high = config.grid.code_ends
        numbers = [low - zero_point, high - zero_point]
        if self.in_bytes:
            # The plan may have been calibrated anew, with other codes than those that were compiled
            # in.
            if not fills_bytes(config):
                raise PlanError("codes do not fill 8 bits", remedy="make a new Simulator")
            numbers = [zero_point - config.quant_min]
        dtype = np.uint8 if self.in_bytes else np.float32
        arrays = (np.asarray(number, dtype).reshape(shape) for number in numbers)
        return {**scales, **dict(zip(self.bounds, arrays, strict=True)), **switch}


def fills_bytes(config: TensorQuantConfig) -> bool:
    """Tell whether QuantizeLinear with uint8 codes, counted from the smallest, computes a config.

    Fewer than 256 codes would need a Clip as well.
    """
    if config.grid.exponential or config.granularity.axis is not None:
        return False
    zero_point = 0 if config.params is None else int(config.params.zero_point)
    low, high = config.quant_min, config.quant_max
    is_even = ROUNDERS[config.rounding] is _half_even
    return is_even and high - low == 255 and low <= zero_point <= high


def add_quantizer(
    editor: Editor,
    value: ir.Value,
    config: TensorQuantConfig,
    name: str,
    *,
    switched: bool = False,
) -> tuple[ir.Value, QuantizerInputs]:
    """Add the nodes of one quantizer after ``value``.

    Args:
        editor: The copy of the model that is edited.
        value: The float32 value to quantize, of any shape.
        config: Only rounding, spacing, channel axis, and whether codes fill 8 bits are compiled in.
        name: Prefix of the new names.
        switched: It can be disabled.

    Returns:
        The quantized value and the names of the parameter inputs.

    Raises:
        PlanError: The scale is per channel, and the rank of the value is unknown.
    """
    trailing = _axes_behind(value, config, name)
    in_bytes = fills_bytes(config)
    shape = [] if trailing is None else [None, *[1] * trailing]
    scale = editor.input(f"{name}/scale", ir.DataType.FLOAT, shape)
    parts, dtype = (
        (("zero_point",), ir.DataType.UINT8) if in_bytes else (("low", "high"), ir.DataType.FLOAT)
    )
    bounds = [editor.input(f"{name}/{part}", dtype, shape) for part in parts]
    chain = Chain(editor, name)
    if in_bytes:
        codes = chain(QuantizeLinear, value, scale, *bounds)
        result = chain(DequantizeLinear, codes, scale, *bounds, dtype=ir.DataType.FLOAT)
    elif config.grid.exponential:
        result = _logarithmic(chain, value, scale, bounds, config.grid.octave)
    else:
        steps = chain(Div, value, scale)
        rounded = ROUNDERS[config.rounding](chain, steps)
        if trailing is None:
            codes = chain(Clip, rounded, *bounds)
        else:  # Clip takes one pair of bounds
            low, high = bounds
            codes = chain(Min, chain(Max, rounded, low), high)
        result = chain(Mul, codes, scale)
    enabled = None
    if switched:
        switch = editor.input(f"{name}/enabled", ir.DataType.BOOL, [])
        result = chain(Where, switch, result, value)
        enabled = str(switch.name)
    result.shape = value.shape
    names = tuple(str(each.name) for each in bounds)
    return result, QuantizerInputs(str(scale.name), names, enabled, trailing, in_bytes)


def _axes_behind(value: ir.Value, config: TensorQuantConfig, name: str) -> int | None:
    """Count the axes after the channel axis; None for one scale."""
    axis = config.granularity.axis
    if axis is None:
        return None
    if value.shape is None:
        raise PlanError(f"{name}: one scale per channel for a tensor of unknown rank")
    return len(value.shape) - 1 - axis


class Chain:
    """Adds nodes with a common name prefix."""

    def __init__(self, editor: Editor, name: str) -> None:
        self._editor = editor
        self._name = name

    def __call__(
        self, operator: Named, *inputs: ir.Value, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """Add a node; its result has the type of its last input unless given."""
        op_type = type_of(operator)
        result = dtype or inputs[-1].dtype or ir.DataType.FLOAT
        attributes: dict[str, int | float | str] = (
            {"to": int(result)} if op_type == Cast.name else {}
        )
        return self._editor.node(op_type, inputs, f"{self._name}/{op_type}", attributes, result)

    def to(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Cast a value."""
        return self(Cast, value, dtype=dtype)

    def constant(
        self, number: float, dtype: type[np.float32] | type[np.float64] = np.float32
    ) -> ir.Value:
        """Return a constant."""
        return self._editor.initializer(f"{self._name}/constant", dtype(number))

    def equals(self, value: ir.Value, number: float) -> ir.Value:
        """Return 1 where a value is a number, and 0 elsewhere."""
        equal = self(Equal, value, self.constant(number), dtype=ir.DataType.BOOL)
        return self.to(equal, ir.DataType.FLOAT)


def _half_even(chain: Chain, steps: ir.Value) -> ir.Value:
    return chain(functions.round_half_even, steps)


def _half_up(chain: Chain, steps: ir.Value) -> ir.Value:
    rounded, rest = _nearest(chain, steps)
    return chain(Add, rounded, chain.equals(rest, 0.5))


def _half_down(chain: Chain, steps: ir.Value) -> ir.Value:
    rounded, rest = _nearest(chain, steps)
    return chain(Sub, rounded, chain.equals(rest, -0.5))


def _half_away(chain: Chain, steps: ir.Value) -> ir.Value:
    sign = chain(functions.sign, steps)
    return chain(Mul, sign, _half_up(chain, chain(functions.absolute, steps)))


def _half_toward_zero(chain: Chain, steps: ir.Value) -> ir.Value:
    sign = chain(functions.sign, steps)
    return chain(Mul, sign, _half_down(chain, chain(functions.absolute, steps)))


def _up(chain: Chain, steps: ir.Value) -> ir.Value:
    return chain(functions.ceil, steps)


def _nearest(chain: Chain, steps: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return round-half-even and the remainder, which is exact in float32."""
    rounded = chain(functions.round_half_even, steps)
    return rounded, chain(Sub, steps, rounded)


ROUNDERS: dict[Rounding, Callable[[Chain, ir.Value], ir.Value]] = {
    Rounding.HALF_EVEN: _half_even,
    Rounding.NEAREST: _half_even,
    Rounding.HALF_UP: _half_up,
    Rounding.HALF_DOWN: _half_down,
    Rounding.HALF_AWAY_FROM_ZERO: _half_away,
    Rounding.HALF_TOWARD_ZERO: _half_toward_zero,
    Rounding.UP: _up,
}


def _logarithmic(
    chain: Chain, value: ir.Value, scale: ir.Value, bounds: Sequence[ir.Value], octave: int
) -> ir.Value:
    """Fake-quantize to levels ``scale * 2**(k / octave)`` with k = 1..high, and 0.

    In float64, as in ``numerics.logarithmic``: with float32 logarithms, values near the middle
    between two levels could be rounded to the wrong one.
    """
    low, high = bounds
    steps = chain.constant(float(octave), np.float64)
    per_nat = chain.constant(octave / np.log(2.0), np.float64)
    two, zero = chain.constant(2.0, np.float64), chain.constant(0.0, np.float64)
    one, least = chain.constant(1.0, np.float64), chain.constant(zero_below(octave), np.float64)
    first, last = chain.to(scale, ir.DataType.DOUBLE), chain.to(high, ir.DataType.DOUBLE)
    ratio = chain(Div, chain(functions.absolute, chain.to(value, ir.DataType.DOUBLE)), first)
    position = chain(Mul, chain(functions.log, ratio), per_nat)
    # Clip takes float64 from opset 12 on only.
    codes = chain(functions.round_half_even, chain(Min, chain(Max, position, one), last))
    level = chain(Mul, chain(Pow, two, chain(Div, codes, steps)), first)
    is_zero = chain(Less, ratio, least, dtype=ir.DataType.BOOL)
    magnitude = chain(Where, is_zero, zero, level)
    # One-sided levels (low = 0) have no negative side.
    sign = chain(Max, chain(functions.sign, value), low)
    return chain(Mul, sign, chain.to(magnitude, ir.DataType.FLOAT))


# ---- scales that the graph computes --------------------------------------------------------------

_AXES_AS_INPUT = 18
"""The opset since which ReduceMin and ReduceMax read their axes."""


def add_dynamic_quantizer(
    editor: Editor, value: ir.Value, quantizer: DynamicQuantizer, name: str
) -> ir.Value:
    """Add a quantizer whose scale the graph computes; return the numbers that codes stand for.

    They are what `intact.numerics.dynamic` gives, bit for bit where values are finite.

    Args:
        editor: The copy of the model that is edited.
        value: The float32 value to quantize.
        quantizer: How.
        name: Prefix of the new names.

    Raises:
        PlanError: It has scales of blocks, and the value no known length.
    """
    if quantizer.block is not None:
        return _quantize_blocks(editor, value, quantizer, name)
    if quantizer == _OF_ONNX:
        result = _quantize_by_one_operator(editor, value, name)
    else:
        result = _ComposedQuantizer(editor, value, quantizer, name).result()
    result.shape = value.shape
    return result


_OF_ONNX = DynamicQuantizer(0, 255)


def _quantize_blocks(
    editor: Editor, value: ir.Value, quantizer: DynamicQuantizer, name: str
) -> ir.Value:
    """Quantize the blocks of rows as rows of their own."""
    shape, size = value.shape, quantizer.block or 1
    length = None if shape is None or len(shape) == 0 else shape[-1]
    if shape is None or not isinstance(length, int):
        raise PlanError(f"{name}: blocks of rows whose length is not known")
    rank, missing = len(shape), -length % size
    padded = value
    if missing:
        pads = editor.integers(*[0] * (2 * rank - 1), missing, name=f"{name}/pads")
        padded = editor.node(Pad, [value, pads], f"{name}/Pad")
    blocks = (length + missing) // size
    parts = editor.integers(*[0] * (rank - 1), blocks, size, name=f"{name}/parts")
    apart = editor.node(Reshape, [padded, parts], f"{name}/apart")
    rows = replace(quantizer, block=None)
    numbers = _ComposedQuantizer(editor, apart, rows, name).result()
    whole = editor.integers(*[0] * (rank - 1), length + missing, name=f"{name}/whole")
    joined = editor.node(Reshape, [numbers, whole], f"{name}/joined")
    if missing:
        ends = [editor.integers(number, name=f"{name}/at") for number in (0, length, rank - 1)]
        joined = editor.node(Slice, [joined, *ends], f"{name}/Slice")
    joined.shape = value.shape
    return joined


def _quantize_by_one_operator(editor: Editor, value: ir.Value, name: str) -> ir.Value:
    kinds = {"codes": ir.DataType.UINT8, "scale": ir.DataType.FLOAT, "zero": ir.DataType.UINT8}
    outputs = [
        ir.Value(name=editor.names.fresh(f"{name}/{part}"), type=ir.TensorType(kind))
        for part, kind in kinds.items()
    ]
    editor.add(DynamicQuantizeLinear, [value], outputs, name=str(outputs[0].name))
    return editor.node(DequantizeLinear, outputs, f"{name}/DequantizeLinear")


class _ComposedQuantizer:
    """A quantizer put together from single operators."""

    def __init__(
        self, editor: Editor, value: ir.Value, quantizer: DynamicQuantizer, name: str
    ) -> None:
        self._editor, self._value, self._quantizer, self._name = editor, value, quantizer, name
        self._chain = Chain(editor, name)

    def result(self) -> ir.Value:
        chain, quantizer = self._chain, self._quantizer
        zero = chain.constant(0.0)
        low = chain(Min, self._reduce(ReduceMin), zero)
        high = chain(Max, self._reduce(ReduceMax), zero)
        if quantizer.symmetric:
            span, codes = chain(Max, chain(functions.negative, low), high), quantizer.quant_max
        else:
            span, codes = chain(Sub, high, low), quantizer.quant_max - quantizer.quant_min
        is_flat = chain(Equal, low, high, dtype=ir.DataType.BOOL)
        one, count = chain.constant(1.0), chain.constant(float(codes))
        scale = chain(Where, is_flat, one, chain(Div, span, count))
        if quantizer.factor is Factor.SCALE:
            steps = chain(Div, self._value, scale)
        elif quantizer.factor is Factor.RECIPROCAL:
            steps = chain(Mul, self._value, chain(Div, one, scale))
        else:
            factor = chain(Where, is_flat, one, chain(Div, count, span))
            scale = chain(Div, one, factor) if quantizer.factor is Factor.INVERTED else scale
            steps = chain(Mul, self._value, factor)
        rounded = ROUNDERS[quantizer.rounding](chain, steps)
        least, most = (chain.constant(float(c)) for c in (quantizer.quant_min, quantizer.quant_max))
        if not quantizer.symmetric:
            ends = (low, high) if quantizer.factor is Factor.INVERTED else (low,)
            offset = self._zero_point(ends, scale, least, most)
            least, most = chain(Sub, least, offset), chain(Sub, most, offset)
        return chain(Mul, chain(Min, chain(Max, rounded, least), most), scale)

    def _zero_point(
        self, ends: tuple[ir.Value, ...], scale: ir.Value, least: ir.Value, most: ir.Value
    ) -> ir.Value:
        """Return the zero point of the lower end, or of the end that is larger in codes."""
        chain = self._chain
        from_ends = [chain(Div, end, scale) for end in ends]
        offset = chain(Sub, least, from_ends[0])
        if len(ends) > 1:
            sums = [
                chain(Add, code, end) for code, end in zip((least, most), from_ends, strict=True)
            ]
            is_high = chain(Greater, chain(Add, *sums), chain.constant(0.0), dtype=ir.DataType.BOOL)
            offset = chain(Where, is_high, offset, chain(Sub, most, from_ends[1]))
        bounded = chain(Min, chain(Max, offset, least), most)
        return ROUNDERS[Rounding.HALF_EVEN](chain, bounded)

    def _reduce(self, operator: Named) -> ir.Value:
        op_type = type_of(operator)
        name = f"{self._name}/{op_type}"
        if not self._quantizer.rows:
            return self._editor.node(op_type, [self._value], name, {"keepdims": 0})
        if self._editor.model.opset_imports[""] < _AXES_AS_INPUT:
            return self._editor.node(op_type, [self._value], name, {"axes": [-1], "keepdims": 1})
        axes = self._editor.initializer(f"{name}_axes", np.array([-1], np.int64))
        return self._editor.node(op_type, [self._value, axes], name, {"keepdims": 1})
