"""Reads and checks ONNX models; a bad file gives one error with its cause."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.files.checks import refuse_unsound
from intact.graph.files.expansion import refuse_crowded, refuse_endless
from intact.graph.files.external import MappedFile, MappedTensor, map_external, read_tensor
from intact.graph.files.foreign import refuse_foreign
from intact.graph.files.opset import modernize
from intact.graph.files.protobuf import Span, read_without_weights
from intact.graph.files.quiet import quiet
from intact.graph.files.regular import as_typed, read_file, remedy_for_absent
from intact.graph.files.sparse import dense_initializers
from intact.graph.files.tensors import own_tensors
from intact.graph.passes.library import sort_nodes
from intact.graph.traversal import all_nodes, graphs_of
from intact.ops.operators import LAYERS

MAP_FROM = 1 << 28
"""Size in bytes from which the weights of an ``.onnx`` file are memory-mapped."""

_MAPPED_WEIGHT = 1 << 20
"""Size in bytes from which a weight of such a file is mapped."""

_ML = "ai.onnx.ml"

_Weights = dict[str, MappedTensor]


def load_model(source: str | Path | onnx.ModelProto | ir.Model) -> ir.Model:
    """Read a model as `read_model` does; one of opset 7 to 10 is converted to opset 13.

    Args:
        source: What `read_model` takes.

    Raises:
        ModelError: `read_model` raises it; or the opset is older than 7 or cannot be converted.
    """
    return modernize(read_model(source), _where(source))


def read_model(source: str | Path | onnx.ModelProto | ir.Model) -> ir.Model:
    """Read a model; weights in external files and in large ``.onnx`` files are memory-mapped.

    Such files may be replaced or removed while the model is in use, but not overwritten in place.

    Args:
        source: A path to an ``.onnx`` file, or a model that is already loaded. An `ir.Model` is
            cloned (tensors are shared), so that the caller's model never changes.

    Raises:
        ModelError: The file is missing, a folder, empty, truncated or not ONNX; the graph is empty,
            has a cycle or reads a tensor that no node produces; external data is missing, too short
            or outside the model's folder.
    """
    folder, where = None, _where(source)
    if isinstance(source, ir.Model):
        model = _clone(source)
    elif isinstance(source, onnx.ModelProto):
        model = _deserialize(source, None, where)
    else:
        path = Path(source)
        refuse_foreign(path, where)
        folder = path.parent
        proto, weights = _read(path, where)
        model = _deserialize(proto, folder, where)
        # Only now: neither protobuf nor onnx-ir has held the weights of a large file.
        _put_back(model, weights)
    _check_graph(model, where)
    sort_nodes(model)  # onnx-ir cannot clone it otherwise
    try:
        map_external(model, folder, where)
        own_tensors(model)
    except (AssertionError, TypeError, ValueError) as error:  # data do not fit type and shape
        raise ModelError(f"{where} has a malformed tensor: {_first_line(error)}") from error
    return model


def _where(source: str | Path | onnx.ModelProto | ir.Model) -> str:
    """Name a model for messages."""
    return f"model {str(Path(source))!r}" if isinstance(source, str | Path) else "the model"


def _clone(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except RuntimeError as error:
        raise ModelError(
            "the model cannot be copied: a node reads a tensor of a later node or of none",
            remedy="sort its nodes, or load it by its path",
        ) from error


def _read(path: Path, where: str) -> tuple[onnx.ModelProto, _Weights]:
    """Read a file; for a large one the model without weights, and the mapped weights by name."""
    try:
        if path.stat().st_size >= MAP_FROM and path.is_file():
            return _read_mapped(path)
        data = read_file(path)
    except FileNotFoundError:
        remedy = remedy_for_absent(path, "check the path")
        shown = where.replace(str(path), as_typed(path))
        raise ModelError(f"{shown} does not exist", remedy=remedy) from None
    except IsADirectoryError:
        inside = next(iter(sorted(path.glob("*.onnx"))), None)
        named = "" if inside is None else f", such as {as_typed(inside)}"
        remedy = f"name the .onnx file inside it{named}"
        raise ModelError(f"{where} is a folder", remedy=remedy) from None
    except OSError as error:
        raise ModelError(f"{where} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf's DecodeError has no importable base of its own
        raise _not_onnx(where) from error
    # Zero bytes are a valid message of protobuf, with nothing in it.
    if not data:
        raise ModelError(f"{where} is empty (0 bytes)", remedy="export or copy it again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise _not_onnx(where) from error
    return proto, {}


def _read_mapped(path: Path) -> tuple[onnx.ModelProto, _Weights]:
    file = MappedFile.open(path)
    proto, spans = read_without_weights(file.pages, larger_than=_MAPPED_WEIGHT)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    return proto, {name: _map_weight(file, span, tensors[name]) for name, span in spans.items()}


def _map_weight(file: MappedFile, span: Span, tensor: onnx.TensorProto) -> MappedTensor:
    dtype, shape = ir.DataType(tensor.data_type), ir.Shape(tensor.dims)
    mapped = MappedTensor(file, span.start, dtype, shape, tensor.name)
    if mapped.nbytes != span.end - span.start:
        raise ValueError(f"tensor {tensor.name!r} does not have the size of its data")
    return mapped


def _put_back(model: ir.Model, weights: _Weights) -> None:
    for name, tensor in weights.items():
        model.graph.initializers[name].const_value = tensor


def _not_onnx(where: str) -> ModelError:
    return ModelError(
        f"{where} is not an ONNX file, or is truncated", remedy="export or copy it again"
    )


def _deserialize(proto: onnx.ModelProto, folder: Path | None, where: str) -> ir.Model:
    # Protobuf parses any message: unknown fields are skipped.
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            f"{where} is not an ONNX model: it holds no graph or no opset",
            remedy="export or copy it again",
        )
    _refuse_trees(proto, where)
    refuse_crowded(proto, where)
    refuse_endless(proto, where)  # first: what follows looks at every field of every node
    refuse_unsound(proto, folder, where)
    read = partial(read_tensor, folder=folder, where=where)
    try:
        with quiet():  # problems are reported or repaired below
            return ir.from_proto(dense_initializers(proto, where, read, proto.ByteSize()))
    except ModelError:
        raise
    except Exception as error:  # onnx-ir raises many kinds for a malformed model
        # onnx-ir wraps the cause in errors that print the whole message it was in.
        reason = _first_line(error.__cause__ or error)
        raise ModelError(f"{where} is a malformed ONNX model: {reason}") from error


def _refuse_trees(proto: onnx.ModelProto, where: str) -> None:
    """Refuse what converters of decision trees write, before minutes of reading it.

    A tree has no layers that could be quantized, and millions of numbers as attributes.
    """
    for value in proto.graph.output:
        kind = value.type.sequence_type.elem_type if value.type.HasField("sequence_type") else None
        if (kind or value.type).HasField("map_type"):
            raise ModelError(
                f"{where}: output {value.name!r} holds maps, and no tensor",
                remedy='convert the model with options={"zipmap": False}; of decision trees alone '
                "nothing can be quantized, as they have no layers",
            )
    scopes = [proto.graph.node, *(each.node for each in proto.functions)]
    used = {(node.domain, node.op_type) for nodes in scopes for node in nodes}
    has_layers = any(op_type in LAYERS for _, op_type in used)
    trees = [op for domain, op in used if domain == _ML and op.startswith("TreeEnsemble")]
    if trees and not has_layers:
        raise ModelError(
            f"{where} has decision trees ({trees[0]}) and no layers",
            remedy="there is nothing to quantize: ONNX Runtime runs it as it is",
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)


def _check_graph(model: ir.Model, where: str) -> None:
    if "" not in model.opset_imports:
        raise ModelError(f"{where} does not import the default opset")
    if not len(model.graph) or not model.graph.outputs:
        raise ModelError(f"{where} has an empty graph: no nodes or no outputs")
    scopes: list[ir.Graph | ir.Function] = [*graphs_of(model), *model.functions.values()]
    known = {value for scope in scopes for value in scope.inputs}
    known |= {value for graph in graphs_of(model) for value in graph.initializers.values()}
    for node in all_nodes(model):
        for value in node.inputs:
            if value is not None and value.producer() is None and value not in known:
                raise ModelError(
                    f"{where}: node {node.name!r} ({node.op_type}) reads tensor {value.name!r},"
                    " which no node produces"
                )
    for scope in scopes:
        for value in scope.outputs:
            if value.producer() is None and value not in known:
                raise ModelError(f"{where}: no node produces the graph output {value.name!r}")
