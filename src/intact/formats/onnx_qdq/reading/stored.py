"""Constants of a quantised model: stored integers, and the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from intact.errors import ConfigError, DataError
from intact.formats.graph_edits import GraphEdits
from intact.formats.onnx_qdq.reading.parameters import (
    Parameters,
    is_dequantize,
    is_quantize,
    read_parameters,
    refusal,
)
from intact.graph import is_constant
from intact.graph.passes.replace import add_constant
from intact.numerics.affine import dequantize, quantize
from intact.plan import Codes


@dataclass(frozen=True, eq=False)
class StoredConstant:
    """A float constant in the place of integers.

    Attributes:
        value: The constant.
        parameters: How its numbers follow from the integers.
        codes: The integers.
    """

    value: ir.Value
    parameters: Parameters
    codes: Codes


def lift_constants(edits: GraphEdits) -> list[StoredConstant]:
    """Put numbers in the place of every stored integer tensor that is dequantised, in place.

    Float constants that are quantised first are stored as integers before.

    Raises:
        ModelError: A node cannot be read; it is named.
    """
    return list(_Lift(edits).run())


class _Lift:
    def __init__(self, edits: GraphEdits) -> None:
        self._edits = edits
        self._graph = edits.graph
        self._found: dict[int, list[StoredConstant]] = {}

    def run(self) -> Iterator[StoredConstant]:
        """Edit the graph, then yield what was found."""
        for node in tuple(self._graph):  # in order: a dequantised constant may be quantised again
            if is_quantize(node) and is_constant(node.inputs[0]):
                self._store(node)
            elif is_dequantize(node) and is_constant(node.inputs[0]):
                self._make_constant(node)
        for same in self._found.values():
            yield from same

    def _store(self, node: ir.Node) -> None:
        """Quantise a float constant once and for all, as ONNX Runtime does before it runs."""
        parameters, value = read_parameters(node), node.inputs[0]
        if value is None or value.const_value is None:
            return
        container = parameters.container
        try:
            codes = quantize(
                value.const_value.numpy(),
                parameters.scale,
                parameters.zero_point,
                container.low,
                container.high,
                axis=parameters.axis,
            )
        except (ConfigError, DataError) as error:
            raise refusal(node, str(error)) from error
        stored = add_constant(
            self._graph,
            codes.astype(container.numpy),
            self._edits.fresh(f"{value.name}_quantized"),
        )
        node.outputs[0].replace_all_uses_with(stored, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        if not value.uses() and not value.is_graph_output():
            del self._graph.initializers[str(value.name)]
            self._edits.give_back(value.name)

    def _make_constant(self, node: ir.Node) -> None:
        """Put the numbers in the place of stored integers; equal ones are shared."""
        parameters, value = read_parameters(node), node.inputs[0]
        if value is None or value.const_value is None:
            return
        same = self._found.setdefault(id(value), [])
        found = next((c for c in same if c.parameters.equals(parameters)), None)
        if found is None:
            codes = value.const_value.numpy().astype(parameters.container.codes)
            numbers = dequantize(
                codes, parameters.scale, parameters.zero_point, axis=parameters.axis
            )
            name = self._name_of_numbers(value)
            found = StoredConstant(add_constant(self._graph, numbers, name), parameters, codes)
            same.append(found)
        result = node.outputs[0]
        if result.is_graph_output():
            self._edits.copy(result, found.value)
        result.replace_all_uses_with(found.value)
        self._graph.remove(node, safe=True)

    def _name_of_numbers(self, codes: ir.Value) -> str:
        """Return a name for the numbers of stored integers, which may leave them theirs."""
        name = str(codes.name)
        if name.endswith("_quantized"):
            return self._edits.fresh(name.removesuffix("_quantized"))
        if not codes.is_graph_output():
            codes.name = self._edits.fresh(f"{name}_quantized")
            self._edits.give_back(name)
        return self._edits.fresh(name)
