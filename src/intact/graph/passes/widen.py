"""Converts float16 and bfloat16 models to float32; the stored numbers do not change.

Quantization starts from float32, and CPUs have few half-precision kernels. A float16 model keeps
its float16 inputs and outputs, with Casts. NumPy has no bfloat16, so bfloat16 inputs and outputs
become float32; so do sequences, which Cast does not support.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.files.external import MappedTensor
from intact.graph.files.tensors import change_tensors
from intact.graph.metadata import set_metadata
from intact.graph.names import node_names, value_names
from intact.graph.passes.replace import replace_value
from intact.graph.traversal import all_nodes, graphs_of
from intact.ops.operators import BitCast, Cast, Constant, is_a

METADATA_KEY = "intact.widened"
"""Model metadata: the element types that became float32, separated by commas."""

PORTS_KEY = "intact.widened_ports"
"""Model metadata: the float16 inputs and outputs that became float32."""

_NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_TYPE_ATTRIBUTES = frozenset(
    {
        "dtype",
        "output_datatype",
        "output_dtype",
        "precision",
        "softmax_precision",
        "stash_type",
        "to",
    }
)
"""Attributes of standard operators that hold an element type."""


def widen_floats(model: ir.Model) -> frozenset[ir.DataType]:
    """Convert a model from float16 and bfloat16 to float32.

    Tensors, casts, type attributes, bodies and functions are changed; float32 and float64 parts are
    not. The original types are stored in the model's metadata: those that the model computes in,
    not those in which it only stores what is cast to float32 first.

    Returns:
        The element types that were converted; empty if there are none.

    Raises:
        ModelError: An operator reads the bits of half-precision numbers, or a function takes the
            type as an attribute.
    """
    # A model of float32 whose ends alone are half is no half model: its Casts stay as they are.
    ports = _cast_ports(model.graph)
    found = frozenset(_types_in_use(model, ports)) & _NARROW
    if not found:
        return found
    computed = frozenset(_types_in_use(model, ports | _cast_constants(model.graph))) & _NARROW
    for node in all_nodes(model):
        _widen_attributes(node)
    # Before types change, since float16 ports are known by them.
    types = _ports(model.graph)
    change_tensors(model, _widen_tensor)
    for value in _all_values(model):
        value.type = _wide_type(value.type)
    for value, dtype in types.items():
        if dtype is ir.DataType.FLOAT16 and isinstance(value.type, ir.TensorType):
            _cast_port(model.graph, value)
    if computed:
        model.metadata_props[METADATA_KEY] = ",".join(sorted(each.name for each in computed))
    return found


def widen_ports(model: ir.Model) -> list[str]:
    """Let float16 inputs and outputs that only Casts read or make be float32, without the Casts.

    Args:
        model: Changed in place.

    Returns:
        The names of these inputs and outputs, which keep them.
    """
    graph, wide = model.graph, ir.TensorType(ir.DataType.FLOAT)
    ports = _cast_ports(graph)
    inputs = [v for v in graph.inputs if v in ports and v.dtype is ir.DataType.FLOAT16]
    outputs = [v for v in graph.outputs if v in ports and v.producer() is not None]
    for value in inputs:
        for use in tuple(value.uses()):
            use.node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
            graph.remove(use.node, safe=True)
        value.type = wide
    changed = [str(value.name) for value in inputs]
    for value in outputs:
        cast = value.producer()
        source = cast.inputs[0] if cast is not None else None
        if cast is None or source is None or source.dtype is not ir.DataType.FLOAT:
            continue
        if source.is_graph_input() or source.is_graph_output() or source.is_initializer():
            continue  # it keeps its own name
        replace_value(value, source)
        source.type = wide
        graph.remove(cast, safe=True)
        changed.append(str(source.name))
    set_metadata(model, PORTS_KEY, changed)
    return changed


def _cast_ports(graph: ir.Graph) -> frozenset[ir.Value]:
    """Find the inputs that only Casts to float32 read, and the outputs that only Casts produce."""
    inputs = (
        value
        for value in graph.inputs
        if value.uses()
        and all(_casts_to(use.node, ir.DataType.FLOAT) for use in value.uses())
        and not value.is_graph_output()
    )
    outputs = (
        value
        for value in graph.outputs
        if not value.uses() and _casts_to(value.producer(), ir.DataType.FLOAT16)
    )
    return frozenset((*inputs, *outputs))


def _cast_constants(graph: ir.Graph) -> frozenset[ir.Value]:
    """Find the constants that only Casts to float32 read."""
    made = (node.outputs[0] for node in graph if is_a(node, Constant) and node.outputs)
    return frozenset(
        value
        for value in (*graph.initializers.values(), *made)
        if value.uses()
        and all(_casts_to(use.node, ir.DataType.FLOAT) for use in value.uses())
        and not (value.is_graph_input() or value.is_graph_output())
    )


def _casts_to(node: ir.Node | None, dtype: ir.DataType) -> bool:
    is_cast = is_a(node, Cast)
    return is_cast and node is not None and Cast.of(node).to == dtype


def _types_in_use(model: ir.Model, ports: frozenset[ir.Value]) -> Iterator[ir.DataType]:
    for value in _all_values(model):
        if value.dtype is not None and value not in ports:
            yield value.dtype
        if value.const_value is not None and value not in ports:
            yield value.const_value.dtype
    for node in all_nodes(model):
        if node.outputs and node.outputs[0] in ports:
            continue
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type is ir.AttributeType.TENSOR:
                yield attribute.as_tensor().dtype
            elif _names_type(node, attribute):
                yield ir.DataType(attribute.as_int())


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in graphs_of(model):
        yield from graph.inputs
        yield from graph.initializers.values()
    for function in model.functions.values():
        yield from function.inputs
    for node in all_nodes(model):
        yield from node.outputs


def _ports(graph: ir.Graph) -> dict[ir.Value, ir.DataType | None]:
    """Return the element types of graph inputs and outputs."""
    fed = (value for value in graph.inputs if not value.is_initializer())
    return {value: value.dtype for value in (*fed, *graph.outputs)}


def _names_type(node: ir.Node, attribute: ir.Attr) -> bool:
    named = node.domain == "" and attribute.name in _TYPE_ATTRIBUTES
    return named and attribute.type is ir.AttributeType.INT


def _widen_attributes(node: ir.Node) -> None:
    where = f"node {node.name!r} ({node.op_type})"
    if is_a(node, BitCast):
        raise ModelError(
            f"{where} reads the bits of half-precision numbers",
            remedy="export the model in float32",
        )
    for name, attribute in tuple(node.attributes.items()):
        if not _names_type(node, attribute):
            continue
        if attribute.is_ref():
            raise ModelError(
                f"{where}: attribute {name!r} gets its type from the function's caller",
                remedy="export the model in float32",
            )
        if attribute.as_int() in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _widen_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype not in _NARROW:
        return tensor
    if isinstance(tensor, MappedTensor):  # converted when read, so that it needs no memory before
        return ir.LazyTensor(
            lambda: ir.Tensor(tensor.numpy().astype(np.float32)),
            ir.DataType.FLOAT,
            ir.Shape(tensor.shape.numpy()),
            name=tensor.name,
        )
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _wide_type(known: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(known, ir.TensorType) and known.dtype in _NARROW:
        return ir.TensorType(ir.DataType.FLOAT)
    if isinstance(known, ir.SequenceType | ir.OptionalType):
        inner = _wide_type(known.elem_type)
        return known if inner is None else type(known)(inner)
    return known


def _cast_port(graph: ir.Graph, port: ir.Value) -> None:
    """Add a Cast behind a float16 input or before a float16 output; input and output keep their
    names.
    """
    half = ir.TensorType(ir.DataType.FLOAT16)
    if port.is_graph_input():  # which may also be an output
        # Taken before the Cast is made, which reads the input too.
        readers = tuple(port.uses())
        if readers:
            cast = _cast(graph, port, ir.DataType.FLOAT)
            for node, slot in readers:
                node.replace_input_with(slot, cast.outputs[0])
            # In front of all nodes, since any of them may read the input.
            graph.insert_before(graph[0], cast)
        port.type = half
        return
    cast = _cast(graph, port, ir.DataType.FLOAT16)
    outer = cast.outputs[0]
    name, port_name = port.name, outer.name
    graph.append(cast)
    for index, output in enumerate(graph.outputs):
        if output is port:
            graph.outputs[index] = outer
    port.name, outer.name, outer.type = port_name, name, half


def _cast(graph: ir.Graph, value: ir.Value, to: ir.DataType) -> ir.Node:
    name = f"{value.name}_float32"
    cast = ir.node(
        Cast.name, [value], {"to": int(to)}, num_outputs=1, name=node_names(graph).fresh(name)
    )
    result = cast.outputs[0]
    result.name = value_names(graph).fresh(name)
    result.type, result.shape = ir.TensorType(to), value.shape
    return cast
