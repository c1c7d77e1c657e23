"""Checks a parsed model before any library that is not ours looks at it.

Protobuf and onnx-ir accept much that crashes compiled code, or that lets it read other files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx

from intact.errors import ModelError
from intact.graph.files.external import refuse_bad_place

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

_WINDOWED = ("Conv", "Pool")

_WINDOW = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 1, "pads": 2}
"""Numbers an axis of the attributes of a sliding window."""

_AXES = frozenset({"axis", "axes", "batch_axis", "time_axis", "batch_dims", "perm"})

_MOST_AXES = 64
"""NumPy's limit. onnx 1.22 reads outside its memory for a GatherND with batch_dims -2^31."""

_MOST = {"blocksize": 1 << 15, "kernel_shape": 1 << 24, "dilations": 1 << 24}
"""Limits of attributes that are multiplied with others."""

_LARGEST = 1 << 31
"""Limit of other numbers in attributes: products of larger ones overflow where they are used."""

_ANY_NUMBER = frozenset({"start", "starts", "end", "ends", "value_int", "value_ints"})
"""Attributes in which a very large number stands for the end of an axis, or is just data."""

_STANDARD = ("", "ai.onnx")
"""Spellings of ONNX's own domain."""


def refuse_unsound(proto: onnx.ModelProto, folder: Path | None, where: str) -> None:
    """Check a model for errors that protobuf and onnx-ir accept: text that is not UTF-8, attributes
    without value, nodes that violate their operator's definition, tensors in files elsewhere.

    Operators of other domains, and those that this version of ONNX does not have, are not checked.

    Args:
        proto: The parsed model.
        folder: The model's folder; None for a model that is not of a file.
        where: Name of the model for messages.

    Raises:
        ModelError: There is one; the message names the field, attribute, node or tensor.
    """
    for message in _messages(proto):
        if isinstance(message, onnx.TensorProto):
            refuse_bad_place(message, folder, where)
    opset = _opset(proto.opset_import)
    # Functions are checked apart: there an attribute may refer to one of the caller, and they may
    # import another opset.
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


def refuse_other_files(content: bytes, where: str) -> None:
    """Check that a model's bytes name no file: a runtime would look in the working directory.

    Args:
        content: The bytes of an ``.onnx`` file.
        where: Name of the model for messages.

    Raises:
        ModelError: A tensor is in an external file.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception:  # no model: whoever opens it says so. DecodeError has no importable base
        return
    for message in _messages(proto):
        if isinstance(message, onnx.TensorProto) and message.external_data:
            raise ModelError(
                f"{where}: tensor {message.name!r} is in an external file",
                remedy="quantize again",
            )


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
    problems = (_attribute_problem(attribute, schema) for attribute in node.attribute)
    found = next(filter(None, problems), "") or _contradiction(node)
    if found:
        return found
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
    if attribute.ref_attr_name or attribute.name in _ANY_NUMBER:
        return ""
    if attribute.name in _COUNTS and attribute.i < 1:
        return f"has {attribute.name} {attribute.i}, which must be 1 or more"
    most = _MOST_AXES if attribute.name in _AXES else _MOST.get(attribute.name, _LARGEST)
    for number in (attribute.i, *attribute.ints):
        if not -most <= number < most:
            return f"has {attribute.name} {number}, which must be from {-most} to {most - 1}"
    return ""


def _contradiction(node: onnx.NodeProto) -> str:
    """Tell what of a node does not fit the rest of it; empty where all fits."""
    if _outputs_of_split(node) not in (None, len(node.output)):
        return f"has num_outputs {_outputs_of_split(node)}, but {len(node.output)} outputs"
    axes = {len(each.ints) // _WINDOW[each.name] for each in _window(node)}
    if len(axes) > 1 or any(len(each.ints) % _WINDOW[each.name] for each in _window(node)):
        counts = ", ".join(f"{len(each.ints)} {each.name}" for each in _window(node))
        return f"has attributes for different numbers of axes: {counts}"
    return ""


def _window(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """List the attributes of a sliding window, which have one or two numbers an axis."""
    if not any(part in node.op_type for part in _WINDOWED):
        return []
    return [each for each in node.attribute if each.name in _WINDOW and not each.ref_attr_name]


def _outputs_of_split(node: onnx.NodeProto) -> int | None:
    found = (each.i for each in node.attribute if each.name == "num_outputs")
    return next(found, None) if node.op_type == "Split" else None


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except (onnx.defs.SchemaError, TypeError):  # also for a version that does not fit a C integer
        return None
