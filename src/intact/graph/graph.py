"""Declares `Graph`: a read-only view of a normalized model, with producers and consumers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError, nearest
from intact.graph.aliases import aliases_of
from intact.graph.batch_norm import INPUT_KEY, BatchNorm, recall
from intact.graph.files.external import tensor_bytes
from intact.graph.files.load import load_model
from intact.graph.files.save import save_model
from intact.graph.fixed_inputs import fixed_inputs_of
from intact.graph.given_nodes import GivenNode, GivenNodes, given_nodes_of
from intact.graph.metadata import metadata_of
from intact.graph.ops import OpKind, Role, input_role, is_constant, op_spec
from intact.graph.origins import Origins, origins_of
from intact.graph.passes.widen import METADATA_KEY, PORTS_KEY, widen_ports
from intact.graph.states import State, states_of
from intact.graph.traversal import bodies, nodes_of

_GRAPH_TYPES = {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}


def model_digest(model: ir.Model) -> str:
    """Compute the SHA-256 of a model as 64 hexadecimal digits."""
    digest = _Digest()
    digest.opsets(model.opset_imports)
    digest.graph(model.graph)
    for function in sorted(model.functions.values(), key=lambda each: repr(each.identifier())):
        digest.text("function", *map(str, function.identifier()))
        digest.opsets(function.opset_imports)
        digest.text(*(value.name for value in function.inputs))
        digest.text(*(value.name for value in function.outputs))
        digest.nodes(function)
    return digest.hexdigest()


class _Digest:
    """Computes a hash over length-prefixed fields, so that no two models hash the same bytes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.hexdigest = self._hash.hexdigest

    def data(self, content: bytes | memoryview) -> None:
        # Else two fields could be divided elsewhere and hash the same.
        self._hash.update(len(content).to_bytes(8, "little"))
        self._hash.update(content)

    def text(self, *fields: str | None) -> None:
        for field in fields:
            self.data(b"\0" if field is None else b"\1" + field.encode("utf-8"))

    def opsets(self, imports: dict[str, int]) -> None:
        self.text("opsets", *(f"{domain}={imports[domain]}" for domain in sorted(imports)))

    def graph(self, graph: ir.Graph) -> None:
        self.text("inputs")
        for value in graph.inputs:
            self.text(value.name, str(value.dtype), str(value.shape))
        self.text("outputs", *(value.name for value in graph.outputs))
        self.text("initializers")
        # Sorted, as the order of initializers means nothing.
        for name in sorted(graph.initializers):
            self.text(name)
            self.tensor(graph.initializers[name].const_value)
        self.nodes(graph)

    def nodes(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            self.text("node", node.domain, node.op_type, node.overload, node.name)
            self.text("reads", *(None if value is None else value.name for value in node.inputs))
            self.text("writes", *(value.name for value in node.outputs))
            for name in sorted(node.attributes):
                self.attribute(node.attributes[name])

    def attribute(self, attribute: ir.Attr) -> None:
        self.text("attribute", attribute.name, str(attribute.type))
        if attribute.type in _GRAPH_TYPES and not attribute.is_ref():
            single = attribute.type is ir.AttributeType.GRAPH
            graphs = (attribute.as_graph(),) if single else attribute.as_graphs()
            for graph in graphs:
                self.graph(graph)
        elif attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
            self.tensor(attribute.as_tensor())
        else:
            is_ref = attribute.is_ref()  # asked here: `ir.to_proto` tries a dozen protocols first
            proto = (
                ir.serde.serialize_reference_attribute(attribute)
                if is_ref
                else ir.serde.serialize_attribute(attribute)
            )
            # Exporters write traces and paths there, which change nothing.
            proto.doc_string = ""
            self.data(proto.SerializeToString(deterministic=True))

    def tensor(self, tensor: ir.TensorProtocol | None) -> None:
        if tensor is None:
            self.text(None)
            return
        self.text(str(tensor.dtype), str(tuple(tensor.shape.numpy())))
        if tensor.dtype is ir.DataType.STRING:
            for item in tensor.numpy().flatten():
                self.data(bytes(item))
        else:
            self.data(tensor_bytes(tensor))


IMPLICIT_SLOT = -1
"""The slot of a consumer that reads a value only inside its body (If, Loop, Scan)."""

_FLOATS = {
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
}

Consumer = tuple[ir.Node, int]
"""A node and the input slot at which it reads a value."""


class Graph:
    """A normalized model: every node and value of the main graph has a unique name.

    Results are cached, so the model must not be changed. To change it, use `clone` and change the
    copy's model before any query.

    Args:
        model: A model as `intact.graph.normalization.normalize` leaves it.

    Raises:
        ModelError: Two nodes or two values share a name, or one has none.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._nodes = tuple(model.graph)
        self._by_name = {node.name: node for node in self._nodes if node.name}
        if len(self._by_name) != len(self._nodes):
            raise ModelError("the graph has nodes without a unique name", remedy=_NORMALIZE)
        values = self.values
        if len({value.name for value in values if value.name}) != len(values):
            raise ModelError("the graph has values without a unique name", remedy=_NORMALIZE)

    @property
    def model(self) -> ir.Model:
        """The onnx-ir model; not to be changed."""
        return self._model

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes of the main graph in topological order."""
        return self._nodes

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The graph inputs without initializers, in the model's order."""
        inputs = self._model.graph.inputs
        return tuple(value for value in inputs if not value.is_initializer())

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """The graph outputs in the model's order."""
        return tuple(self._model.graph.outputs)

    @cached_property
    def values(self) -> tuple[ir.Value, ...]:
        """Graph inputs, initializers, then node outputs in topological order, without
        duplicates.
        """
        graph = self._model.graph
        results = (value for node in self._nodes for value in node.outputs if _is_present(value))
        return tuple(dict.fromkeys((*graph.inputs, *graph.initializers.values(), *results)))

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return self._model.opset_imports[""]

    @property
    def widened(self) -> tuple[str, ...]:
        """The element types that normalization converted to float32: FLOAT16, BFLOAT16 or none."""
        types = self._model.metadata_props.get(METADATA_KEY, "")
        return tuple(types.split(",")) if types else ()

    @cached_property
    def widened_ports(self) -> tuple[str, ...]:
        """The float16 inputs and outputs that are float32 because a format has no other.

        Raises:
            ModelError: The model's metadata of them is damaged.
        """
        return metadata_of(self._model, PORTS_KEY, lambda names: tuple(map(str, names)), ())

    def with_wide_ports(self) -> Graph:
        """Return the graph with float32 inputs and outputs in place of float16 ones, if it can be.

        Itself where there are none.
        """
        if not any(v.dtype is ir.DataType.FLOAT16 for v in (*self.inputs, *self.outputs)):
            return self
        model = self._model.clone()
        given = GivenNodes(self._model)
        if not widen_ports(model):
            return self
        given.follow(model)
        return Graph(model)

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """The names of inputs and outputs by what the file that was read calls their tensors.

        Raises:
            ModelError: The model's metadata of them is damaged.
        """
        return MappingProxyType(aliases_of(self._model))

    @cached_property
    def fixed_inputs(self) -> Mapping[str, np.ndarray]:
        """What the given model's inputs were fixed to, by name, in their types and shapes.

        Raises:
            ModelError: The model's metadata of them is damaged.
        """
        return MappingProxyType(fixed_inputs_of(self._model))

    @cached_property
    def given_nodes(self) -> Mapping[str, GivenNode]:
        """What became of the given model's nodes that are gone or of another type, by name.

        Raises:
            ModelError: The model's metadata of them is damaged.
        """
        return MappingProxyType(given_nodes_of(self._model))

    @cached_property
    def origins(self) -> Origins | None:
        """The tensors of a module that the constants were made of; None where there was none.

        Raises:
            ModelError: The model's metadata of them is damaged.
        """
        return origins_of(self._model)

    @cached_property
    def states(self) -> Mapping[str, State]:
        """Inputs that are the last run's outputs, by name, with their first values.

        Raises:
            ModelError: See `states_of`.
        """
        return MappingProxyType(dict(states_of(self._model)))

    def node(self, name: str) -> ir.Node:
        """Return a node by name.

        Raises:
            ModelError: There is no such node; the message offers the nearest name.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise ModelError(
                f"the graph has no node {name!r}", remedy=nearest(name, self._by_name)
            ) from None

    def value(self, name: str) -> ir.Value:
        """Return a value (tensor) of the main graph by name.

        Raises:
            ModelError: There is no such value; the message offers the nearest name.
        """
        try:
            return self._values_by_name[name]
        except KeyError:
            raise ModelError(
                f"the graph has no tensor {name!r}", remedy=nearest(name, self._values_by_name)
            ) from None

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """Return the array of a constant value, read-only; None where it is computed or absent."""
        if value is None or not is_constant(value) or value.const_value is None:
            return None
        name = value.name or ""
        if name not in self._arrays:
            # A view, so that being read-only does not change the model's own array.
            array = np.asarray(value.const_value.numpy()).view()
            array.flags.writeable = False
            self._arrays[name] = array
        return self._arrays[name]

    def consumers(self, value: ir.Value) -> tuple[Consumer, ...]:
        """Return the consumers of a value in topological order, one for each slot.

        A node that reads it only inside its body (If, Loop) has `IMPLICIT_SLOT`. A graph output is
        not a consumer: use ``value.is_graph_output()``.
        """
        return self._consumers.get(value, ())

    @cached_property
    def batch_norms(self) -> Mapping[str, BatchNorm]:
        """The BatchNormalization folded into each node, by node name."""
        found = ((node.name or "", recall(node)) for node in self._nodes)
        return MappingProxyType({name: norm for name, norm in found if norm is not None})

    @cached_property
    def input_batch_norms(self) -> Mapping[str, BatchNorm]:
        """The BatchNormalization folded into the layer behind it, by the name of that node."""
        found = ((node.name or "", recall(node, INPUT_KEY)) for node in self._nodes)
        return MappingProxyType({name: norm for name, norm in found if norm is not None})

    @cached_property
    def shape_or_index_values(self) -> frozenset[str]:
        """The values that must never be quantized, by name: shapes and indices.

        Integers, booleans and strings are shapes or indices by type. A float is one if all its uses
        end in shapes or indices (a resize factor computed in float, the scores of a routing
        ArgMax), as the SOI state of [ppq]. Graph outputs, inputs of compute nodes and inputs of
        unknown operators are found by their type only.
        """
        return _shape_or_index_values(self)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the model in hexadecimal, independent of file layout and location."""
        return model_digest(self._model)

    @staticmethod
    def is_float(value: ir.Value | None) -> bool:
        """Tell whether a value is known to hold float32, float16, bfloat16 or float64 numbers."""
        return value is not None and value.dtype in _FLOATS

    def clone(self) -> Graph:
        """Copy the model; its tensors are shared, since they never change."""
        return Graph(self._model.clone())

    def save(self, path: str | Path) -> None:
        """Write the model; see `intact.graph.files.save.save_model`."""
        save_model(self._model, path)

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read a model that was normalized before it was saved.

        Raises:
            ModelError: The file cannot be read, or was not normalized.
        """
        return cls(load_model(path))

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def _values_by_name(self) -> dict[str, ir.Value]:
        return {value.name: value for value in self.values if value.name}

    @cached_property
    def _consumers(self) -> dict[ir.Value, tuple[Consumer, ...]]:
        found: dict[ir.Value, list[Consumer]] = {}
        for node in self._nodes:
            for slot, value in enumerate(node.inputs):
                if value is not None:
                    found.setdefault(value, []).append((node, slot))
            for value in values_read_inside(node):
                # A node that also reads it at a slot is listed there already.
                if all(reader is not node for reader, _ in found.get(value, ())):
                    found.setdefault(value, []).append((node, IMPLICIT_SLOT))
        return {value: tuple(readers) for value, readers in found.items()}


_NORMALIZE = "normalize it first"


def _is_present(value: ir.Value) -> bool:
    # An optional output that is absent is a value with an empty name and no readers.
    return bool(value.name) or bool(value.uses()) or value.is_graph_output()


def values_read_inside(node: ir.Node) -> dict[ir.Value, None]:
    """List the outer values that the subgraphs of a node read, in order."""
    read: dict[ir.Value, None] = {}
    for body in bodies(node):
        for inner in nodes_of(body):
            read.update((value, None) for value in inner.inputs if value is not None)
        read.update((value, None) for value in body.outputs)
    return read


def _shape_or_index_values(graph: Graph) -> frozenset[str]:
    ends_in_shape: set[ir.Value] = set()
    # Readers come before what they read, so that one pass is enough.
    for value in reversed(graph.values):
        readers = graph.consumers(value)
        if value.is_graph_output() or not readers:
            continue
        if all(_leads_to_shape(node, slot, ends_in_shape) for node, slot in readers):
            ends_in_shape.add(value)
    names = (value.name for value in graph.values if value in ends_in_shape or _not_float(value))
    return frozenset(name for name in names if name)


def _not_float(value: ir.Value) -> bool:
    return value.dtype is not None and not Graph.is_float(value)


def _leads_to_shape(node: ir.Node, slot: int, ends_in_shape: set[ir.Value]) -> bool:
    spec = op_spec(node)
    if slot == IMPLICIT_SLOT or spec is None:
        return False
    if input_role(node, slot) is Role.SHAPE:
        return True
    if spec.kind is OpKind.COMPUTE:
        return False
    used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    return bool(used) and all(value in ends_in_shape for value in used)
