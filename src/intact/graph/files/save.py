"""Writes ONNX models: weights are streamed, and files appear only when complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from intact._files import appearing
from intact.errors import OutputError
from intact.graph.files.external import MappedTensor, tensor_bytes
from intact.graph.files.protobuf import frame_weights
from intact.graph.files.tensors import weight_bytes
from intact.graph.metadata import metadata_of, set_metadata

LARGEST_FILE = 2**31 - 2**20
"""Size of all weights in bytes above which they are external (protobuf is limited to 2 GiB)."""

STREAM_FROM = 1 << 26
"""Size of all weights in bytes above which they are streamed, not serialized in memory."""

_MOST_HELD = 1 << 28
"""Size of all weights in no file above which a file is written for them."""
_LARGE = 1 << 22
"""Size of one that is handed to the runtime as it is."""
_HELD = "in memory"
"""Where the runtime is told that they are."""
_EXTERNAL_FROM = 1024  # bytes: smaller tensors stay in the .onnx, as shapes must
_ALIGNMENT = 4096  # external weights start at page boundaries
_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


GIVEN_BYTES_KEY = "intact.given_bytes"
"""Metadata of a normalized model: the bytes of the model that was given."""


def message_of(model: ir.Model) -> bytes | None:
    """Serialize a model as `save_model` writes it; None where it is too large to be in memory."""
    if weight_bytes(model) > STREAM_FROM:
        return None
    return _serialize(model)


def file_bytes(model: ir.Model) -> int:
    """Count the bytes that `save_model` writes, with no more of the model in memory than it holds.

    Weights in a file of their own count as if they were in the model's.
    """
    if weight_bytes(model) <= STREAM_FROM:
        return len(_serialize(model))
    frames, weights = _frame(model)
    if not weights:  # the large weights are in bodies
        return len(_serialize(model))
    return sum(map(len, frames)) + sum(tensor.nbytes for tensor in weights)


def note_given_bytes(model: ir.Model) -> None:
    """Note in a model's metadata how large it is, before passes change that.

    Folding a Transpose makes a second constant of a tensor that others read too, and half floats
    become twice as wide: what is computed with is larger than what was given.
    """
    # A model that was normalized before keeps what it was at first.
    if GIVEN_BYTES_KEY not in model.metadata_props:
        set_metadata(model, GIVEN_BYTES_KEY, file_bytes(model))


def given_bytes(model: ir.Model) -> int:
    """Return the bytes of the model that was given; those of this one where that is not known.

    Raises:
        ModelError: The metadata of it is damaged.
    """
    return metadata_of(model, GIVEN_BYTES_KEY, _count, 0) or file_bytes(model)


def _count(noted: object) -> int:
    if type(noted) is not int or noted < 0:
        raise ValueError(f"{noted!r} is no size")
    return noted


def save_model(model: ir.Model, path: str | Path, *, beside: bool = False) -> None:
    """Write a model; above 2 GiB the weights go to ``<file name>.data`` in the same folder.

    Large weights are streamed, so that no second copy of the model is in memory. The files are
    replaced only when complete: after an error the old ones remain. Missing folders are created.

    Args:
        model: The model.
        path: The ``.onnx`` file.
        beside: Write the weights to their own file whatever their size.

    Raises:
        OutputError: The path cannot be written.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {str(path)!r}: it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        size = weight_bytes(model)
        if beside or size > LARGEST_FILE:
            _write_beside(model, path)
        elif size > STREAM_FROM:
            _write_inside(model, path)
        else:
            _write_message(model, path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


class InPlace(NamedTuple):
    """A model without its large weights.

    Attributes:
        message: The ``.onnx`` bytes.
        folder: Where the files of its weights are.
        held: Weights that are in no file, by name; the message takes them for external.
    """

    message: bytes
    folder: Path
    held: dict[str, np.ndarray]


def in_place(model: ir.Model) -> InPlace | None:
    """Serialize a model with references to the existing files of its large weights.

    Returns:
        The model without them; None if too many weights are in memory, in several folders, or in
        files that were replaced.
    """
    rest, weights = detach_weights(model, larger_than=_EXTERNAL_FROM)
    mapped = [tensor for tensor in weights if isinstance(tensor, MappedTensor)]
    folders = {tensor.file.path.parent for tensor in mapped}
    inside = sum(tensor.nbytes for tensor in weights) - sum(tensor.nbytes for tensor in mapped)
    # A runtime is given one folder, in which it looks for all files.
    if len(folders) != 1 or inside > _MOST_HELD:
        return None
    # A reader opens the path anew and would read what has replaced the mapped file.
    if not all(file.is_still_there() for file in {tensor.file for tensor in mapped}):
        return None
    proto = ir.to_proto(rest)
    held: dict[str, np.ndarray] = {}
    for tensor in weights:
        if isinstance(tensor, MappedTensor):
            header = external_header(tensor, tensor.file.path.name, tensor.offset)
        elif tensor.nbytes > _LARGE and tensor.dtype is ir.DataType.FLOAT:
            header = external_header(tensor, _HELD, 0)
            held[str(tensor.name)] = np.ascontiguousarray(tensor.numpy())
        else:
            header = ir.to_proto(tensor)
        proto.graph.initializer.append(header)
    return InPlace(proto.SerializeToString(), folders.pop(), held)


def weights_as_inputs(
    model: ir.Model, *, larger_than: int = _EXTERNAL_FROM
) -> tuple[onnx.ModelProto, list[ir.Value]]:
    """Replace large initializers by inputs, for libraries that need only types and shapes.

    Returns:
        The model, and the initializers that were replaced.
    """
    rest, _ = detach_weights(model, larger_than=larger_than)
    kept, ports = rest.graph.initializers, {value.name for value in rest.graph.inputs}
    absent = [value for name, value in model.graph.initializers.items() if name not in kept]
    proto = ir.to_proto(rest)
    for value in absent:
        tensor = value.const_value
        if tensor is not None and value.name not in ports:
            shape = list(tensor.shape.numpy())
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(str(value.name), int(tensor.dtype), shape)
            )
    return proto, absent


def detach_weights(
    model: ir.Model, *, larger_than: int
) -> tuple[ir.Model, list[ir.TensorProtocol]]:
    """Copy a model without its large initializers; return the copy and these initializers."""
    detached = model.clone()
    weights = []
    for name, value in tuple(detached.graph.initializers.items()):
        tensor = value.const_value
        is_text = tensor is not None and tensor.dtype is ir.DataType.STRING  # it has no width
        if tensor is None or is_text or tensor.nbytes <= larger_than:
            continue
        weights.append(tensor)
        del detached.graph.initializers[name]
    return detached, weights


def _write_message(model: ir.Model, path: Path) -> None:
    with appearing(path) as (file,):
        file.write(_serialize(model))


def _serialize(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def _write_inside(model: ir.Model, path: Path) -> None:
    frames, weights = _frame(model)
    if not weights:  # the large weights are in bodies
        _write_message(model, path)
        return
    with appearing(path) as (file,):
        for frame, tensor in zip(frames, weights, strict=True):
            file.write(frame)
            _write_tensor(file, tensor)


def _frame(model: ir.Model) -> tuple[list[bytes], list[ir.TensorProtocol]]:
    """Return what stands before each large weight of a file, and those weights."""
    rest, weights = detach_weights(model, larger_than=_EXTERNAL_FROM)
    headers = [(_header(tensor), tensor.nbytes) for tensor in weights]
    return (frame_weights(ir.to_proto(rest), headers) if weights else []), weights


def _write_beside(model: ir.Model, path: Path) -> None:
    rest, weights = detach_weights(model, larger_than=_EXTERNAL_FROM)
    proto = ir.to_proto(rest)
    data = path.with_name(f"{path.name}.data")
    # In this order: the model never appears before its weights.
    with appearing(data, path) as (data_file, file):
        for tensor in weights:
            offset = -(-data_file.tell() // _ALIGNMENT) * _ALIGNMENT
            data_file.seek(offset)
            _write_tensor(data_file, tensor)
            proto.graph.initializer.append(external_header(tensor, data.name, offset))
        file.write(proto.SerializeToString(deterministic=True))


def external_header(tensor: ir.TensorProtocol, location: str, offset: int) -> onnx.TensorProto:
    """Make the initializer of a tensor with external data."""
    proto = _header(tensor)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", tensor.nbytes)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def _header(tensor: ir.TensorProtocol) -> onnx.TensorProto:
    return onnx.TensorProto(
        name=tensor.name, data_type=int(tensor.dtype), dims=tensor.shape.numpy()
    )


def _write_tensor(file: BinaryIO, tensor: ir.TensorProtocol) -> None:
    """Write a tensor's bytes; blocks of zeros become holes if the file system supports them."""
    content = tensor_bytes(tensor)
    for start in range(0, len(content), _BLOCK):
        block = content[start : start + _BLOCK]
        if block == _ZEROS[: len(block)]:
            # A hole at the end counts too: `appearing` extends the file to here.
            file.seek(len(block), os.SEEK_CUR)
        else:
            file.write(block)
