"""Writes a plan as plain float ONNX: each quantizer moves its tensor to the plan's levels.

Sums and functions between are those of the float model, so the file computes what the simulation
computes, in any runtime of ONNX. No other format holds logarithmic levels: QuantizeLinear and
FakeQuantize have equal steps. A logarithmic constant is stored as its codes, which are exponents,
with a table of the levels; an activation's code is found by its logarithm, and its level by the
same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.config import Rounding, TensorQuantConfig
from intact.formats.base.maker import sign
from intact.formats.base.storage import stored_codes
from intact.graph import save_model
from intact.graph.edit import Editor
from intact.graph.files.save import file_bytes
from intact.graph.files.tensors import computed
from intact.graph.origins import bare
from intact.numerics.affine_params import QuantParams
from intact.numerics.logarithmic import levels_of, zero_below
from intact.ops import functions
from intact.ops.operators import Add, Cast, Div, Gather, Less, Max, Min, Mul, Named, Where, type_of
from intact.plan import (
    Note,
    QuantizedGraph,
    QuantPoint,
    TensorEnd,
    quantization_points,
    refuse_unready,
)
from intact.plan.overflows import overflow_notes, wrap_sums
from intact.program.unsupported import UnsupportedNodes

LEVELS_FILE = "model.levels.onnx"
"""What the model is called in a result's folder."""

_DOUBLE, _INT32, _BOOL = ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.BOOL


class _Ties(NamedTuple):
    """A rounding in operators: to ``operator(number + shift)``."""

    operator: str
    shift: float = 0.0
    of_magnitude: bool = False
    """The magnitude is rounded so, and gets its sign back."""


_ROUNDINGS: Mapping[Rounding, _Ties] = MappingProxyType(
    {
        Rounding.HALF_EVEN: _Ties(functions.round_half_even.name),
        Rounding.NEAREST: _Ties(functions.round_half_even.name),
        Rounding.UP: _Ties(functions.ceil.name),
        Rounding.HALF_UP: _Ties(functions.floor.name, 0.5),
        Rounding.HALF_DOWN: _Ties(functions.ceil.name, -0.5),
        Rounding.HALF_AWAY_FROM_ZERO: _Ties(functions.floor.name, 0.5, of_magnitude=True),
        Rounding.HALF_TOWARD_ZERO: _Ties(functions.ceil.name, -0.5, of_magnitude=True),
    }
)


@dataclass
class LevelsModel:
    """What was written.

    Attributes:
        model: The ONNX model.
        levels: For each quantized activation, the name of its values on their levels.
        notes: What a user should know about this export.
    """

    model: ir.Model
    levels: dict[TensorEnd, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write the model, and its data where that is large, into a folder."""
        save_model(self.model, folder / LEVELS_FILE)

    def nbytes(self) -> int:
        """Return the bytes of the file."""
        return file_bytes(self.model)


def write_levels(plan: QuantizedGraph) -> LevelsModel:
    """Write a plan as ONNX in float; plan and float model are not changed.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: Plain operators cannot express some ends; all of them are listed.
    """
    refuse_unready(plan)
    points = list(quantization_points(plan))
    unsupported = UnsupportedNodes("ONNX in float cannot express", "keep these nodes float")
    for point in points:
        if not point.is_constant and point.config.granularity.axis is not None:
            unsupported.add(str(point.end), "one scale a channel of an activation")
    unsupported.raise_any()
    editor = Editor(plan.graph.model)
    # Before quantizers are put in, which name values as the plan does.
    wrap_sums(editor, plan)
    writer = _Writer(editor)
    for point in points:
        if point.is_constant:
            writer.constant(point)
        elif not point.is_passed_on:
            # Ends that are passed on have the levels of what is quantized before them.
            writer.activation(point)
    writer.result.notes += overflow_notes(plan)
    writer.result.model = bare(writer.editor.finish())
    sign(writer.result.model, plan)
    return writer.result


class _Writer:
    """Adds the quantizers of one model."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.result = LevelsModel(editor.model)
        self._constants: dict[tuple[str, int], ir.Value] = {}
        self._tables: dict[int, ir.Value] = {}

    def activation(self, point: QuantPoint) -> None:
        """Put a quantizer behind the producer, or before those who read its result."""
        value = self.editor.value(str(point.value.name))
        base = str(value.name) if point.at_output else f"{value.name}_{point.end.node}"
        quantize = _logarithmic if point.config.grid.exponential else _linear
        result = quantize(_Chain(self.editor, base), value, point.config, self._table)
        result.shape = value.shape
        readers = [(str(node.name), slot) for node, slot in point.readers]
        self.editor.redirect(value, result, readers)
        if point.at_output:
            self.editor.replace_output(value, result)
            # Quantizers that some readers have for themselves come behind the producer's.
            self.editor.rebind(str(point.value.name), result)
        self.result.levels[point.end] = str(result.name)

    def constant(self, point: QuantPoint) -> None:
        """Store a constant on its levels, shared by equal readers."""
        key = (str(point.value.name), id(point.config.dominator))
        if key not in self._constants:
            is_logarithmic = point.config.grid.exponential
            store = self._exponents if is_logarithmic else self._numbers
            self._constants[key] = store(point)
        value = self.editor.value(str(point.value.name))
        readers = [(str(node.name), slot) for node, slot in point.readers]
        self.editor.redirect(value, self._constants[key], readers)

    def _numbers(self, point: QuantPoint) -> ir.Value:
        """Store the floats that the codes of a constant stand for."""

        def numbers() -> ir.TensorProtocol:
            codes = point.constant_codes()
            return ir.Tensor(np.asarray(point.config.dequantize(codes), np.float32))

        name = f"{point.value.name}_on_levels"
        return self.editor.initializer(
            name, computed(point.value.const_value, numbers, ir.DataType.FLOAT)
        )

    def _exponents(self, point: QuantPoint) -> ir.Value:
        """Store the codes of a constant, and look up their levels, as float64 until scaled.

        A negative index counts from the end of the table, where the negative levels are.
        """
        config, name = point.config, str(point.value.name)
        dtype = np.int8 if max(-config.quant_min, config.quant_max) < 128 else np.int16
        stored = stored_codes(point, dtype, ir.DataType.from_numpy(np.dtype(dtype)))
        codes = self.editor.initializer(f"{name}_codes", stored)
        chain = _Chain(self.editor, name)
        steps = config.grid.octave
        # Unscaled: one table serves every channel, whose scale is multiplied in behind.
        magnitudes = np.exp2(np.arange(1, config.quant_max + 1) / steps)
        table = chain.constant(np.concatenate([[0.0], magnitudes, -magnitudes[::-1]]))
        levels = chain(Gather, table, chain.to(codes, _INT32), dtype=_DOUBLE)
        scale = chain.constant(_along_axis(point, _params(config)))
        result = chain.to(chain(Mul, levels, scale, dtype=_DOUBLE), ir.DataType.FLOAT)
        result.shape = point.value.shape
        return result

    def _table(self, config: TensorQuantConfig) -> ir.Value:
        """Return the magnitudes of a config's codes, float32, stored once."""
        key = id(config.dominator)
        if key not in self._tables:
            scale = float(_params(config).scale)
            levels = levels_of(scale, config.quant_max, config.grid.octave)
            number = len(self._tables)
            self._tables[key] = self.editor.initializer(f"levels_{number}", levels)
        return self._tables[key]


def _params(config: TensorQuantConfig) -> QuantParams:
    if config.params is None:
        raise ValueError("a point has no scale")  # refuse_unready says so first
    return config.params


def _along_axis(point: QuantPoint, params: QuantParams) -> np.ndarray:
    """Return the scales of a constant, float64, of a shape that broadcasts."""
    scale = params.scale.astype(np.float64)
    axis, source = point.config.granularity.axis, point.value.const_value
    if axis is None or source is None:
        return scale
    return scale.reshape([-1 if each == axis else 1 for each in range(len(source.shape))])


class _Chain:
    """Adds nodes with a common name prefix."""

    def __init__(self, editor: Editor, name: str) -> None:
        self._editor = editor
        self._name = name

    def __call__(self, operator: Named, *inputs: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a node."""
        op_type = type_of(operator)
        return self._editor.node(op_type, inputs, f"{self._name}/{op_type}", dtype=dtype)

    def to(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a conversion."""
        to = {"to": int(dtype)}
        return self._editor.node(Cast, [value], f"{self._name}/Cast", to, dtype)

    def constant(self, numbers: object, dtype: type = np.float64) -> ir.Value:
        """Add a constant."""
        return self._editor.initializer(f"{self._name}/constant", np.asarray(numbers, dtype))


_Table = Callable[[TensorQuantConfig], ir.Value]


def _linear(chain: _Chain, value: ir.Value, config: TensorQuantConfig, _table: _Table) -> ir.Value:
    """Move values to the nearest multiple of the scale, less the zero point."""
    params, number = _params(config), ir.DataType.FLOAT
    scale = chain.constant(params.scale, np.float32)
    # Counted from the zero point, so that nothing has to be added and taken off again.
    low = chain.constant(config.quant_min - params.zero_point, np.float32)
    high = chain.constant(config.quant_max - params.zero_point, np.float32)
    steps = chain(Div, value, scale, dtype=number)
    codes = _rounded(chain, steps, _ROUNDINGS[config.rounding])
    codes = chain(Min, chain(Max, codes, low, dtype=number), high, dtype=number)
    return chain(Mul, codes, scale, dtype=number)


def _rounded(chain: _Chain, steps: ir.Value, ties: _Ties) -> ir.Value:
    """Round float32 numbers; a half is added in float64, where the sum of both is exact."""
    number = ir.DataType.FLOAT
    if not ties.shift:
        return chain(ties.operator, steps, dtype=number)
    rounded = chain(functions.absolute, steps, dtype=number) if ties.of_magnitude else steps
    shifted = chain(Add, chain.to(rounded, _DOUBLE), chain.constant(ties.shift), dtype=_DOUBLE)
    codes = chain.to(chain(ties.operator, shifted, dtype=_DOUBLE), number)
    if not ties.of_magnitude:
        return codes
    return chain(Mul, codes, chain(functions.sign, steps, dtype=number), dtype=number)


def _logarithmic(
    chain: _Chain, value: ir.Value, config: TensorQuantConfig, table: _Table
) -> ir.Value:
    """Move values to the nearest logarithmic level.

    In float64: with float32 logarithms, values near the middle between two levels could come to
    the wrong one.
    """
    number, steps = ir.DataType.FLOAT, config.grid.octave
    scale = chain.constant(_params(config).scale)
    magnitude = chain(functions.absolute, value, dtype=number)
    ratio = chain(Div, chain.to(magnitude, _DOUBLE), scale, dtype=_DOUBLE)
    position = chain(
        Mul,
        chain(functions.log, ratio, dtype=_DOUBLE),
        chain.constant(steps / np.log(2.0)),
        dtype=_DOUBLE,
    )
    # The logarithm of 0 is minus infinity, which the maximum takes away before it is an index.
    above = chain(Max, position, chain.constant(1.0), dtype=_DOUBLE)
    inside = chain(Min, above, chain.constant(config.quant_max), dtype=_DOUBLE)
    nearest = chain.to(chain(functions.round_half_even, inside, dtype=_DOUBLE), _INT32)
    is_zero = chain(Less, ratio, chain.constant(zero_below(steps)), dtype=_BOOL)
    codes = chain(Where, is_zero, chain.constant(0, np.int32), nearest, dtype=_INT32)
    levels = chain(Gather, table(config), codes, dtype=number)
    sign = chain(functions.sign, value, dtype=number)
    if config.quant_min == 0:  # no negative side
        sign = chain(Max, sign, chain.constant(0.0, np.float32), dtype=number)
    return chain(Mul, sign, levels, dtype=number)
