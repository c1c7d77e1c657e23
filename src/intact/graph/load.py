"""Reading and writing ONNX models, with one clear error for each kind of bad file."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from intact.errors import ModelError, OutputError

OLDEST_OPSET = 11
"""Before opset 11 Pad, Clip and others kept as attributes what the op table reads as inputs."""

LARGEST_FILE = 2**31 - 2**20
"""Bytes of weights above which they go to a file of their own (protobuf ends at 2 GiB)."""

_EXTERNAL_FROM = 1024  # bytes: smaller tensors stay in the .onnx, shapes must be readable there


def load_model(source: str | Path | onnx.ModelProto | ir.Model) -> ir.Model:
    """Read a model into memory, weights in external files included.

    Args:
        source: A path to an ``.onnx`` file, or a model that is already loaded. An `ir.Model` is
            cloned (tensors are shared), so that the caller's model never changes.

    Raises:
        ModelError: The file is missing, a folder, empty, truncated or not ONNX; the graph is
            empty or reads a tensor that nothing makes; the opset is older than 11; external data
            is missing, too short or outside the model's folder.
    """
    if isinstance(source, ir.Model):
        model, where, folder = source.clone(), "the model", None
    elif isinstance(source, onnx.ModelProto):
        _check_proto(source, "the model")
        model, where, folder = _deserialize(source, "the model"), "the model", None
    else:
        path = Path(source)
        where, folder = f"model {str(path)!r}", path.parent
        model = _deserialize(_read(path, where), where)
    _check_graph(model, where)
    _load_external(model, folder, where)
    own_tensors(model)
    return model


def save_model(model: ir.Model, path: str | Path) -> None:
    """Write a model; above 2 GiB the weights go beside it, to ``<file name>.data``.

    A file of its own appears complete or not at all. Missing folders are made.

    Raises:
        OutputError: The path cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {str(path)!r}: it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if sum(tensor.nbytes for tensor in _tensors(model)) > LARGEST_FILE:
            ir.save(
                model,
                path,
                external_data=f"{path.name}.data",
                size_threshold_bytes=_EXTERNAL_FROM,
            )
            return
        partial.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def own_tensors(model: ir.Model) -> None:
    """Give a model tensor objects of its own, over the same numbers.

    onnx-ir shares them between a model, its clones and the proto it was read from, and renaming
    a value renames its tensor: the source would change with the copy.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _own(value.const_value)
        for node in graph:
            for name, attribute in tuple(node.attributes.items()):
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    node.attributes[name] = ir.AttrTensor(name, _own(attribute.as_tensor()))


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype is ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy().astype(object), name=tensor.name)
    if isinstance(tensor, ir.TensorProtoTensor):  # each look at its numbers would copy them
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    return copy.copy(tensor)


def _read(path: Path, where: str) -> onnx.ModelProto:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{where} does not exist", remedy="check the path") from None
    except IsADirectoryError:
        raise ModelError(f"{where} is a folder", remedy="name the .onnx file inside it") from None
    except OSError as error:
        raise ModelError(f"{where} cannot be read: {error.strerror or error}") from error
    if not data:
        raise ModelError(f"{where} is empty (0 bytes)", remedy="export or copy it again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError has no importable base of its own
        raise ModelError(
            f"{where} is not an ONNX file, or is truncated", remedy="export or copy it again"
        ) from error
    _check_proto(proto, where)
    return proto


def _check_proto(proto: onnx.ModelProto, where: str) -> None:
    """Refuse what protobuf accepts although it is no model: unknown fields parse as empty."""
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            f"{where} is not an ONNX model: it holds no graph or no opset",
            remedy="export or copy it again",
        )


def _deserialize(proto: onnx.ModelProto, where: str) -> ir.Model:
    try:
        return ir.from_proto(proto)
    except Exception as error:  # onnx-ir raises many kinds for a malformed model
        cause = error.__cause__ or error
        reason = str(cause).strip().splitlines()[0] if str(cause).strip() else repr(cause)
        raise ModelError(f"{where} is a malformed ONNX model: {reason}") from error


def _check_graph(model: ir.Model, where: str) -> None:
    opset = model.opset_imports.get("")
    if opset is None:
        raise ModelError(f"{where} does not say which default opset it uses")
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"{where} has opset {opset}, the oldest that can be read is {OLDEST_OPSET}",
            remedy="convert it with onnx.version_converter or export it again",
        )
    if not len(model.graph) or not model.graph.outputs:
        raise ModelError(f"{where} has an empty graph: no nodes or no outputs")
    known = {*model.graph.inputs, *model.graph.initializers.values()}
    for node in model.graph:
        for value in node.inputs:
            if value is not None and value.producer() is None and value not in known:
                raise ModelError(
                    f"{where}: node {node.name!r} ({node.op_type}) reads tensor {value.name!r},"
                    " which nothing makes"
                )
    for value in model.graph.outputs:
        if value.producer() is None and value not in known:
            raise ModelError(f"{where}: nothing makes the graph output {value.name!r}")


def _load_external(model: ir.Model, folder: Path | None, where: str) -> None:
    external = [t for t in _tensors(model) if isinstance(t, ir.ExternalTensor)]
    for tensor in external:
        if folder is None and not tensor.base_dir:
            raise ModelError(
                f"{where}: the weights of tensor {tensor.name!r} are in an external file",
                remedy="load the model by its path",
            )
        _check_external(tensor, folder or Path(tensor.base_dir), where)
    try:
        if external:
            ir.external_data.load_to_model(model)
    except (OSError, ValueError) as error:
        raise ModelError(f"{where}: external data cannot be read: {error}") from error


def _check_external(tensor: ir.ExternalTensor, folder: Path, where: str) -> None:
    root = folder.resolve()
    path = (root / tensor.location).resolve()
    what = f"{where}: external data {str(tensor.location)!r} of tensor {tensor.name!r}"
    if not path.is_relative_to(root):
        raise ModelError(
            f"{what} lies outside the model's folder", remedy="move it beside the model"
        )
    if not path.is_file():
        raise ModelError(f"{what} does not exist", remedy="copy it beside the model")
    offset = tensor.offset or 0
    end = offset + max(tensor.length or 0, tensor.nbytes)
    if offset < 0 or path.stat().st_size < end:
        raise ModelError(f"{what} is too short: {path.stat().st_size} bytes, {end} are needed")
    tensor.base_dir = str(root)


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
