"""Single nodes and small targets for these tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.targets import Target, load_target

WAY = '{ kind = "float_once" }'
MINIMAL = """
format = 2
name = "mine"
[activation]
dtype = "uint8"
symmetric = false
[weight]
dtype = "int8"
symmetric = true
[arithmetic]
requantize = { kind = "float_once" }
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def target(folder: Path, extra: str = "", *, body: str = MINIMAL) -> Target:
    """The minimal target with more tables added at the end."""
    return load_target(write(folder, body + extra))


def value(name: str, shape: Sequence[int | str | None] | None) -> ir.Value:
    known = None if shape is None else ir.Shape(shape)
    return ir.Value(name=name, shape=known, type=ir.TensorType(ir.DataType.FLOAT))


def constant(name: str, shape: list[int]) -> ir.Value:
    return ir.Value(
        name=name,
        shape=ir.Shape(shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(np.zeros(shape, np.float32), name=name),
    )


def node(
    op_type: str,
    *inputs: ir.Value | None,
    consumers: int = 1,
    output: bool = False,
    opset: int = 17,
    domain: str = "",
    **attributes: Any,
) -> ir.Node:
    """A node in a graph of its own, its first output read by ``consumers`` Relus."""
    made = ir.node(op_type, inputs, attributes, domain=domain)
    made.outputs[0].name = "y"
    readers = [ir.node("Relu", made.outputs) for _ in range(consumers)]
    constants = [x for x in inputs if x is not None and x.const_value is not None]
    ir.Graph(
        [x for x in inputs if x is not None and x.const_value is None],
        made.outputs if output else [reader.outputs[0] for reader in readers],
        nodes=[made, *readers],
        initializers=constants,
        opset_imports={"": opset},
    )
    return made


def conv(
    kernel: tuple[int, ...] = (3, 3), *, channels: int = 4, group: int | None = None, **rest: Any
) -> ir.Node:
    per_group = channels // (group or 1)
    if group is not None:
        rest["group"] = group
    data = value("x", [1, channels, *[8 for _ in kernel]])
    return node("Conv", data, constant("w", [channels, per_group, *kernel]), **rest)
