"""Reading and checking ONNX models; a bad file gives one error with its cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from intact.errors import ModelError
from intact.graph.files.external import MappedFile, MappedTensor, map_external, refuse_bad_places
from intact.graph.files.opset import modernize
from intact.graph.files.protobuf import Span, read_without_weights
from intact.graph.files.quiet import quiet
from intact.graph.files.tensors import all_nodes, own_tensors
from intact.graph.passes.library import sort_nodes

_KINDS = onnx.AttributeProto

_VALUES = {
    _KINDS.TENSOR: "t",
    _KINDS.GRAPH: "g",
    _KINDS.SPARSE_TENSOR: "sparse_tensor",
    _KINDS.TYPE_PROTO: "tp",
}

"""The field with the value of an attribute of a message type; other types have a default."""

_TYPES = frozenset({"to", "dtype", "output_dtype"})

"""Attributes of ONNX's own operators that hold the number of an element type."""

_COUNTS = frozenset({"group", "offset_group"})

"""Attributes that are divisors: ONNX Runtime 1.31 crashes on a ConvTranspose with group 0."""

_STANDARD = ("", "ai.onnx")

"""Spellings of ONNX's own domain."""


def refuse_unsound(proto: onnx.ModelProto, where: str) -> None:
    """Check a model for errors that protobuf and onnx-ir accept: text that is not UTF-8, attributes
    without value, nodes that violate their operator's definition.

    Operators of other domains, and those that this version of ONNX does not have, are not checked.

    Args:
        proto: The parsed model.
        where: Name of the model for messages.

    Raises:
        ModelError: There is one; the message names the field, attribute or node.
    """
    opset = _opset(proto.opset_import)
    for message in _messages(proto.graph):
        _check(message, opset, where)
        if isinstance(message, onnx.AttributeProto) and message.ref_attr_name:
            raise ModelError(
                f"{where}: attribute {message.name!r} refers to an attribute of a function, "
                "but is not in a function"
            )
    for function in proto.functions:
        own_opset = _opset(function.opset_import) or opset
        for message in _messages(function):
            _check(message, own_opset, where)
    for part in (*proto.opset_import, *proto.metadata_props):
        _check(part, opset, where)


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    return max((each.version for each in imports if each.domain in _STANDARD), default=0)


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all nested ones; protobuf limits the depth."""
    yield message
    if isinstance(message, onnx.TensorProto):
        return  # listing its fields would copy its data
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from _messages(each)


def _check(message: Any, opset: int, where: str) -> None:
    for name, text in _texts(message):
        if isinstance(text, bytes):  # protobuf returns bytes where decoding failed
            raise ModelError(
                f"{where} is malformed: {name} {text!r} of a {type(message).__name__} is not "
                "UTF-8 text",
                remedy="export or copy it again",
            )
    if isinstance(message, onnx.AttributeProto) and not message.ref_attr_name:
        value = _VALUES.get(message.type)
        if message.type == _KINDS.UNDEFINED or (value and not message.HasField(value)):
            raise ModelError(
                f"{where} is malformed: attribute {message.name!r} has no type or no value",
                remedy="export or copy it again",
            )
    if isinstance(message, onnx.NodeProto) and message.domain in _STANDARD:
        problem = _problem(message, opset)
        if problem:
            raise ModelError(
                f"{where}: node {message.name!r} ({message.op_type}) {problem}",
                remedy="export the model again",
            )


def _texts(message: Any) -> Iterator[tuple[str, str | bytes]]:
    if isinstance(message, onnx.TensorProto):
        yield from (("name", message.name), ("doc_string", message.doc_string))
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in value if field.is_repeated else (value,):
                yield field.name, text


def _problem(node: onnx.NodeProto, opset: int) -> str:
    """List violations of the operator's ONNX definition; empty where there are none."""
    schema = _schema(node.op_type, opset)
    if schema is None:
        return ""
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            return f"has {count} {what}, ONNX opset {opset} requires {least} to {most}"
    for attribute in node.attribute:
        problem = _attribute_problem(attribute, schema)
        if problem:
            return problem
    present = {attribute.name for attribute in node.attribute}
    for name, defined in schema.attributes.items():
        if defined.required and name not in present:
            return f"has no attribute {name!r}"
    return ""


def _attribute_problem(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> str:
    defined = schema.attributes.get(attribute.name)
    wanted: Any = defined and defined.type  # an enum; its type stub lacks that
    if wanted is not None and wanted.value != attribute.type:
        given = _KINDS.AttributeType.Name(attribute.type)
        return f"has attribute {attribute.name!r} of type {given}, not {wanted.name}"
    if attribute.name in _TYPES and attribute.i not in onnx.TensorProto.DataType.values():
        return f"has {attribute.name} {attribute.i}, which is not an element type"
    if attribute.name in _COUNTS and attribute.i < 1 and not attribute.ref_attr_name:
        return f"has {attribute.name} {attribute.i}, which must be 1 or more"
    return ""


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except (onnx.defs.SchemaError, TypeError):  # also for a version that does not fit a C integer
        return None


_MOST_ELEMENTS = 1 << 28

"""Limit for the elements of a dense tensor: a few sparse bytes can claim any number."""


def dense_initializers(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Convert sparse initializers to dense ones; returns the same object if there are none.

    Raises:
        ModelError: One is malformed or too large.
    """
    if not proto.graph.sparse_initializer:
        return proto
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    for sparse in dense.graph.sparse_initializer:
        try:
            dense.graph.initializer.append(_dense(sparse))
        except (ValueError, IndexError, TypeError) as error:
            raise ModelError(
                f"{where}: sparse initializer {sparse.values.name!r} cannot be read: {error}",
                remedy="export the model with dense weights",
            ) from error
    del dense.graph.sparse_initializer[:]
    return dense


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Make a dense tensor: indices are flat positions, or one row of coordinates per value."""
    shape = tuple(sparse.dims)
    size = math.prod(shape)
    if min(shape, default=0) < 0 or size > _MOST_ELEMENTS:
        raise ValueError(f"its shape is {list(shape)}")
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    if indices.shape != values.shape or (indices < 0).any():
        raise ValueError("indices and values do not match")
    flat = np.zeros(size, values.dtype)
    flat[indices] = values
    return numpy_helper.from_array(flat.reshape(shape), sparse.values.name)


MAP_FROM = 1 << 28

"""Size in bytes from which the weights of an ``.onnx`` file are memory-mapped."""

_MAPPED_WEIGHT = 1 << 20

"""Size in bytes from which a weight of such a file is mapped."""

_Weights = dict[str, MappedTensor]


def load_model(source: str | Path | onnx.ModelProto | ir.Model) -> ir.Model:
    """Read a model; weights in external files and in large ``.onnx`` files are memory-mapped.

    Such files may be replaced or removed while the model is in use, but not overwritten in place.
    Models of opset 7 to 10 are converted to opset 13 (`intact.graph.files.opset`).

    Args:
        source: A path to an ``.onnx`` file, or a model that is already loaded. An `ir.Model` is
            cloned (tensors are shared), so that the caller's model never changes.

    Raises:
        ModelError: The file is missing, a folder, empty, truncated or not ONNX; the graph is empty,
            has a cycle or reads a tensor that no node produces; the opset is older than 7 or cannot
            be converted; external data is missing, too short or outside the model's folder.
    """
    folder = None
    where = "the model"
    if isinstance(source, ir.Model):
        model = _cloned(source)
    elif isinstance(source, onnx.ModelProto):
        model = _deserialize(source, where)
    else:
        path = Path(source)
        where, folder = f"model {str(path)!r}", path.parent
        proto, weights = _read(path, where)
        model = _deserialize(proto, where)
        _put_back(model, weights)
    _check_graph(model, where)
    sort_nodes(model)  # onnx-ir cannot clone it otherwise
    try:
        map_external(model, folder, where)
        own_tensors(model)
    except (AssertionError, TypeError, ValueError) as error:  # data do not fit type and shape
        raise ModelError(f"{where} has a malformed tensor: {_first_line(error)}") from error
    return modernize(model, where)


def _cloned(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except RuntimeError as error:
        raise ModelError(
            "the model cannot be copied: a node reads a tensor of a later node or of none",
            remedy="sort its nodes, or load it by its path",
        ) from error


def _read(path: Path, where: str) -> tuple[onnx.ModelProto, _Weights]:
    """Read a file; for a large one the model without weights, and the mapped weights by name."""
    try:
        if path.stat().st_size >= MAP_FROM and path.is_file():
            return _read_mapped(path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{where} does not exist", remedy="check the path") from None
    except IsADirectoryError:
        raise ModelError(f"{where} is a folder", remedy="name the .onnx file inside it") from None
    except OSError as error:
        raise ModelError(f"{where} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf's DecodeError has no importable base of its own
        raise _not_onnx(where) from error
    if not data:
        raise ModelError(f"{where} is empty (0 bytes)", remedy="export or copy it again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise _not_onnx(where) from error
    return proto, {}


def _read_mapped(path: Path) -> tuple[onnx.ModelProto, _Weights]:
    file = MappedFile.open(path)
    proto, spans = read_without_weights(file.pages, larger_than=_MAPPED_WEIGHT)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    return proto, {name: _mapped(file, span, tensors[name]) for name, span in spans.items()}


def _mapped(file: MappedFile, span: Span, tensor: onnx.TensorProto) -> MappedTensor:
    dtype, shape = ir.DataType(tensor.data_type), ir.Shape(tensor.dims)
    mapped = MappedTensor(file, span.start, dtype, shape, tensor.name)
    if mapped.nbytes != span.end - span.start:
        raise ValueError(f"tensor {tensor.name!r} does not have the size of its data")
    return mapped


def _put_back(model: ir.Model, weights: _Weights) -> None:
    for name, tensor in weights.items():
        model.graph.initializers[name].const_value = tensor


def _not_onnx(where: str) -> ModelError:
    return ModelError(
        f"{where} is not an ONNX file, or is truncated", remedy="export or copy it again"
    )


def _deserialize(proto: onnx.ModelProto, where: str) -> ir.Model:
    # Protobuf parses any message: unknown fields are skipped.
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            f"{where} is not an ONNX model: it holds no graph or no opset",
            remedy="export or copy it again",
        )
    refuse_unsound(proto, where)
    refuse_bad_places(proto, where)
    try:
        with quiet():  # problems are reported or repaired below
            return ir.from_proto(dense_initializers(proto, where))
    except ModelError:
        raise
    except Exception as error:  # onnx-ir raises many kinds for a malformed model
        reason = _first_line(error.__cause__ or error)
        raise ModelError(f"{where} is a malformed ONNX model: {reason}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)


def _check_graph(model: ir.Model, where: str) -> None:
    if "" not in model.opset_imports:
        raise ModelError(f"{where} does not import the default opset")
    if not len(model.graph) or not model.graph.outputs:
        raise ModelError(f"{where} has an empty graph: no nodes or no outputs")
    scopes: list[ir.Graph | ir.Function] = [*model.graphs(), *model.functions.values()]
    known = {value for scope in scopes for value in scope.inputs}
    known |= {value for graph in model.graphs() for value in graph.initializers.values()}
    for node in all_nodes(model):
        for value in node.inputs:
            if value is not None and value.producer() is None and value not in known:
                raise ModelError(
                    f"{where}: node {node.name!r} ({node.op_type}) reads tensor {value.name!r},"
                    " which no node produces"
                )
    for scope in scopes:
        for value in scope.outputs:
            if value.producer() is None and value not in known:
                raise ModelError(f"{where}: no node produces the graph output {value.name!r}")
