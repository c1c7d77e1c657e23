"""Checks a parsed model before any library that is not ours looks at it.

Protobuf and onnx-ir accept much that crashes compiled code, or that lets it read other files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from intact.errors import ModelError
from intact.graph.files.expansion import FunctionKey, called_key, function_key
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
    if proto.functions:
        _Calls(proto, opset, where).check(proto.graph)
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


_Attributes: TypeAlias = Sequence[tuple[str, onnx.AttributeProto]]
"""What a node calls its attributes, and their values; of one that refers to another, that one."""


def _problem(node: onnx.NodeProto, opset: int, attributes: _Attributes | None = None) -> str:
    """List violations of the operator's ONNX definition; empty where there are none.

    Args:
        node: The node.
        opset: What it means.
        attributes: Its own if None.
    """
    schema = _schema(node.op_type, opset)
    if schema is None:
        return ""
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            return f"has {count} {what}, ONNX opset {opset} requires {least} to {most}"
    if attributes is None:
        attributes = [(each.name, each) for each in node.attribute]
    problems = (_attribute_problem(name, each, schema) for name, each in attributes)
    found = next(filter(None, problems), "") or _contradiction(node, attributes)
    if found:
        return found
    present = {name for name, _ in attributes}
    for name, defined in schema.attributes.items():
        if defined.required and name not in present:
            return f"has no attribute {name!r}"
    return ""


def _attribute_problem(
    name: str, attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema
) -> str:
    defined = schema.attributes.get(name)
    wanted: Any = defined and defined.type  # an enum; its type stub lacks that
    if wanted is not None and wanted.value != attribute.type:
        given = _KINDS.AttributeType.Name(attribute.type)
        return f"has attribute {name!r} of type {given}, not {wanted.name}"
    # What it refers to, `_Calls` looks at.
    if attribute.ref_attr_name or name in _ANY_NUMBER:
        return ""
    if name in _TYPES and attribute.i not in onnx.TensorProto.DataType.values():
        return f"has {name} {attribute.i}, which is not an element type"
    if name in _COUNTS and attribute.i < 1:
        return f"has {name} {attribute.i}, which must be 1 or more"
    most = _MOST_AXES if name in _AXES else _MOST.get(name, _LARGEST)
    for number in (attribute.i, *attribute.ints):
        if not -most <= number < most:
            return f"has {name} {number}, which must be from {-most} to {most - 1}"
    return ""


def _contradiction(node: onnx.NodeProto, attributes: _Attributes) -> str:
    """Tell what of a node does not fit the rest of it; empty where all fits."""
    known = [(name, each) for name, each in attributes if not each.ref_attr_name]
    parts = next((each.i for name, each in known if name == "num_outputs"), None)
    if node.op_type == "Split" and parts not in (None, len(node.output)):
        return f"has num_outputs {parts}, but {len(node.output)} outputs"
    # Attributes of a sliding window have one or two numbers an axis.
    is_window = any(part in node.op_type for part in _WINDOWED)
    window = [(n, len(each.ints)) for n, each in known if is_window and n in _WINDOW]
    axes = {count // _WINDOW[name] for name, count in window}
    if len(axes) > 1 or any(count % _WINDOW[name] for name, count in window):
        counts = ", ".join(f"{count} {name}" for name, count in window)
        return f"has attributes for different numbers of axes: {counts}"
    return ""


_Given: TypeAlias = Mapping[str, Sequence[onnx.AttributeProto]]
"""The attributes of a call by name; a file may give one twice."""


class _Calls:
    """Checks nodes of functions with the attributes of their callers, as whoever runs them does.

    Args:
        proto: A model that `intact.graph.files.expansion.refuse_endless` has checked, so that its
            functions are not called too often.
        opset: Of functions that import none.
        where: Name of the model for messages.
    """

    def __init__(self, proto: onnx.ModelProto, opset: int, where: str) -> None:
        self._functions = {function_key(each): each for each in proto.functions}
        self._opset, self._where = opset, where
        self._nodes: dict[FunctionKey, list[onnx.NodeProto]] = {}
        # By attribute and not by value, which may be long: they stay in memory, so that no two
        # have one number.
        self._seen: set[tuple[FunctionKey, tuple[int, ...]]] = set()
        self._kept: list[_Given] = []

    def check(self, graph: onnx.GraphProto) -> None:
        """Check the functions that a graph calls.

        Raises:
            ModelError: A node of one violates its operator's definition.
        """
        for message in _messages(graph):
            if isinstance(message, onnx.NodeProto):
                self._call(message, {})

    def _call(self, node: onnx.NodeProto, given: _Given) -> None:
        key = called_key(node)
        function = self._functions.get(key)
        if function is None:
            return
        own: dict[str, list[onnx.AttributeProto]] = {}
        for name, attribute in _resolved(node, given):
            own.setdefault(name, []).append(attribute)
        for default in function.attribute_proto:
            own.setdefault(default.name, [default])
        names = [*function.attribute, *(each.name for each in function.attribute_proto)]
        used = {name: own.get(name, []) for name in names}
        mark = key, tuple(id(each) for values in used.values() for each in values)
        if mark in self._seen:
            return
        self._seen.add(mark)
        self._kept.append(used)
        opset = _opset(function.opset_import) or self._opset
        for each in self._concerned(key, function):
            self._call(each, used)
            problem = _problem(each, opset, _resolved(each, used)) if _refers(each) else ""
            if problem and each.domain in _STANDARD:
                raise ModelError(
                    f"{self._where}: node {each.name!r} ({each.op_type}) of function"
                    f" {function.name!r}, called by {node.name!r}, {problem}",
                    remedy="export the model again",
                )

    def _concerned(
        self, key: FunctionKey, function: onnx.FunctionProto
    ) -> Sequence[onnx.NodeProto]:
        """Return the nodes of a function that call another or refer to its attributes."""
        if key not in self._nodes:
            self._nodes[key] = [
                each
                for each in _messages(function)
                if isinstance(each, onnx.NodeProto)
                and (called_key(each) in self._functions or _refers(each))
            ]
        return self._nodes[key]


def _refers(node: onnx.NodeProto) -> bool:
    return any(each.ref_attr_name for each in node.attribute)


def _resolved(node: onnx.NodeProto, given: _Given) -> _Attributes:
    """Return the attributes of a node, those of the caller where it refers to them."""
    return [
        (each.name, value)
        for each in node.attribute
        for value in (given.get(each.ref_attr_name, ()) if each.ref_attr_name else (each,))
    ]


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except (onnx.defs.SchemaError, TypeError):  # also for a version that does not fit a C integer
        return None
