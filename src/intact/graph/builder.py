"""Builds ONNX graphs, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.names import Names
from intact.ops.operators import Named, type_of

Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float] | ir.Attr | None
Lengths: TypeAlias = Sequence[int | str | None] | ir.Shape
Constant: TypeAlias = npt.NDArray[Any] | np.generic | ir.TensorProtocol
FLOAT = ir.DataType.FLOAT


class GraphBuilder:
    """Adds nodes and constants in topological order; `graph` makes the finished graph.

    Args:
        names: Names of nodes and values that are in use; none for a new graph.

    Attributes:
        names: All names in use.
        inputs: The graph's inputs.
        nodes: The nodes added.
        initializers: The constants added, by name.
    """

    def __init__(self, names: Names | None = None) -> None:
        self.names = Names() if names is None else names
        self.inputs: list[ir.Value] = []
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self._shared: dict[tuple[object, ...], ir.Value] = {}

    def input(self, name: str, dtype: ir.DataType, shape: Lengths) -> ir.Value:
        """Add a graph input under a fresh name."""
        value = typed_value(self.names.fresh(name), dtype, shape)
        self._add_input(value)
        return value

    def node(
        self,
        op: Named,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Attribute] | None = None,
        dtype: ir.DataType = FLOAT,
        shape: Lengths | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Add a node with one output and return the output.

        Args:
            op: Operator.
            inputs: Values read; None for an input left out.
            name: Wanted for the node and its output; numbered if in use.
            attributes: Those of None are left out.
            dtype: The output's dtype.
            shape: The output's shape; None if unknown.
            domain: The operator's domain.
        """
        output = typed_value(self.names.fresh(name), dtype, shape)
        self.add(op, inputs, [output], attributes, name=str(output.name), domain=domain)
        return output

    def add(
        self,
        op: Named,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        name: str | None = None,
        domain: str = "",
    ) -> ir.Node:
        """Add a node that computes given values; no name is changed."""
        given = {key: value for key, value in (attributes or {}).items() if value is not None}
        node = ir.node(
            type_of(op), list(inputs), given, outputs=list(outputs), name=name, domain=domain
        )
        self._add_node(node)
        return node

    def initializer(self, name: str, data: Constant) -> ir.Value:
        """Add a constant under a fresh name."""
        return self.constant(self.names.fresh(name), data)

    def constant(self, name: str, data: Constant) -> ir.Value:
        """Add a constant under exactly this name."""
        # Asking whether something is a TensorProtocol would compute tensors that are lazy.
        if isinstance(data, np.ndarray | np.generic):
            data = ir.Tensor(_contiguous(data))  # ir.tensor asks what it is, ten times as long
        data.name = name
        value = typed_value(name, data.dtype, data.shape.numpy())
        value.const_value = data
        self._add_initializer(value)
        return value

    def integers(self, *numbers: int, name: str = "sizes") -> ir.Value:
        """Return a constant list of int64, shared by all callers with these numbers."""
        return self._once((name, numbers), lambda: np.array(numbers, np.int64))

    def floats(self, *numbers: float, name: str = "numbers") -> ir.Value:
        """Return a constant list of float32, shared by all callers with these numbers."""
        return self._once((name, numbers), lambda: np.array(numbers, np.float32))

    def number(self, number: float, name: str = "number") -> ir.Value:
        """Return a constant float32 scalar, shared by all callers with this number."""
        return self._once((name, float(number)), lambda: np.array(number, np.float32))

    def graph(
        self, outputs: Sequence[ir.Value], *, opset: int, name: str | None = None
    ) -> ir.Graph:
        """Make the graph of all that was added."""
        return ir.Graph(
            self.inputs,
            outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            opset_imports={"": opset},
            name=name,
        )

    def _once(self, key: tuple[str, object], array: Callable[[], npt.NDArray[Any]]) -> ir.Value:
        if key not in self._shared:
            self._shared[key] = self.initializer(key[0], array())
        return self._shared[key]

    # An editor of a model that exists adds to its graph instead.

    def _add_input(self, value: ir.Value) -> None:
        self.inputs.append(value)

    def _add_node(self, node: ir.Node) -> None:
        self.nodes.append(node)

    def _add_initializer(self, value: ir.Value) -> None:
        self.initializers[str(value.name)] = value


def typed_value(
    name: str | None, dtype: ir.DataType = FLOAT, shape: Lengths | None = None
) -> ir.Value:
    """Make a value of a type that no node computes yet; ``name`` None leaves it nameless."""
    lengths = shape if shape is None or isinstance(shape, ir.Shape) else ir.Shape(list(shape))
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=lengths)


def _contiguous(data: npt.NDArray[Any] | np.generic) -> npt.NDArray[Any]:
    # np.ascontiguousarray gives scalars an axis.
    return np.ascontiguousarray(data) if data.ndim else np.asarray(data)
