"""Maps external weight files into memory, after checking where they lie.

The model file names their location and may be malicious: nothing outside the model's folder is
read, and nothing beyond the end of a file.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from weakref import WeakSet

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from intact.errors import ModelError
from intact.graph.files.regular import open_file
from intact.graph.files.tensors import change_tensors

_Identity = tuple[int, int, int, int]


class MappedFile(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A memory-mapped file, read-only.

    The content stays valid when the file is replaced or removed, but changes when the file is
    overwritten in place.

    Attributes:
        path: Path of the file when it was mapped.
        pages: Its content.
    """

    path: Path
    pages: mmap.mmap
    _identity: _Identity

    @staticmethod
    def open(path: Path) -> MappedFile:
        """Map a non-empty file.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is empty.
        """
        with open_file(path) as file:
            # The map outlives the handle, which is closed on return.
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            found = MappedFile(path.resolve(), pages, _identity(os.fstat(file.fileno())))
        _mapped.add(found)
        return found

    def is_still_there(self) -> bool:
        """Tell whether the path still has the same, unchanged file."""
        try:
            return _identity(self.path.stat()) == self._identity
        except OSError:
            return False


_mapped: WeakSet[MappedFile] = WeakSet()


def release_pages() -> None:
    """Let go of the pages of mapped weights: those that are read again come from the file.

    They would count as memory of this process as often as the file is mapped, by a session too.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for file in list(_mapped):
        file.pages.madvise(mmap.MADV_DONTNEED)


class MappedTensor(ir.Tensor[npt.NDArray[np.generic]]):
    """A tensor in a mapped file, with elements of 8 bits or more.

    Args:
        file: The mapped file.
        offset: Offset of the tensor's little-endian data, in bytes.
        dtype: Type of the elements.
        shape: Shape of the tensor.
        name: Name of the tensor.
    """

    __slots__ = ("file", "offset")

    def __init__(
        self, file: MappedFile, offset: int, dtype: ir.DataType, shape: ir.Shape, name: str | None
    ) -> None:
        sizes = shape.numpy()
        # ONNX stores little-endian whatever the machine is.
        kind = dtype.numpy().newbyteorder("<")
        count = int(np.prod(sizes, dtype=np.int64))
        array = np.frombuffer(file.pages, kind, count=count, offset=offset).reshape(sizes)
        super().__init__(array, dtype=dtype, shape=shape, name=name)
        self.file = file
        self.offset = offset

    def numpy(self) -> npt.NDArray[np.generic]:
        """Return the array, read-only; a copy if the data are not aligned in the file."""
        array: npt.NDArray[np.generic] = super().numpy()
        return array if array.flags.aligned else array.copy()


def tensor_bytes(tensor: ir.TensorProtocol) -> memoryview:
    """Return the little-endian bytes of a tensor as ONNX stores them, without a copy where
    possible.
    """
    array = tensor.numpy()
    if tensor.dtype.bitwidth < 8 or not array.dtype.isnative or not np.little_endian:
        return memoryview(tensor.tobytes())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _identity(found: os.stat_result) -> _Identity:
    # Device and inode tell of replacing, size and time of overwriting in place.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


_NUMBERS = ("offset", "length")


def refuse_bad_place(tensor: onnx.TensorProto, folder: Path | None, where: str) -> None:
    """Check where a tensor says that its external data are, without opening anything.

    Args:
        tensor: The tensor, of whatever part of the model.
        folder: The model's folder; None for a model that is not of a file.
        where: Name of the model for messages.

    Raises:
        ModelError: Offset or length is no number, or the file is outside the model's folder, or is
            no file; the message names the tensor.
    """
    for entry in tensor.external_data:
        # `int` alone would also take signs, spaces, underscores and digits of other scripts.
        if entry.key in _NUMBERS and not (entry.value.isascii() and entry.value.isdecimal()):
            raise ModelError(
                f"{where}: external data of tensor {tensor.name!r} has {entry.key} {entry.value!r}",
                remedy="export the model again",
            )
    for entry in tensor.external_data:
        if entry.key == "location" and tensor.data_location == onnx.TensorProto.EXTERNAL:
            what = f"{where}: external data {entry.value!r} of tensor {tensor.name!r}"
            _place(entry.value, folder, what)


def _place(location: str, folder: Path | None, what: str) -> Path:
    """Return the path of a file that a model names.

    Raises:
        ModelError: It leads out of the folder, by its text or by links, or to no regular file.
    """
    # By the rules of both systems: what is relative to one may be absolute to the other.
    kinds = (PurePosixPath(location), PureWindowsPath(location))
    try:
        root = None if folder is None else folder.resolve()
        # Resolved, because a link inside the folder may lead out of it.
        path = Path(location) if root is None else (root / location).resolve()
        is_other = root is not None and path.exists() and not path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, a loop of links
        raise ModelError(f"{what} is not a path: {error}") from error
    if any(each.is_absolute() or each.drive or ".." in each.parts for each in kinds) or (
        root is not None and not path.is_relative_to(root)
    ):
        raise ModelError(f"{what} is outside the model's folder", remedy="move it beside the model")
    if is_other:
        raise ModelError(
            f"{what} is a folder, a pipe or a device",
            remedy="put a file with the weights in its place",
        )
    return path


def read_tensor(tensor: onnx.TensorProto, folder: Path | None, where: str) -> npt.NDArray[Any]:
    """Return the values of a tensor, which may be in an external file.

    Raises:
        ModelError: See `map_external`.
        ValueError, TypeError: Data do not fit type and shape.
    """
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    found = _map_data(ir.serde.deserialize_tensor(tensor), {}, folder, where)
    return np.array(found.numpy())


def map_external(model: ir.Model, folder: Path | None, where: str) -> None:
    """Map the external data of a model, in place.

    Args:
        model: The model.
        folder: The model's folder; None to use the folder of each tensor.
        where: Name of the model for messages.

    Raises:
        ModelError: A file is missing, too short, unusable or outside the model's folder.
    """
    files: dict[Path, MappedFile] = {}
    change_tensors(model, lambda tensor: _map_data(tensor, files, folder, where))


def _map_data(
    tensor: ir.TensorProtocol, files: dict[Path, MappedFile], folder: Path | None, where: str
) -> ir.TensorProtocol:
    """Map the data of an external tensor; return another as it is."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    if folder is None and not tensor.base_dir:
        raise ModelError(
            f"{where}: the weights of tensor {tensor.name!r} are in an external file",
            remedy="load the model by its path",
        )
    path = _check_place(tensor, folder or Path(tensor.base_dir), where)
    try:
        # A tensor without elements needs no file, and an empty file cannot be mapped.
        if path not in files and tensor.size:
            files[path] = MappedFile.open(path)
        return _read(tensor, files[path]) if tensor.size else _empty(tensor)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{where}: external data {str(tensor.location)!r} cannot be read: {error}"
        ) from error


def _read(tensor: ir.ExternalTensor, file: MappedFile) -> ir.TensorProtocol:
    offset = tensor.offset or 0
    if tensor.dtype.bitwidth >= 8:
        return MappedTensor(file, offset, tensor.dtype, tensor.shape, tensor.name)
    # NumPy has no type of fewer bits: onnx-ir unpacks these from a copy.
    packed = onnx.TensorProto(
        name=tensor.name,
        data_type=int(tensor.dtype),
        dims=tensor.shape.numpy(),
        raw_data=file.pages[offset : offset + tensor.nbytes],
    )
    return ir.TensorProtoTensor(packed)


def _empty(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    array = np.zeros(tensor.shape.numpy(), tensor.dtype.numpy())
    return ir.Tensor(array, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)


def _check_place(tensor: ir.ExternalTensor, folder: Path, where: str) -> Path:
    """Return the path of a tensor's file, after checking path, offset and length."""
    what = f"{where}: external data {str(tensor.location)!r} of tensor {tensor.name!r}"
    path = _place(str(tensor.location), folder, what)
    if not path.is_file():
        raise ModelError(f"{what} does not exist", remedy="copy it beside the model")
    sizes = tensor.shape.numpy()
    if tensor.dtype is ir.DataType.STRING or any(size < 0 for size in sizes):
        raise ModelError(f"{what} has type {tensor.dtype.name} and shape {list(sizes)}")
    offset, present = tensor.offset or 0, path.stat().st_size
    # A length is optional in the file; where it is there it may only be larger than needed.
    length = tensor.nbytes if tensor.length is None else tensor.length
    if offset < 0 or length < tensor.nbytes:
        raise ModelError(
            f"{what} has offset {offset} and length {length}, {tensor.nbytes} bytes are needed",
            remedy="export the model again",
        )
    if present < offset + length:
        raise ModelError(f"{what} is too short: {present} bytes, {offset + length} are needed")
    return path
