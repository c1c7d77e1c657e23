"""The tensors of a file on a canvas: what they hold, constants made of them, and their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from intact.formats.tflite.reading.canvas import Array, Canvas, Operand
from intact.formats.tflite.reading.file import FileTensor, TfliteFile
from intact.formats.tflite.reading.layouts import Layout, arranged
from intact.formats.tflite.reading.parameters import (
    Parameters,
    Unreadable,
    constant_of,
    parameters_of,
)
from intact.formats.tflite.reading.schema import Element

_COPIES = 4
"""Elements that are made for each byte of the file, at most: tensors may share their data."""
_SLACK = 1 << 20
_MOST_INTEGERS = 1 << 16
_FLOATS_AND_INDICES = frozenset({Element.FLOAT32, Element.FLOAT16, Element.INT32, Element.INT64})


class Tensors(Canvas):
    """A canvas that knows the tensors of a file.

    Args:
        file: What is read.
        alias: Tensors that are one with another, whose name they share.

    Attributes:
        known: Integers that follow from shapes, and constants that were dequantised, by number.
    """

    def __init__(self, file: TfliteFile, alias: Mapping[int, int]) -> None:
        super().__init__()
        self.file, self.alias = file, alias
        self.known: dict[int, Array] = {}
        self._constants: dict[tuple[object, ...], Operand] = {}
        self._elements = _COPIES * file.size + _SLACK
        self._names = self._named()
        self._unclaimed = set(self._names)

    def tensor(self, index: int) -> FileTensor:
        """Return a tensor that can be used.

        Raises:
            Unreadable: It is absent, or of a shape or kind that is not read.
        """
        if index < 0:
            raise Unreadable("an input that it needs is absent")
        tensor = self.file.tensors[index]
        if tensor.odd:
            raise Unreadable(f"tensor {tensor.name!r}: {tensor.odd}")
        return tensor

    def is_constant(self, index: int) -> bool:
        """Tell whether a tensor is stored in the file, or follows from shapes."""
        return index in self.known or self.tensor(index).data is not None

    def array(self, index: int) -> Array:
        """Return the numbers or codes of a constant.

        Raises:
            Unreadable: It is computed, or its data does not fit its shape.
        """
        if not self.is_constant(index):
            raise Unreadable(f"its input {self.tensor(index).name!r} is computed")
        return self.known[index] if index in self.known else constant_of(self.tensor(index))

    def list_of(self, index: int) -> tuple[int, ...]:
        """Return a constant list of integers: axes, sizes, pads.

        Raises:
            Unreadable: It is computed, or no list of integers.
        """
        array = self.array(index)
        if array.dtype.kind != "i" or array.size > _MOST_INTEGERS:
            raise Unreadable(f"its input {self.tensor(index).name!r} is no list of integers")
        self.charge(array.size)
        return tuple(int(number) for number in array.reshape(-1))

    def charge(self, elements: int) -> None:
        """Count elements of constants that are made.

        Raises:
            Unreadable: They are more than the file can mean.
        """
        self._elements -= elements
        if self._elements < 0:
            raise Unreadable("its constants share their data too often")

    def parameters(self, index: int) -> Parameters | None:
        """Return how an operand of activations is quantised; None for floats and indices.

        Raises:
            Unreadable: It is of a type that activations do not have here.
        """
        tensor = self.tensor(index)
        if tensor.element in _FLOATS_AND_INDICES:
            return None
        if tensor.element not in (Element.INT8, Element.UINT8):
            raise Unreadable(f"tensor {tensor.name!r} is {tensor.element.name.lower()}")
        found = parameters_of(tensor)
        if found is None:
            raise Unreadable(f"tensor {tensor.name!r} has integers without a scale")
        return found

    def constant(
        self, index: int, layout: Layout = Layout.FILE, rank: int | None = None
    ) -> Operand:
        """Return a stored operand of activations, with ones before its lengths up to a rank."""
        tensor, parameters = self.tensor(index), self.parameters(index)
        wanted = max(tensor.rank, rank or 0)
        ahead = (1,) * (wanted - tensor.rank)
        order = arranged(range(wanted), layout)
        if parameters is not None and parameters.axis is not None:
            parameters = parameters.along(order.index(parameters.axis + len(ahead)))
        return self.rearranged(
            index,
            (order, "operand"),
            lambda array: array.reshape((*ahead, *array.shape)).transpose(order),
            parameters,
        )

    def rearranged(
        self,
        index: int,
        form: tuple[object, ...],
        arrange: Callable[[Array], Array],
        parameters: Parameters | None,
    ) -> Operand:
        """Return a constant whose array was rearranged; those who ask for one form share it.

        Raises:
            Unreadable: See `charge`.
        """
        if (index, form) not in self._constants:
            array = np.asarray(arrange(self.array(index)), order="C")
            self.charge(array.size)
            numbers = array if parameters is None else parameters.numbers(array)
            if numbers.dtype == np.float16:
                numbers = numbers.astype(np.float32)
            value = self.initializer(self.claim(index), numbers)
            codes = None if parameters is None else array
            operand = Operand(value, array.shape, parameters, codes)
            self._constants[index, form] = operand
        return self._constants[index, form]

    def claim(self, index: int) -> str:
        """Return the name of a tensor, which is free once; later ones get a number."""
        if index in self._unclaimed:
            self._unclaimed.discard(index)
            return self._names[index]
        return self.fresh(self._names[index])

    def _named(self) -> dict[int, str]:
        """Return a name for each tensor: ports first, the second of two equal ones a number.

        Ports are called as in the file's signature, where it has one.
        """
        file = self.file
        twin = {source: port for port, source in self.alias.items()}
        signed: dict[int, str] = {}
        for name, index in (*file.signature.inputs.items(), *file.signature.outputs.items()):
            signed.setdefault(index, name)
        names: dict[int, str] = {}
        for index in dict.fromkeys((*file.inputs, *file.outputs, *range(len(file.tensors)))):
            owner = self.alias.get(index, index)
            if owner not in names:
                port = twin.get(owner, owner)
                called = signed.get(port) or file.tensors[port].name
                names[owner] = self.fresh(called or f"tensor_{owner}")
        return names
