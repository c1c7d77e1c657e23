"""Mutations of ``.tflite`` files: of the bytes, and of what every field of the schema may hold."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.fuzz.mutate.proto import NAMES
from tests.fuzz.mutate.raw import INTEGERS, mutate_bytes

_FLOATS = (0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan"), 0.5)
_SMALL = tuple(number for number in INTEGERS if abs(number) < 2**31)


def mutate_flatbuffer(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the file with some mutations; see `mutate_bytes` for the arguments."""
    chance = random.random()
    if chance < 0.25:
        return mutate_bytes(data, other, random)
    if chance < 0.5:
        for _ in range(random.choice((1, 1, 2, 5))):
            data = _overwrite(data, random)
        return data
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    donor = schema.ModelT.InitFromPackedBuf(other, 0)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        random.choice(_MUTATIONS)(model, donor, random)
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(model.Pack(builder), b"TFL3")
    except Exception:  # a value that its field cannot hold
        return _overwrite(data, random)
    return bytes(builder.Output())


def _overwrite(data: bytes, random: Random) -> bytes:
    """Put a number where an offset, a length or a list of fields may be."""
    if len(data) < 16:
        return data
    width = random.choice((1, 2, 4, 4, 4, 8))
    at = random.randrange(0, len(data) - 8) // width * width
    number = random.choice((*INTEGERS, len(data), len(data) - at, at, random.randrange(len(data))))
    packed = struct.pack("<q", number)[:width]
    return data[:at] + packed + data[at + width :]


def _change_field(model: Any, _donor: Any, random: Random) -> None:
    """Give one field of one table another value, or none."""
    table = _any_table(model, random)
    name = random.choice(sorted(vars(table)) or [""])
    if not name:
        return
    value = getattr(table, name)
    if isinstance(value, (list, np.ndarray)):
        setattr(table, name, _changed_list(list(value), random))
    elif isinstance(value, bytes | str):
        setattr(table, name, random.choice(NAMES))
    elif isinstance(value, bool | int | np.integer):
        setattr(table, name, random.choice((*_SMALL[:6], *range(40), random.choice(_SMALL))))
    elif isinstance(value, float):
        setattr(table, name, random.choice(_FLOATS))
    elif random.random() < 0.3:
        setattr(table, name, None)


def _changed_list(items: list[Any], random: Random) -> list[Any]:
    at = random.randrange(len(items)) if items else 0
    action = random.choice(("drop", "repeat", "reverse", "empty", "change", "change", "change"))
    if action == "drop":
        del items[at : at + 1]
    elif action == "repeat":
        items[at:at] = items[at : at + random.randint(1, 3)] * random.choice((1, 1, 30))
    elif action == "reverse":
        items.reverse()
    elif action == "empty":
        items.clear()
    elif items and isinstance(items[at], float | np.floating):
        items[at] = random.choice(_FLOATS)
    elif items and isinstance(items[at], int | np.integer):
        items[at] = random.choice((*_SMALL, *range(8)))
    return items


def _rewire(model: Any, _donor: Any, random: Random) -> None:
    """Let operators read and write any tensor: cycles, itself, twice written."""
    graph = random.choice(model.subgraphs or [None])
    if graph is None or not graph.operators or not graph.tensors:
        return
    operator = random.choice(graph.operators)
    name = random.choice(("inputs", "outputs"))
    numbers = list(getattr(operator, name) if getattr(operator, name) is not None else ())
    numbers.insert(random.randint(0, len(numbers)), random.randrange(-2, len(graph.tensors) + 2))
    setattr(operator, name, numbers)
    if random.random() < 0.5:
        operator.opcodeIndex = random.randrange(len(model.operatorCodes or ()) + 1)


def _change_tensor(model: Any, _donor: Any, random: Random) -> None:
    """Let a tensor's shape, type, data and scales disagree."""
    graph = random.choice(model.subgraphs or [None])
    if graph is None or not graph.tensors:
        return
    tensor = random.choice(graph.tensors)
    action = random.choice(("shape", "type", "buffer", "scale", "zero", "axis", "dims"))
    quantization = tensor.quantization or schema.QuantizationParametersT()
    if action == "shape" and tensor.shape is not None and len(tensor.shape):
        shape = list(tensor.shape)
        shape[random.randrange(len(shape))] = random.choice((*_SMALL, *range(12)))
        tensor.shape = shape
    elif action == "dims":
        tensor.shape = random.choices(range(1, 5), k=random.choice((0, 1, 2, 3, 5, 9)))
    elif action == "type":
        tensor.type = random.randrange(-1, 25)
    elif action == "buffer":
        tensor.buffer = random.randrange(len(model.buffers or ()) + 1)
    elif action == "scale":
        quantization.scale = random.choices(_FLOATS, k=random.choice((0, 1, 1, 4)))
        tensor.quantization = quantization
    elif action == "zero":
        quantization.zeroPoint = random.choices((*INTEGERS, -5), k=random.choice((0, 1, 4)))
    elif quantization is not None:
        quantization.quantizedDimension = random.choice((*range(-2, 6), 2**31 - 1))


def _change_buffer(model: Any, _donor: Any, random: Random) -> None:
    """Change stored data: weights, but axes, shapes and indices too."""
    buffer = random.choice(model.buffers or [schema.BufferT()])
    if buffer.data is None or not len(buffer.data):
        buffer.offset, buffer.size = random.choice((0, 1, 2, 64, 2**40)), random.choice((0, 9, 99))
        return
    data = bytes(bytearray(buffer.data))
    changed = mutate_bytes(data, data, random)
    if random.random() < 0.5 and len(data) >= 4:
        at = random.randrange(len(data) // 4) * 4
        changed = data[:at] + struct.pack("<i", random.choice(_SMALL)) + data[at + 4 :]
    buffer.data = np.frombuffer(changed, np.uint8)


def _transplant(model: Any, donor: Any, random: Random) -> None:
    """Put a table of the other file in the place of one of the same kind."""
    goal = _any_table(model, random)
    same = [each for each in _tables(donor) if type(each) is type(goal)]
    if same and goal is not model:
        vars(goal).update(vars(random.choice(same)))


def _any_table(model: Any, random: Random) -> Any:
    """Return a table: first a kind, so that the rare ones get their share."""
    kinds: dict[str, list[Any]] = {}
    for table in _tables(model):
        kinds.setdefault(type(table).__name__, []).append(table)
    return random.choice(kinds[random.choice(sorted(kinds))])


def _tables(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _tables(item)
    elif type(value).__module__ == schema.__name__:
        yield value
        for child in vars(value).values():
            yield from _tables(child)


_MUTATIONS: tuple[Callable[[Any, Any, Random], None], ...] = (
    *[_change_field] * 5,
    *[_change_tensor] * 4,
    *[_change_buffer] * 2,
    *[_rewire] * 2,
    _transplant,
)
