"""Converts models to newer opsets, and repairs what the converter gets wrong.

Models older than the op table are converted, and those whose format needs newer types.

It uses `onnx.version_converter` and repairs what it gets wrong, found by running models of all
opsets before and after conversion: the sampling positions of Resize are lost, Hardmax on a
flattened tensor and the scales of GroupNormalization change, Softmax gets nodes that it does not
need, and the first version of Scan is taken for the second.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx import version_converter

from intact.errors import ModelError
from intact.graph.files.claims import forget_claims
from intact.graph.files.save import weights_as_inputs
from intact.graph.files.tensors import own_tensors
from intact.graph.files.trial import ProcessTask, survives
from intact.graph.given_nodes import GivenNodes
from intact.graph.ops import input_value
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.opset_forms import (
    FLATTENING,
    SINGLE_AXIS,
    depends_on_opset,
    write_opset_forms,
)
from intact.graph.passes.window_pads import write_pads
from intact.graph.traversal import all_nodes, nodes_of

OLDEST_OPSET = 7
"""ONNX Runtime runs no older opset; broadcasting was defined differently before."""

TABLE_OPSET = 11
"""Before opset 11, Pad, Clip and others had attributes for what are inputs in the op table."""

CONVERTED_OPSET = 13
"""The opset that older models are converted to; per-channel quantization needs it anyway."""

_IR_VERSIONS = {13: 7, 21: 10}
"""The IR version of each opset (ONNX versioning document)."""

_READ_BY_CONVERTER = 1 << 12
"""Size limit of constants that the converter may read (a shape, a list of axes), in bytes."""

_REPLACED = {"Upsample": "Resize", "Scatter": "ScatterElements"}
"""Operators that were replaced by others with the same first input."""

_REMEDY = "export the model again with opset 13 or newer"


def modernize(model: ir.Model, where: str) -> ir.Model:
    """Convert a model older than opset 11; a newer one is returned unchanged.

    Args:
        model: A model that shares no tensor objects with others.
        where: Name of the model for messages.

    Raises:
        ModelError: The opset is older than 7, or an operator cannot be converted.
    """
    opset = model.opset_imports[""]
    if opset >= TABLE_OPSET:
        return model
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"{where} has opset {opset}, the oldest supported one is {OLDEST_OPSET}",
            remedy=_REMEDY,
        )
    forget_claims(model)  # the converter would go by them
    given = GivenNodes(model)
    try:
        converted = convert_opset(model, CONVERTED_OPSET)
    except ModelError as error:
        raise ModelError(f"{where} has opset {opset} and {error}", remedy=_REMEDY) from error
    given.follow(converted)
    return converted


def convert_opset(model: ir.Model, opset: int) -> ir.Model:
    """Convert a model to a newer opset. Nodes and values keep their names; weights are not copied.

    Raises:
        ModelError: A node cannot be converted; the message names node and operator.
    """
    before = model.opset_imports[""]
    _refuse_lost_meanings(model)
    model = _in_lasting_forms(model)
    # The converter drops functions, and copies weights in protobuf, which ends at 2 GiB.
    functions = _functions_at(model, opset)
    proto, absent = weights_as_inputs(model, larger_than=_READ_BY_CONVERTER)
    axes = _along_last_axis(proto) if before < SINGLE_AXIS else {}
    ports = {value.name for value in model.graph.inputs}
    other = ProcessTask(f"{__name__}:attempt_bytes", proto.SerializeToString, (opset,))
    if not survives(lambda: _attempt(proto, opset), other):
        raise ModelError(
            f"cannot be converted to opset {opset}: ONNX's converter crashes on it, which it does "
            "on impossible sizes"
        )
    try:
        converted = version_converter.convert_version(proto, opset)
        _restore_names(proto, converted)
        result = ir.from_proto(onnx.shape_inference.infer_shapes(converted))
    except Exception as error:  # the converter raises RuntimeError and others
        raise ModelError(
            f"cannot be converted to opset {opset}: {_culprit(proto, opset)}"
        ) from error
    result.functions.update(functions)
    # The new model shares tensors with the converted message until here.
    own_tensors(result)
    _attach(result, absent, ports)
    make_names_unique(result)
    for node in result.graph:
        if node.name in axes:
            node.attributes["axis"] = ir.AttrInt64("axis", axes[str(node.name)])
    if before < TABLE_OPSET:
        _keep_meanings(result)
    needed = max(
        (ir_version for since, ir_version in _IR_VERSIONS.items() if since <= opset), default=0
    )
    # Never lower: in an older version every initializer had to be an input.
    result.ir_version = max(model.ir_version, needed)
    return result


def _attempt(proto: onnx.ModelProto, opset: int) -> None:
    """Call all that `convert_opset` does of ONNX's compiled code."""
    try:
        onnx.shape_inference.infer_shapes(version_converter.convert_version(proto, opset))
    except Exception:  # as there
        _culprit(proto, opset)


def attempt_bytes(content: bytes, opset: int) -> None:
    """Do the same with a model as bytes, in another process."""
    _attempt(onnx.ModelProto.FromString(content), opset)


def _attach(result: ir.Model, weights: list[ir.Value], ports: set[str | None]) -> None:
    """Restore the weights that were replaced by inputs."""
    inputs = {value.name: value for value in result.graph.inputs}
    for weight in weights:
        value = inputs[weight.name]
        value.const_value = weight.const_value
        result.graph.register_initializer(value)
        if weight.name not in ports:
            result.graph.inputs.remove(value)


def _restore_names(source: onnx.ModelProto, converted: onnx.ModelProto) -> None:
    """Restore the names that the converter dropped where it replaced a node.

    A tensor is identified by a remaining node that reads it at the same input. The node that
    produces it then gets the name of the former producer.
    """
    before = {node.output[0]: node for node in source.graph.node if node.output}
    known = {name for node in source.graph.node for name in (*node.input, *node.output)}
    present = {name for node in converted.graph.node for name in (*node.input, *node.output)}
    inner = {name for node in converted.graph.node for name in _read_inside(node)}
    named = {node.name for node in converted.graph.node}
    for node in reversed(converted.graph.node):  # readers first: each identifies its producers
        old = before.get(node.output[0]) if node.output else None
        if old is None:
            continue
        if not node.name and old.name not in named:
            node.name = old.name
            named.add(old.name)
        if node.op_type not in (old.op_type, _REPLACED.get(old.op_type)):
            continue
        for lost, new in zip(old.input, node.input, strict=False):
            # `_rename` does not look into bodies, so what they read keeps its name.
            if lost not in present and new not in known | inner | {""}:
                _rename(converted.graph, new, lost)
                present.add(lost)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _read_inside(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from inner.input
                yield from _read_inside(inner)


def _keep_meanings(result: ir.Model) -> None:
    """Write the defaults of Resize before opset 11 as attributes.

    Positions were asymmetric (not shifted by half a pixel). Nearest mode rounded up when shrinking
    and down otherwise, as in ONNX Runtime.
    """
    for node in all_nodes(result):
        if node.domain == "" and node.op_type == "Resize":
            scales = input_value(node, 2)
            tensor = None if scales is None else scales.const_value  # in IR 3 also a graph input
            shrinks = tensor is not None and bool((tensor.numpy() < 1).any())
            _set_default(node, "coordinate_transformation_mode", "asymmetric")
            _set_default(node, "nearest_mode", "ceil" if shrinks else "floor")


def _set_default(node: ir.Node, name: str, value: str) -> None:
    if name not in node.attributes:
        node.attributes[name] = ir.AttrString(name, value)


def _refuse_lost_meanings(model: ir.Model) -> None:
    """Raise for operators whose meaning the converter would change silently."""
    for node in all_nodes(model):
        if model.opset_imports[""] < 9 and node.domain == "" and node.op_type == "Scan":
            raise ModelError(
                f"node {node.name!r} ({node.op_type}) cannot be expressed in newer opsets"
            )


def _in_lasting_forms(model: ir.Model) -> ir.Model:
    """Return the model with operators that mean the same in all opsets; itself where it has them.

    Only a model that is not normalized lacks them.
    """
    if not depends_on_opset(model):
        return model
    written = model.clone()
    own_tensors(written)
    written.ir_version = max(written.ir_version, 4)  # before, every constant had to be an input
    write_pads(written)  # shape inference errs behind others
    library.infer_shapes(written)
    write_opset_forms(written)
    return written


def _along_last_axis(proto: onnx.ModelProto) -> dict[str, int]:
    """Let Softmax and its like run along the last axis; return their axes by node.

    They run along one axis already, which the converter sees of the last one only.
    """
    axes = {}
    for node in proto.graph.node:
        if node.domain == "" and node.op_type in FLATTENING and node.name:
            (axis,) = (each for each in node.attribute if each.name == "axis")
            axes[node.name], axis.i = axis.i, -1
    return axes


def _functions_at(model: ir.Model, opset: int) -> dict[ir.OperatorIdentifier, ir.Function]:
    """Copy the functions, which the converter drops, to a newer opset.

    Raises:
        ModelError: A function has an operator that is defined differently in the newer opset.
    """
    functions = dict(model.clone().functions) if model.functions else {}
    for function in functions.values():
        before = function.opset_imports.get("", opset)
        for node in nodes_of(function):
            if node.domain == "" and not _is_same_operator(node.op_type, before, opset):
                raise ModelError(
                    f"cannot be converted to opset {opset}: its function {function.name!r} has "
                    f"{node.op_type}, which is defined differently there"
                )
        if "" in function.opset_imports:
            function.opset_imports[""] = max(before, opset)
    return functions


def _is_same_operator(op_type: str, opset: int, other: int) -> bool:
    try:
        found = [onnx.defs.get_schema(op_type, each, "").since_version for each in (opset, other)]
    except onnx.defs.SchemaError:  # removed before, or unknown
        return False
    return found[0] == found[1]


def _culprit(proto: onnx.ModelProto, opset: int) -> str:
    """Find the node that cannot be converted, by converting each alone, and the reason."""
    try:
        inferred = onnx.shape_inference.infer_shapes(proto).graph
    except Exception as error:  # as of the converter
        return _reason(error)
    known = {each.name: each for each in (*inferred.value_info, *inferred.input)}
    constants = {tensor.name: tensor for tensor in inferred.initializer}
    # The converter's messages name no node.
    for node in inferred.node:
        alone = onnx.ModelProto()
        alone.CopyFrom(proto)
        graph = onnx.GraphProto(name="alone", node=[node])
        graph.initializer.extend(constants[name] for name in node.input if name in constants)
        graph.input.extend(
            known.get(name, onnx.ValueInfoProto(name=name))
            for name in dict.fromkeys(node.input)
            if name and name not in constants
        )
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
        alone.graph.CopyFrom(graph)
        try:
            version_converter.convert_version(alone, opset)
        except Exception as error:
            return f"node {node.name!r} ({node.op_type}): {_reason(error)}"
    return "the converter gives no reason"


def _reason(error: Exception) -> str:
    """Shorten the converter's failed assertion to its message, without the source location."""
    text = " ".join(str(error).split())
    return text.rpartition("failed: ")[2][:200] or type(error).__name__
