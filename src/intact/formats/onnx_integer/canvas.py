"""An ONNX graph as it is drawn: nodes between values, constants as initializers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.program import Shape
from intact.program.realize import Value

INT64_MAX = int(np.iinfo(np.int64).max)


class Canvas:
    """Nodes so far, and the ONNX values of the graph's.

    Attributes:
        nodes: In topological order.
        initializers: By name.
    """

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self._values: dict[str, ir.Value] = {}
        self._count = 0

    def input(self, value: Value) -> ir.Value:
        """Return an input."""
        self._values[value.name] = _value(value.name, value.dtype, value.shape)
        return self._values[value.name]

    def value(self, value: Value) -> ir.Value:
        """Return the ONNX value of one of the graph, which an initializer holds if it is fixed."""
        if value.data is not None:
            return self.array(value.data, value.name)
        return self._values[value.name]

    def array(self, data: npt.ArrayLike, name: str) -> ir.Value:
        """Return an initializer; one for each name."""
        if name not in self.initializers:
            array = np.ascontiguousarray(data) if np.ndim(data) else np.asarray(data)
            held = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            held.shape, held.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
            self.initializers[name] = held
        return self.initializers[name]

    def constant(self, data: npt.ArrayLike, dtype: npt.DTypeLike, of: str) -> ir.Value:
        """Return a constant of a value that a node makes, in a type."""
        self._count += 1
        return self.array(np.asarray(data, dtype), f"{of}/constant_{self._count}")

    def draw(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        result: Value,
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:
        """Draw the node that makes a value of the graph."""
        made = _value(result.name, result.dtype, result.shape)
        self._values[result.name] = made
        return self._node(kind, inputs, made, attributes)

    def step(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        result: Value,
        dtype: npt.DTypeLike | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:
        """Draw a node on the way to a value, of its shape, and return what it makes."""
        self._count += 1
        name = f"{result.name}/{kind}_{self._count}"
        made = _value(name, np.dtype(result.dtype if dtype is None else dtype), result.shape)
        return self._node(kind, inputs, made, attributes)

    def _node(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        made: ir.Value,
        attributes: Mapping[str, Any] | None,
    ) -> ir.Value:
        given = {key: each for key, each in (attributes or {}).items() if each is not None}
        node = ir.node(kind, list(inputs), given, outputs=[made], name=made.name)
        self.nodes.append(node)
        return made


def _value(name: str, dtype: np.dtype[Any], shape: Shape) -> ir.Value:
    return ir.Value(
        name=name, type=ir.TensorType(ir.DataType.from_numpy(dtype)), shape=ir.Shape(shape)
    )
