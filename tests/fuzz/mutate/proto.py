"""Mutations of ONNX models that are still protobuf: every field may be anything of its type."""

from __future__ import annotations

import itertools
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import helper

from tests.fuzz.mutate.raw import INTEGERS

NAMES = (
    "",
    " ",
    "a\nb",
    "nul\0",
    "\u202e\u2028",
    "\N{PILE OF POO}",
    "x" * 3000,
    "../up",
    "§intact§0§",
)
"""Names that break lines, paths and tables."""
_FLOATS = (0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan"))
_PATHS = ("/etc/passwd", "../../secret", "/dev/zero", "", ".", "model.onnx", "nul\0", "a" * 300)
_MOST_NODES = 400


def mutate_model(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the model with one to six mutations; see `mutate_bytes` for the arguments."""
    model = onnx.ModelProto.FromString(data)
    donor = onnx.ModelProto.FromString(other)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        random.choice(_MUTATIONS)(model, donor, random)
    result: bytes = model.SerializeToString()
    return result


def _change_field(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Give one field of one message another value, or none."""
    message = _any_message(model, random)
    field = random.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        _change_list(model, getattr(message, field.name), field, random)
    elif random.random() < 0.3:
        message.ClearField(field.name)
    elif field.type != FieldDescriptor.TYPE_MESSAGE:
        setattr(message, field.name, _value(model, field, random))
    else:
        getattr(message, field.name).SetInParent()  # present and empty


def _change_opset(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Let the operators mean what they do in another opset."""
    for opset in model.opset_import:
        if opset.domain == "" or random.random() < 0.2:
            opset.version = random.choice((*range(6, 27), random.choice(INTEGERS) % 2**63))


def _change_list(model: Any, items: Any, field: FieldDescriptor, random: Random) -> None:
    at = random.randrange(len(items)) if items else 0
    action = random.choice(("drop", "repeat", "reverse", "change", "change", "change"))
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        whole = [_copied(item) for item in items]
    else:
        whole = list(items)
    if action == "drop":
        del whole[at : at + random.choice((1, 1, len(whole)))]
    elif action == "repeat":
        whole[at:at] = whole[at : at + random.randint(1, 3)] * random.choice((1, 1, 30))
    elif action == "reverse":
        whole.reverse()
    elif field.type != FieldDescriptor.TYPE_MESSAGE:
        whole[at : at + random.randint(0, 1)] = [_value(model, field, random)]
    del items[:]
    items.extend(whole)


def _change_tensor(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Let a tensor's dimensions, type and data disagree."""
    tensors = [each for each in _messages(model) if isinstance(each, onnx.TensorProto)]
    if not tensors:
        return
    tensor = random.choice(tensors)
    action = random.choice(("dims", "type", "short", "long", "external", "other"))
    if action == "dims":
        del tensor.dims[:]
        tensor.dims.extend(random.choices(INTEGERS, k=random.choice((0, 1, 2, 4, 70))))
    elif action == "type":
        tensor.data_type = random.choice((*range(-1, 30), 2**31 - 1))
    elif action == "external":
        _make_external(tensor, random)
    elif action == "other":
        tensor.float_data.extend([1.0])
        tensor.string_data.extend([b"\xff"])
    else:
        raw = tensor.raw_data
        tensor.raw_data = raw[: len(raw) // 2] if action == "short" else raw + bytes(7)


def _make_external(tensor: onnx.TensorProto, random: Random) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entries = {
        "location": random.choice(_PATHS),
        "offset": str(random.choice(INTEGERS)),
        "length": random.choice((str(random.choice(INTEGERS)), "many", "1e3", "9" * 5000)),
    }
    for key in random.sample(sorted(entries), random.randint(0, 3)):
        tensor.external_data.add(key=key, value=entries[key])


def _transplant(model: onnx.ModelProto, donor: onnx.ModelProto, random: Random) -> None:
    """Put a message of the other model in the place of one of the same type."""
    goal = _any_message(model, random)
    same = [each for each in _messages(donor) if each.DESCRIPTOR is goal.DESCRIPTOR]
    if same:
        copy = _copied(random.choice(same))  # the donor may be the model itself
        goal.CopyFrom(copy)


def _rewire(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Let nodes read and write any name: cycles, itself, twice written, too many inputs."""
    nodes = [each for each in _messages(model) if isinstance(each, onnx.NodeProto)]
    if not nodes:
        return
    node = random.choice(nodes)
    names = random.choice((node.input, node.output))
    for _ in range(random.choice((1, 1, 2, 40))):
        names.insert(random.randint(0, len(names)), _name(model, random))
    if random.random() < 0.3:
        node.op_type = random.choice(nodes).op_type


def _nest(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Put the graph into the branches of an If, some levels deep."""
    for _ in range(random.choice((1, 5, 15, 24))):
        inner = _copied(model.graph)
        node = helper.make_node("If", [_name(model, random)], [_name(model, random)])
        for branch in ("then_branch", "else_branch")[: random.choice((1, 1, 2))]:
            if inner.ByteSize() < 1 << 16:
                node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH).g.CopyFrom(inner)
        del model.graph.node[:]
        model.graph.node.append(node)


def _prolong(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Add a long chain of nodes."""
    last = _name(model, random)
    op_type = random.choice(("Relu", "Identity", "Neg", "Transpose", "Unsqueeze", "Shape"))
    for number in range(random.choice((10, 50, _MOST_NODES))):
        model.graph.node.append(helper.make_node(op_type, [last], [f"chain{number}"]))
        last = f"chain{number}"
    model.graph.output.add(name=last)


def _call_itself(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Add a function that calls itself, and a call of it."""
    call = helper.make_node("Again", ["x"], ["y"], domain="own")
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "Again", ["x"], ["y"], [call], opset))
    model.opset_import.add(domain="own", version=1)
    node = helper.make_node("Again", [_name(model, random)], ["again"], domain="own")
    model.graph.node.append(node)


def _call_many(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Add functions that each call the one before several times, and a call of the last."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    depth, calls = random.choice(((2, 2), (5, 30), (40, 10)))
    for level in range(depth):
        op_type = f"Level{level - 1}" if level else "Relu"
        names = ["x", *(f"t{call}" for call in range(calls - 1)), "y"]
        body = [
            helper.make_node(op_type, [a], [b], domain="own" if level else "")
            for a, b in itertools.pairwise(names)
        ]
        function = helper.make_function("own", f"Level{level}", ["x"], ["y"], body, opset)
        model.functions.append(function)
    model.opset_import.add(domain="own", version=1)
    node = helper.make_node(f"Level{depth - 1}", [_name(model, random)], ["many"], domain="own")
    model.graph.node.append(node)
    model.graph.output.add(name="many")


def _make_sparse(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Make an initializer sparse; what is left out, and where it is stored, may be anything."""
    if not model.graph.initializer:
        return
    at = random.randrange(len(model.graph.initializer))
    dense = _copied(model.graph.initializer[at])
    del model.graph.initializer[at]
    sparse = model.graph.sparse_initializer.add()
    one = onnx.TensorProto(name=dense.name, data_type=onnx.TensorProto.FLOAT, float_data=[1])
    one.dims[:] = [1]
    sparse.values.CopyFrom(one)
    sparse.indices.CopyFrom(helper.make_tensor("", onnx.TensorProto.INT64, [1], [0]))
    sparse.dims.extend(dense.dims if random.random() < 0.5 else random.choices(INTEGERS, k=2))
    if random.random() < 0.5:
        _make_external(random.choice((sparse.values, sparse.indices)), random)


def _turn_long(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Add a loop of some or of very many turns."""
    number = onnx.TensorProto.INT64
    ports = [helper.make_tensor_value_info("i", number, [])]
    ports += [onnx.ValueInfoProto(name=name) for name in "cvdw"]
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])]
    body = helper.make_graph(nodes, "body", ports[:3], ports[3:])
    turns = helper.make_tensor("turns", number, [], [random.choice((3, 10**8, 2**62))])
    model.graph.initializer.append(turns)
    node = helper.make_node("Loop", ["turns", "", _name(model, random)], ["turned"], body=body)
    model.graph.node.append(node)
    model.graph.output.add(name="turned")


def _change_shape(model: onnx.ModelProto, _donor: onnx.ModelProto, random: Random) -> None:
    """Give an input or output a shape or an element type that nothing expects."""
    values = [*model.graph.input, *model.graph.output]
    if not values:
        return
    tensor = random.choice(values).type.tensor_type
    if random.random() < 0.3:
        tensor.elem_type = random.choice((*range(-1, 30), 2**31 - 1))
        return
    if random.random() < 0.5:
        del tensor.shape.dim[:]
    for _ in range(random.choice((0, 1, 1, 4))):
        tensor.shape.dim.add(dim_value=random.choice(INTEGERS))


def _value(model: Any, field: FieldDescriptor, random: Random) -> Any:
    """Return a value that the field's type can hold."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return random.choice([each.number for each in field.enum_type.values])
    if kind == FieldDescriptor.CPPTYPE_INT32:
        return random.choice([number for number in INTEGERS if abs(number) < 2**31])
    if kind == FieldDescriptor.CPPTYPE_UINT64:
        return random.choice([number % 2**64 for number in INTEGERS])
    if kind == FieldDescriptor.CPPTYPE_INT64:
        return random.choice((*INTEGERS, -(2**63)))
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return random.choice(_FLOATS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice((b"", b"\xff", struct.pack("<q", random.choice(INTEGERS)), bytes(40)))
    return _name(model, random)


def _name(model: onnx.ModelProto, random: Random) -> str:
    """Return one of the model's names, or an odd one."""
    known = [str(name) for node in model.graph.node for name in (*node.input, *node.output)]
    return random.choice(known if known and random.random() < 0.8 else NAMES)


def _any_message(model: onnx.ModelProto, random: Random) -> Any:
    """Return a message: first a type, so that the rare ones get their share."""
    by_type: dict[str, list[Message]] = defaultdict(list)
    for message in _messages(model):
        by_type[message.DESCRIPTOR.full_name].append(message)
    return random.choice(by_type[random.choice(sorted(by_type))])


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                yield from _messages(each)


def _copied(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


_MUTATIONS: tuple[Callable[[onnx.ModelProto, onnx.ModelProto, Random], None], ...] = (
    *[_change_field] * 6,
    *[_change_tensor] * 3,
    *[_rewire] * 2,
    _transplant,
    _nest,
    _prolong,
    _call_itself,
    _call_many,
    _make_sparse,
    _turn_long,
    _change_shape,
    _change_opset,
)
