"""Keeps activations that wait for their readers: in memory, beyond a limit on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]
T = TypeVar("T")


class Shelf:
    """The memory for activations, and the folder for those beyond it.

    Args:
        most: Bytes in memory; None for no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._held = 0
        self._files = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether there is a limit."""
        return self.most is not None

    def put(self, array: Array) -> Array | Path:
        """Take an array: it stays as it is, or becomes a file where there is no room."""
        if self.most is None or self._held + array.nbytes <= self.most:
            self._held += array.nbytes
            return array
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="intact-walk-")
        self._files += 1
        path = Path(self._folder.name) / f"{self._files}.npy"
        np.save(path, array, allow_pickle=False)
        return path

    def get(self, kept: Array | Path) -> Array:
        """Return an array."""
        if isinstance(kept, Path):
            found: Array = np.load(kept, allow_pickle=False)
            return found
        return kept

    def drop(self, kept: Array | Path) -> None:
        """Forget an array."""
        if isinstance(kept, Path):
            kept.unlink()
        else:
            self._held -= kept.nbytes


class KeptActivations(MutableMapping[ir.Value, Array]):
    """The activations of one batch, on a shelf."""

    def __init__(self, shelf: Shelf, arrays: dict[ir.Value, Array]) -> None:
        self._shelf = shelf
        self._kept: dict[ir.Value, Array | Path] = {}
        self.update(arrays)

    def __getitem__(self, value: ir.Value) -> Array:
        """Return an activation, read anew where it is on disk."""
        return self._shelf.get(self._kept[value])

    def __setitem__(self, value: ir.Value, array: Array) -> None:
        """Keep an activation."""
        # Forgotten first, or the shelf would count both and its file would stay.
        if value in self._kept:
            del self[value]
        self._kept[value] = self._shelf.put(array)

    def __delitem__(self, value: ir.Value) -> None:
        """Forget an activation."""
        self._shelf.drop(self._kept.pop(value))

    def __contains__(self, value: object) -> bool:
        """Tell whether it is kept, without reading it."""
        return value in self._kept

    def __iter__(self) -> Iterator[ir.Value]:
        """Yield what is kept."""
        return iter(self._kept)

    def __len__(self) -> int:
        """Count what is kept."""
        return len(self._kept)


class LazySequence(Sequence[T], Generic[T]):
    """Items that are made each time they are asked for, so that one at a time takes memory.

    Args:
        make: From a number to an item.
        numbers: Those of the items.
    """

    def __init__(self, make: Callable[[int], T], numbers: Sequence[int]) -> None:
        self._make, self._numbers = make, numbers

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> LazySequence[T]: ...

    def __getitem__(self, at: int | slice) -> T | LazySequence[T]:
        """Make an item, or choose some."""
        if isinstance(at, slice):
            return LazySequence(self._make, self._numbers[at])
        return self._make(self._numbers[at])

    def __len__(self) -> int:
        """Count them."""
        return len(self._numbers)
