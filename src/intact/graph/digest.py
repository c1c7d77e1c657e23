"""A hash of what a model computes and how its parts are named.

The digest covers operators, attributes, names, connections, constants, opsets and the signature.
It leaves out what may change when a file is written again: the order of initialisers, document
strings, metadata, inferred shapes, the producer, and where the weights are stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import onnx_ir as ir

from intact.graph.files.mapped import tensor_bytes

_GRAPH_TYPES = {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}


def model_digest(model: ir.Model) -> str:
    """Return the SHA-256 of a model as 64 hexadecimal digits."""
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
    """Feeds a hash with length-prefixed fields, so that no two models write the same bytes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.hexdigest = self._hash.hexdigest

    def data(self, content: bytes | memoryview) -> None:
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
            proto = ir.to_proto(attribute)
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
