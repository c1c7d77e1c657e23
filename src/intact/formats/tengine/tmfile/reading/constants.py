"""Constants of the float graph: those of the file, and lists that operators of ONNX take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileTensor, TmFile
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.names import Names

_CODES = (Element.INT8, Element.UINT8, Element.INT32, Element.INT16)

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class Constants:
    """The constants of a graph that grows, and the names of all tensors.

    Args:
        file: What is read.

    Attributes:
        constants: The initializers.
        tensor_names: Those that are taken.
    """

    def __init__(self, file: TmFile) -> None:
        self.file = file
        self.constants: list[ir.Value] = []
        self.tensor_names = Names()
        self._called = [
            self.tensor_names.fresh(each.name or f"tensor_{number}")
            for number, each in enumerate(file.tensors)
        ]
        self._small: dict[tuple[object, ...], ir.Value] = {}
        self._stored: dict[int, ir.Value] = {}

    def tensor(self, index: int) -> FileTensor:
        """Return a tensor."""
        return self.file.tensors[index]

    def name(self, index: int) -> str:
        """Return what a tensor is called in the graph."""
        return self._called[index]

    def is_constant(self, index: int) -> bool:
        """Tell whether a tensor is a constant."""
        return self.tensor(index).data is not None

    def numbers(self, index: int) -> Array:
        """Return a constant as float32; of codes, what they stand for.

        Raises:
            Unsupported: It is no constant, or codes without scales.
        """
        tensor = self.tensor(index)
        if tensor.data is None:
            raise Unsupported(f"its input {self.name(index)!r} is no constant")
        if tensor.element not in _CODES:
            return np.asarray(tensor.data, np.float32)
        scales = tensor.quantization
        if scales is None:
            raise Unsupported(f"its constant {self.name(index)!r} has codes without scales")
        along = (-1, *(1,) * (len(tensor.shape) - 1)) if scales.scale.size > 1 else ()
        scale, zero_point = scales.scale.reshape(along), scales.zero_point.reshape(along)
        numbers = (tensor.data.astype(np.int64) - zero_point) * scale.astype(np.float64)
        return np.asarray(numbers, np.float32).reshape(tensor.shape)

    def constant(self, index: int, shape: Shape | None = None) -> ir.Value:
        """Return a constant of the file as an initializer, perhaps in another shape.

        Raises:
            Unsupported: It is no constant, or has not as many elements as the shape.
        """
        numbers = self.numbers(index)
        if shape is not None and numbers.size != math.prod(shape):
            raise Unsupported(
                f"its constant {self.name(index)!r} has {numbers.size} elements, not {list(shape)}"
            )
        if shape is None or shape == numbers.shape:
            if index not in self._stored:
                self._stored[index] = self.initializer(self.name(index), numbers)
            return self._stored[index]
        key = ("reshaped", index, shape)
        if key not in self._small:
            name = self.name(index)
            if index in self._stored:
                name = self.tensor_names.fresh(f"{name}/reshaped")
            value = self.initializer(name, numbers.reshape(shape))
            self._stored.setdefault(index, value)
            self._small[key] = value
        return self._small[key]

    # ---- small ones ------------------------------------------------------------------------

    def initializer(self, name: str, array: Array) -> ir.Value:
        """Add a constant under a name that nothing else has."""
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.constants.append(value)
        return value

    def integers(self, *numbers: int) -> ir.Value:
        """Return a constant list of int64, shared by all that ask for the same."""
        return self._shared(("sizes", numbers), np.array(numbers, np.int64))

    def floats(self, *numbers: float) -> ir.Value:
        """Return a constant list of float32, shared by all that ask for the same."""
        return self._shared(("numbers", numbers), np.array(numbers, np.float32))

    def number(self, number: float) -> ir.Value:
        """Return a constant float32 scalar, shared by all that ask for the same."""
        return self._shared(("number", number), np.array(number, np.float32))

    def _shared(self, key: tuple[str, object], array: Array) -> ir.Value:
        if key not in self._small:
            self._small[key] = self.initializer(self.tensor_names.fresh(key[0]), array)
        return self._small[key]
