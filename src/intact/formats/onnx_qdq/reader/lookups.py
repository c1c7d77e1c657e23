"""Moves the DequantizeLinear of a quantized embedding from behind its Gather to the table.

ONNX Runtime's quantizer leaves an embedding as integers::

    Gather(table int8) -> DequantizeLinear                          as it is written
    DequantizeLinear(table) -> Gather -> QuantizeLinear -> ...      one scale for the table
    DequantizeLinear(table) -> Gather                               a scale for each row or column

So the reader finds a float lookup with a quantized table, as everywhere else. With one scale a
QuantizeLinear behind the Gather gives the same codes again, so that what read them still does.
Scales of rows are looked up beside the codes, and become those of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.formats.onnx_qdq.reader.expand import QOPERATORS, QOperator
from intact.formats.onnx_qdq.reader.parameters import (
    ONLY_KNOWN,
    integer_attribute,
    is_dequantize,
    unreadable,
)
from intact.graph import constant_array, input_value, is_constant, moves_values
from intact.graph.names import value_names
from intact.graph.passes.replace import add_constant, replace_value
from intact.ops.operators import DequantizeLinear, Gather, Named, QuantizeLinear, type_of

_CODES = (ir.DataType.INT8, ir.DataType.UINT8)


def lift_lookups(model: ir.Model) -> None:
    """Let every Gather of codes that stand for numbers look up the numbers instead, in place.

    Raises:
        ModelError: What its codes stand for cannot be told; the reader is named.
    """
    for node in tuple(model.graph):
        if not _looks_codes_up(node):
            continue
        lookup = _Lookup(model.graph, node)
        grids = list(_grids(node.outputs[0]))
        if not grids:
            continue  # integers that are no codes
        # With one scale codes that are looked up are codes of the same grid, whoever reads them.
        if grids[0].is_one_scale:
            lookup.lift(grids[0])
        else:
            for grid in grids:
                lookup.lift_reader(grid)


def _looks_codes_up(node: ir.Node) -> bool:
    table = input_value(node, 0)
    return (
        (node.domain, node.op_type) == ("", Gather.name)
        and is_constant(table)
        and len(node.outputs) == 1
        and table is not None
        and table.dtype in _CODES
    )


@dataclass(frozen=True)
class _Grid:
    """Scale and zero point of the codes, as a node that reads them says.

    Attributes:
        reader: A DequantizeLinear, or an operator on codes.
        scale: Its scale.
        zero_point: Its zero point, if it has one.
    """

    reader: ir.Node
    scale: ir.Value | None
    zero_point: ir.Value | None

    @property
    def is_one_scale(self) -> bool:
        """Whether there is one scale, and it is fixed."""
        scale = constant_array(self.scale)
        return scale is not None and scale.size == 1


def _grids(codes: ir.Value) -> Iterator[_Grid]:
    """Yield the scales that readers give codes, also behind nodes that only move them."""
    waiting = [codes]
    while waiting:
        for reader, slot in waiting.pop().uses():
            if len(reader.outputs) != 1:
                continue
            row = QOPERATORS.get((reader.domain, reader.op_type))
            if is_dequantize(reader) and slot == 0:
                yield _Grid(reader, input_value(reader, 1), input_value(reader, 2))
            elif row is not None:
                for own, scale, zero in _operands(row, reader):
                    if own == slot:
                        yield _Grid(reader, input_value(reader, scale), input_value(reader, zero))
            elif slot == 0 and reader.domain == "" and moves_values(reader):
                waiting.append(reader.outputs[0])


def _operands(row: QOperator, reader: ir.Node) -> Sequence[tuple[int, int, int]]:
    if not row.variadic:
        return row.operands
    return [(k, k + 1, k + 2) for k in range(row.operands[0][0], len(reader.inputs), 3)]


class _Lookup:
    """One Gather of codes."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self._graph, self._node = graph, node
        table, indices = input_value(node, 0), input_value(node, 1)
        if table is None or table.shape is None or indices is None:
            raise unreadable(node, "it has no table or no indices")
        self._table, self._indices = table, indices
        self._axis = integer_attribute(node, "axis", 0) % max(len(table.shape), 1)

    def lift(self, grid: _Grid) -> None:
        """Look numbers up, and quantize the result to the same codes (one scale)."""
        scale, zero_point = grid.scale, grid.zero_point
        if zero_point is None:
            kind = np.int8 if self._table.dtype is ir.DataType.INT8 else np.uint8
            zero_point = self._constant("zero_point", np.zeros((), kind))
        numbers = self._gather_numbers([scale, zero_point], [])
        codes = self._node.outputs[0]
        again = self._insert(QuantizeLinear, [numbers, scale, zero_point], [], codes)
        codes.type = codes.type or ir.TensorType(self._table.dtype or ir.DataType.UINT8)
        replace_value(codes, again)
        self._graph.remove(self._node, safe=True)

    def lift_reader(self, grid: _Grid) -> None:
        """Look up the numbers that a DequantizeLinear with several scales gives.

        Raises:
            ModelError: The scales are not those of rows or columns.
        """
        reader = grid.reader
        if not is_dequantize(reader) or reader.inputs[0] is not self._node.outputs[0]:
            raise unreadable(
                reader, "it has several scales for codes that are looked up", ONLY_KNOWN
            )
        axis = self._axis_in_table(integer_attribute(reader, "axis", 1))
        parts = (grid.scale, grid.zero_point)
        parameters = [None if part is None else self._for_table(part, axis) for part in parts]
        if axis is None or None in parameters[: 1 + (parts[1] is not None)]:
            raise unreadable(
                reader, "its scales are neither those of the rows nor of the columns", ONLY_KNOWN
            )
        attributes = [ir.AttrInt64("axis", axis)]
        numbers = self._gather_numbers(parameters, attributes, reader.outputs[0])
        replace_value(reader.outputs[0], numbers)
        self._graph.remove(reader, safe=True)
        # Other readers may still take the codes.
        if not self._node.outputs[0].uses():
            self._graph.remove(self._node, safe=True)

    def _axis_in_table(self, axis: int) -> int | None:
        """Return the table's axis that an axis of the result comes from; None for several."""
        found = self._indices.shape
        if found is None or self._table.shape is None:
            return None
        count = len(found)
        axis %= max(count + len(self._table.shape) - 1, 1)
        if axis < self._axis:
            return axis
        if axis >= self._axis + count:
            return axis - count + 1
        return self._axis if count == 1 else None

    def _for_table(self, value: ir.Value, axis: int | None) -> ir.Value | None:
        """Return scales or zero points of the whole table; None where they are not the table's."""
        # Scales of columns are constants that the lookup leaves alone; those of rows are looked up
        # as the rows are.
        if axis != self._axis:
            return value if is_constant(value) else None
        maker = value.producer()
        if maker is None or (maker.domain, maker.op_type) != ("", Gather.name):
            return None
        whole = input_value(maker, 0)
        is_alike = input_value(maker, 1) is self._indices and is_constant(whole)
        return whole if is_alike else None

    def _gather_numbers(
        self,
        parameters: list[ir.Value | None],
        attributes: list[ir.Attr],
        like: ir.Value | None = None,
    ) -> ir.Value:
        """Add a DequantizeLinear of the table and a Gather of its result; return that."""
        inputs = [self._table, *parameters]
        numbers = self._insert(DequantizeLinear, inputs, attributes, self._table)
        attributes = list(self._node.attributes.values())
        inputs = [numbers, self._indices]
        return self._insert(Gather, inputs, attributes, like or self._node.outputs[0])

    def _insert(
        self,
        operator: Named,
        inputs: list[ir.Value | None],
        attributes: list[ir.Attr],
        like: ir.Value,
    ) -> ir.Value:
        """Insert a node that gives floats of the shape of another value."""
        op_type = type_of(operator)
        node = ir.Node("", op_type, inputs, attributes, num_outputs=1)
        if op_type == Gather.name:
            # Ends of the plan are found by the name of the node.
            node.name = self._node.name
        self._graph.insert_before(self._node, node)
        result = node.outputs[0]
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), like.shape
        return result

    def _constant(self, part: str, array: np.ndarray) -> ir.Value:
        name = value_names(self._graph).fresh(f"{self._table.name}_{part}")
        return add_constant(self._graph, array, name)
