"""What protobuf and onnx-ir read without a word although it is no model, refused in front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import onnx

from intact.errors import ModelError

_KINDS = onnx.AttributeProto
_VALUES = {
    _KINDS.TENSOR: "t",
    _KINDS.GRAPH: "g",
    _KINDS.SPARSE_TENSOR: "sparse_tensor",
    _KINDS.TYPE_PROTO: "tp",
}
"""Where an attribute of a message type keeps its value; others have a default."""

_TYPES = frozenset({"to", "dtype", "output_dtype"})
"""Attributes of ONNX's own operators that hold the number of an element type."""

_COUNTS = frozenset({"group", "offset_group"})
"""Attributes that divide: of a ConvTranspose in no groups, ONNX Runtime 1.31 dies."""

_STANDARD = ("", "ai.onnx")
"""Spellings of ONNX's own domain."""


def refuse_unsound(proto: onnx.ModelProto, where: str) -> None:
    """Refuse texts that are not UTF-8, attributes without value and nodes that ONNX does not know.

    Operators of other domains, and those that this version of ONNX does not know, may be anything.

    Args:
        proto: A model as protobuf reads it.
        where: What to call it in messages.

    Raises:
        ModelError: Naming the field, the attribute or the node.
    """
    opset = _opset(proto.opset_import)
    for message in _messages(proto.graph):
        _check(message, opset, where)
        if isinstance(message, onnx.AttributeProto) and message.ref_attr_name:
            raise ModelError(
                f"{where}: attribute {message.name!r} stands for an attribute of a function, "
                "but is in none"
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
    """Yield a message and all in it; protobuf has limited how deep they lie."""
    yield message
    if isinstance(message, onnx.TensorProto):
        return  # asking for all its fields would copy its data
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from _messages(each)


def _check(message: Any, opset: int, where: str) -> None:
    for name, text in _texts(message):
        if isinstance(text, bytes):  # so protobuf hands over what it could not decode
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
            return f"has {count} {what}, ONNX opset {opset} wants {least} to {most}"
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
    wanted: Any = defined and defined.type  # an enum, which its stub does not say
    if wanted is not None and wanted.value != attribute.type:
        given = _KINDS.AttributeType.Name(attribute.type)
        return f"has attribute {attribute.name!r} of type {given}, not {wanted.name}"
    if attribute.name in _TYPES and attribute.i not in onnx.TensorProto.DataType.values():
        return f"has {attribute.name} {attribute.i}, which is no element type"
    if attribute.name in _COUNTS and attribute.i < 1 and not attribute.ref_attr_name:
        return f"has {attribute.name} {attribute.i}, which has to be 1 or more"
    return ""


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except (onnx.defs.SchemaError, TypeError):  # a version that is no C integer, too
        return None
