"""A Relax function as TVMScript: one operation a line, arrays as parameters behind the inputs."""

from __future__ import annotations

import keyword
import re

import numpy as np
import numpy.typing as npt

from intact.program.realize import Value

_TAKEN = ("R", "I", "T", "Module", "main")
_STEM = re.compile(r"\W+", re.ASCII)


class Script:
    """Lines so far, and what the graph's values are called in them.

    Attributes:
        lines: Of the dataflow block.
        arrays: Parameters by their name.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.arrays: dict[str, npt.NDArray[np.generic]] = {}
        self._names: dict[str, str] = {}
        self._taken = {*keyword.kwlist, *keyword.softkwlist, *_TAKEN}

    def input(self, value: Value) -> str:
        """Return the declaration of an input."""
        return f"{self._name(value)}: {tensor_text(value.shape, value.dtype)}"

    def use(self, value: Value) -> str:
        """Return an expression for a value: its name, or a number."""
        if value.data is None:
            return self._names[value.name]
        if value.data.ndim == 0:
            return number_text(value.data)
        return self.array(value.data, value.name)

    def array(self, data: npt.NDArray[np.generic], name: str) -> str:
        """Return the name of a parameter that holds an array; one for each name."""
        if name not in self._names:
            self._names[name] = self._unique(name)
            self.arrays[self._names[name]] = np.ascontiguousarray(data)
        return self._names[name]

    def let(self, value: Value, expression: str) -> None:
        """Write the line that makes a value."""
        self.lines.append(f"{self._name(value)} = {expression}")

    def _name(self, value: Value) -> str:
        self._names[value.name] = self._unique(value.name)
        return self._names[value.name]

    def _unique(self, name: str) -> str:
        stem = _STEM.sub("_", name).strip("_") or "value"
        stem = f"v_{stem}" if stem[0].isdigit() else stem
        found, number = stem, 2
        while found in self._taken:
            found, number = f"{stem}_{number}", number + 1
        self._taken.add(found)
        return found


def tensor_text(shape: tuple[int | None, ...], dtype: npt.DTypeLike) -> str:
    """Return the type of a tensor.

    >>> tensor_text((1, 3), np.int8)
    'R.Tensor((1, 3), "int8")'
    """
    lengths = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    return f'R.Tensor(({lengths}), "{np.dtype(dtype)}")'


def number_text(array: npt.NDArray[np.generic]) -> str:
    """Return a number in its type; a float32 reads back to the bit.

    >>> number_text(np.asarray(-3, np.int64))
    'R.const(-3, "int64")'
    """
    return f'R.const({array.item()!r}, "{array.dtype}")'


def text_of(numbers: tuple[int, ...] | list[int]) -> str:
    """Return a list of integers."""
    return f"[{', '.join(str(int(number)) for number in numbers)}]"
