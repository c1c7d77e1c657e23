"""A case: one node with its inputs, and how cases are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from intact.graph import OPS, OpKind

Array = npt.NDArray[Any]

_seeds = count()


@dataclass(frozen=True)
class Steer:
    """An argument that is a constant of the graph in most models, and computed in some."""

    array: Array


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        operator: Its type.
        inputs: By slot; None for one that is absent.
        attributes: As the opset has them.
        opset: Of the default domain.
        outputs: How many slots.
        rows: The first axis of the first input is a batch.
    """

    operator: str
    inputs: tuple[Array | Steer | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    outputs: int = 1
    rows: bool = False

    def __str__(self) -> str:
        words = ",".join(f"{name}={value}" for name, value in self.attributes.items())
        shapes = "".join(str(list(each.shape)) for each in self.arrays() if each is not None)
        return f"{self.operator}{self.opset}({words}){shapes}".replace(" ", "")

    def arrays(self) -> tuple[Array | None, ...]:
        """The inputs by slot."""
        return tuple(each.array if isinstance(each, Steer) else each for each in self.inputs)

    def is_exact(self) -> bool:
        """Whether elements are only moved, or are no floats."""
        spec = OPS.get(self.operator)
        is_mean = self.attributes.get("mode") in ("linear", "cubic", "bilinear")
        return spec is not None and spec.kind in (OpKind.MOVE, OpKind.JOIN) and not is_mean

    def model(self, *, fixed: bool = True) -> onnx.ModelProto:
        """The model of this node; what steers it is constant, or an input."""
        names = ["" if each is None else f"x{k}" for k, each in enumerate(self.inputs)]
        results = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.operator, names, results, name="node", **self.attributes)
        inputs, constants = [], []
        for name, each, array in zip(names, self.inputs, self.arrays(), strict=True):
            if array is None:
                continue
            if isinstance(each, Steer) and fixed:
                constants.append(numpy_helper.from_array(array, name))
                continue
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            shape = [
                None if name == "x0" and self.rows and k == 0 else n
                for k, n in enumerate(array.shape)
            ]
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
        ends = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph([node], "case", inputs, ends, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    """Distinct numbers between two bounds."""
    random = np.random.default_rng(next(_seeds))
    return random.uniform(low, high, shape).astype(np.float32)


def whole(*numbers: int | list[Any], kind: type = np.int64) -> Array:
    """A list of integers."""
    return np.array(numbers, kind)


def steer(*numbers: float, kind: type = np.int64) -> Steer:
    """A list of numbers that steers."""
    return Steer(np.array(numbers, kind))


def scalar(value: float, kind: type = np.float32) -> Steer:
    """A number that steers."""
    return Steer(np.array(value, kind))


def make_case(
    operator: str,
    *inputs: Array | Steer | None,
    opset: int = 18,
    outputs: int = 1,
    rows: bool = True,
    **attributes: Any,
) -> Case:
    return Case(operator, inputs, attributes, opset, outputs, rows)
