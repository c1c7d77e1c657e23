"""From the nodes of a file to a float model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import onnx_ir as ir
from onnx_ir.passes import common

from intact.errors import ModelError, Unsupported
from intact.formats.base.binary import clipped
from intact.formats.tengine.tmfile.file import FileNode, TmFile
from intact.formats.tengine.tmfile.layout import Element, Layout
from intact.formats.tengine.tmfile.reading import moving, pointwise, pooling, products
from intact.formats.tengine.tmfile.reading.common import Read
from intact.formats.tengine.tmfile.reading.draft import BATCH, OPSET, Draft, FixesBatch
from intact.graph.files.quiet import quiet
from intact.graph.passes import library

_IR_VERSION = 9
_SHOWN = 8
"""Nodes that are named for one reason."""
_FED = (Element.FLOAT32, Element.FLOAT16, Element.INT8, Element.UINT8)

READERS: Mapping[str, Read] = MappingProxyType(
    {**products.TABLE, **pointwise.TABLE, **pooling.TABLE, **moving.TABLE}
)
"""Read functions by operator; constants and inputs are read before them."""


def float_model(file: TmFile) -> ir.Model:
    """Return what a file computes, in float.

    Raises:
        ModelError: Some nodes cannot be read, all of which are named with the reason; or the file
            contradicts itself.
    """
    if file.layout is Layout.CHANNELS_LAST:
        raise ModelError(
            f"{file.source}: its images have their channels last, as those of TensorFlow",
            remedy="convert the model to ONNX, or read the TFLite file itself",
        )
    if not file.outputs:
        raise ModelError(f"{file.source}: it has no outputs", remedy="convert the model again")
    try:
        return _assembled(_drawn(file, batch=True))
    except FixesBatch:
        return _assembled(_drawn(file, batch=False))


def _drawn(file: TmFile, *, batch: bool) -> Draft:
    draft = Draft(file, batch=batch)
    reasons: dict[str, list[str]] = {}
    written: set[int] = set()
    for number, node in enumerate(file.nodes):
        again = written.intersection(node.outputs)
        written.update(node.outputs)
        try:
            if again or len(set(node.outputs)) != len(node.outputs):
                raise Unsupported("it writes a tensor that another node writes")
            _read(draft, node)
        except Unsupported as error:
            name = node.name or f"node {number}"
            reasons.setdefault(f"{node.operator}: {error}", []).append(name)
    if reasons:
        raise ModelError(
            f"{file.source}: cannot read {clipped(_listed(reasons))}",
            remedy="cut the model before those nodes, or give the model it was converted from",
        )
    return draft


def _read(draft: Draft, node: FileNode) -> None:
    if node.operator == "InputOp":
        for index in node.outputs:
            tensor = draft.tensor(index)
            if tensor.element not in _FED or not tensor.shape or min(tensor.shape) < 1:
                raise Unsupported(f"it is fed {tensor.element.name} {list(tensor.shape)}")
            draft.add_input(index, tensor.shape)
        return
    if node.operator == "Const":
        return
    if node.operator not in READERS:
        raise Unsupported("the operator is not known")
    if not node.outputs:
        raise Unsupported("it has no output")
    READERS[node.operator](draft, node)


def _listed(reasons: Mapping[str, list[str]]) -> str:
    return "; ".join(
        f"{', '.join(map(repr, names[:_SHOWN]))}{' ...' if len(names) > _SHOWN else ''} ({reason})"
        for reason, names in reasons.items()
    )


def _assembled(draft: Draft) -> ir.Model:
    file = draft.file
    graph = ir.Graph(
        draft.inputs,
        list(_outputs(draft)),
        nodes=draft.nodes,
        initializers=draft.constants,
        opset_imports={"": OPSET},
        name="main_graph",
    )
    model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="Tengine")
    library.remove_unused(model)
    try:
        with quiet():
            common.ShapeInferencePass(check_type=True, strict_mode=True)(model)
    except Exception as error:  # onnx raises its own kinds
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{file.source}: its shapes do not fit: {reason}") from error
    for value, wanted in draft.shapes.items():
        if value.producer() is not None and value.graph is not None:
            _settle(value, [BATCH, *wanted[1:]] if draft.batch else [*wanted], file.source)
    return model


def _settle(value: ir.Value, wanted: list[int | str], source: str) -> None:
    """Give a value the shape that Tengine gives it, which ONNX must agree with.

    Raises:
        ModelError: It does not.
    """
    found = value.shape
    known = [each if isinstance(each, int) else None for each in found or ()]
    if found is not None and (
        len(known) != len(wanted)
        or any(k is not None and k != w for k, w in zip(known, wanted, strict=True))
    ):
        raise ModelError(
            f"{source}: tensor {clipped(repr(value.name))} of shape {wanted} is computed as"
            f" {found}",
            remedy="the file contradicts itself: convert the model again",
        )
    value.shape = ir.Shape(wanted)


def _outputs(draft: Draft) -> Iterable[ir.Value]:
    """Yield what the output nodes write; what the caller feeds is handed out as a copy."""
    seen: set[ir.Value] = set()
    for number in draft.file.outputs:
        node = draft.file.nodes[number]
        for index in node.outputs:
            try:
                value = draft.activation(index)
            except Unsupported as error:
                raise ModelError(
                    f"{draft.file.source}: it hands out {clipped(repr(draft.name(index)))}, which "
                    "is no activation",
                    remedy="convert the model again",
                ) from error
            if value.producer() is None:
                value = draft.add(node, "Identity", [value], draft.shapes[value], part="output")
            if value not in seen:
                seen.add(value)
                yield value
