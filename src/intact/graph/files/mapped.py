"""Tensors whose numbers stay in a file: memory-mapped, read when they are looked at."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

_Identity = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file in read-only memory pages: they cost no memory of the process's own.

    The pages stay as they are when the file is replaced or removed; a file that is overwritten in
    place changes under the model, as it does for every program that maps it.

    Attributes:
        path: Where the file was when it was mapped.
        pages: Its content.
    """

    path: Path
    pages: mmap.mmap
    _identity: _Identity

    @staticmethod
    def open(path: Path) -> MappedFile:
        """Map a file that is not empty.

        Raises:
            OSError: It cannot be read.
            ValueError: It is empty.
        """
        with path.open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return MappedFile(path.resolve(), pages, _identity(os.fstat(file.fileno())))

    def is_still_there(self) -> bool:
        """Whether the path leads to the same, unchanged file."""
        try:
            return _identity(self.path.stat()) == self._identity
        except OSError:
            return False


class MappedTensor(ir.Tensor[npt.NDArray[np.generic]]):
    """A tensor in a mapped file, of a type whose elements take whole bytes.

    Args:
        file: The mapped file.
        offset: Where the tensor's little-endian numbers begin, in bytes.
        dtype: Type of the elements.
        shape: Shape of the tensor.
        name: Name of the tensor.
    """

    __slots__ = ("file", "offset")

    def __init__(
        self, file: MappedFile, offset: int, dtype: ir.DataType, shape: ir.Shape, name: str | None
    ) -> None:
        sizes = shape.numpy()
        kind = dtype.numpy().newbyteorder("<")
        count = int(np.prod(sizes, dtype=np.int64))
        array = np.frombuffer(file.pages, kind, count=count, offset=offset).reshape(sizes)
        super().__init__(array, dtype=dtype, shape=shape, name=name)
        self.file = file
        self.offset = offset

    def numpy(self) -> npt.NDArray[np.generic]:
        """Return the numbers, read-only; a copy where the file has them at an odd place."""
        array: npt.NDArray[np.generic] = super().numpy()
        return array if array.flags.aligned else array.copy()


def tensor_bytes(tensor: ir.TensorProtocol) -> memoryview:
    """Return a tensor's little-endian bytes as ONNX stores them, without a copy where possible."""
    array = tensor.numpy()
    if tensor.dtype.bitwidth < 8 or not array.dtype.isnative or not np.little_endian:
        return memoryview(tensor.tobytes())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
