"""Writes weights in blocks for OpenVINO: codes, a zero point and a scale a group.

``Constant [rows, groups, size] -> Convert -> Subtract -> Multiply -> Reshape [rows, numbers]``, in
half precision where the scales are, which OpenVINO's kernels read as one compressed weight: the
numbers are computed in float32 (measured with openvino 2026.4.1: 4e-7).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ExportError
from intact.graph.edit import Editor
from intact.graph.tied_tables import tied_tables
from intact.ops.operators import Cast, Mul, Reshape, Sub, Transpose
from intact.plan import QuantizedGraph, QuantPoint


class BlockWriter:
    """Writes the weights in blocks of a plan into an edited model.

    Args:
        editor: The model.
        plan: Its plan.
    """

    def __init__(self, editor: Editor, plan: QuantizedGraph) -> None:
        self._editor = editor
        self._tied = {
            str(layer.inputs[1].name): str(lookup.inputs[0].name)
            for lookup, layer, is_turned in tied_tables(plan.graph)
            if is_turned and layer.inputs[1] is not None and lookup.inputs[0] is not None
        }
        self._made: dict[str, list[tuple[_Groups, ir.Value]]] = {}

    def write(self, point: QuantPoint) -> None:
        """Let the readers of a constant read what its codes stand for."""
        groups = _Groups.of(point)
        rows = self._rows(groups)
        if groups.is_turned:
            rows = self._editor.node(
                Transpose,
                [rows],
                f"{groups.name}_turned",
                {"perm": [1, 0]},
                shape=(groups.codes.shape[1] * groups.codes.shape[2], len(groups.codes)),
            )
        ends = [(str(node.name), slot) for node, slot in point.readers]
        self._editor.redirect(self._editor.value(groups.name), rows, ends)

    def _rows(self, groups: _Groups) -> ir.Value:
        """Return the numbers of rows; equal ones are stored once."""
        own = self._tied.get(groups.name, groups.name)
        for other, value in self._made.get(own, ()):
            if other.same(groups):
                return value
        value = self._numbers(groups)
        self._made.setdefault(own, []).append((groups, value))
        return value

    def _numbers(self, groups: _Groups) -> ir.Value:
        editor, name, kind = self._editor, groups.name, groups.kind
        shape = groups.codes.shape
        attributes = {"to": int(kind)}
        stored = editor.initializer(f"{name}_quantized", groups.codes)
        value = editor.node(Cast, [stored], f"{name}_cast", attributes, kind, shape)
        if groups.zero_points is not None:
            middle = editor.initializer(f"{name}_zero_points", groups.stored_zero_points)
            if groups.zero_points.dtype.kind != "f":
                middle = editor.node(Cast, [middle], f"{name}_middle", attributes, kind)
            value = editor.node(Sub, [value, middle], f"{name}_centered", None, kind, shape)
        scales = editor.initializer(f"{name}_scales", groups.scales.astype(kind.numpy()))
        value = editor.node(Mul, [value, scales], f"{name}_floats", None, kind, shape)
        matrix = (shape[0], shape[1] * shape[2])
        lengths = editor.integers(*matrix, name=f"{name}_lengths")
        value = editor.node(Reshape, [value, lengths], f"{name}_rows", None, kind, matrix)
        if kind is ir.DataType.FLOAT:
            return value
        wide = {"to": int(ir.DataType.FLOAT)}
        return editor.node(Cast, [value], f"{name}_wide", wide, shape=matrix)


class _Groups:
    """A constant as groups of what is summed.

    Attributes:
        name: Its name.
        codes: ``[rows, groups, size]``.
        scales: ``[rows, groups, 1]``.
        zero_points: ``[rows, groups, 1]``; None where codes are symmetric, floats where they lie
            between codes.
        kind: The type in which the file has scales.
        is_turned: Whether its rows are the columns of the constant.
    """

    def __init__(self, point: QuantPoint, codes: npt.NDArray[Any], *, is_turned: bool) -> None:
        params, grid = point.config.params, point.config.grid
        if params is None or grid.block is None:
            raise ExportError(f"{point.end} has no scales in blocks")
        if codes.shape[1] % grid.block:
            raise ExportError(
                f"{point.end} has {codes.shape[1]} numbers in a row, which is no multiple of a "
                f"block of {grid.block}",
                remedy="keep this node float, or give another --block",
            )
        scale, zeros = (each.T if is_turned else each for each in params)
        kind = np.int8 if grid.quant_min < 0 else np.uint8
        self.name = str(point.value.name)
        self.codes = codes.astype(kind).reshape(len(codes), -1, grid.block)
        self.scales = np.ascontiguousarray(scale, np.float32)[..., None]
        stored: npt.NDArray[Any] = zeros if params.lies_between else zeros.astype(kind)
        self.zero_points = None if grid.symmetric else np.ascontiguousarray(stored)[..., None]
        # Rounded numbers would stand for others than those of the plan.
        is_half = _is_half(self.scales) and _is_half(zeros)
        self.kind = ir.DataType.FLOAT16 if is_half else ir.DataType.FLOAT
        self.is_turned = is_turned

    @staticmethod
    def of(point: QuantPoint) -> _Groups:
        """Return the groups of a quantized constant."""
        codes, is_turned = point.constant_codes(), point.config.grid.axis == 0
        return _Groups(point, codes.T if is_turned else codes, is_turned=is_turned)

    @property
    def stored_zero_points(self) -> npt.NDArray[Any]:
        """Zero points as the file has them: codes, or floats of the type of the scales."""
        zeros = np.zeros(0) if self.zero_points is None else self.zero_points
        return zeros.astype(self.kind.numpy()) if zeros.dtype.kind == "f" else zeros

    def same(self, other: _Groups) -> bool:
        """Tell whether two constants have equal codes, scales and zero points."""
        one, another = self.zero_points, other.zero_points
        if (one is None) != (another is None) or self.codes.dtype != other.codes.dtype:
            return False
        same = np.array_equal(self.codes, other.codes) and np.array_equal(self.scales, other.scales)
        return same and (one is None or another is None or np.array_equal(one, another))


def _is_half(numbers: npt.NDArray[Any]) -> bool:
    half = numbers.astype(np.float16).astype(np.float32)
    return np.array_equal(half, numbers.astype(np.float32))
