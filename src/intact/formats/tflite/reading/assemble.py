"""The float model of a draft, with its shapes held against those of the file."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from intact.errors import ModelError
from intact.formats.binary import clipped
from intact.formats.tflite.reading.draft import BATCH, DATA_TYPES, Draft
from intact.graph import Graph
from intact.graph.files.quiet import quiet
from intact.graph.passes import library

_IR_VERSION = 9


def assemble(draft: Draft) -> Graph:
    """Return the float graph.

    Raises:
        ModelError: Shapes of the file contradict each other.
    """
    outputs = _outputs(draft)
    draft.name_rest()
    graph = ir.Graph(
        draft.inputs,
        outputs,
        nodes=draft.nodes,
        initializers=draft.constants,
        opset_imports={"": draft.opset},
        name="main_graph",
    )
    model = ir.Model(graph, ir_version=_IR_VERSION, producer_name=draft.file.description[:200])
    library.remove_unused(model)
    _check_shapes(model, draft)
    return Graph(model)


def _outputs(draft: Draft) -> list[ir.Value]:
    """Return the values of the graph's outputs; a second use of one is a copy."""
    names: dict[int, list[str]] = {}  # that the signature has for one tensor, the last first
    for name, index in draft.file.signature.outputs.items():
        if name not in draft.taken:
            names.setdefault(index, []).insert(0, name)
    outputs: dict[ir.Value, None] = {}
    for index in draft.file.outputs:
        source = draft.alias.get(index, index)
        operand = draft.operand(source)
        value = operand.value
        if value.producer() is None or value in outputs:
            copy = draft.moved("Identity", [operand], None, operand.shape)
            value = copy.value
            called = names.get(index) or [f"{operand.value.name}/output"]
            value.name = draft.fresh(called.pop())
            draft.shapes[value] = operand.shape
        element = draft.tensor(index).element
        value.type = ir.TensorType(DATA_TYPES.get(element, ir.DataType.FLOAT))
        outputs[value] = None
    return list(outputs)


def _check_shapes(model: ir.Model, draft: Draft) -> None:
    try:
        with quiet():
            common.ShapeInferencePass(check_type=True, strict_mode=True)(model)
    except Exception as error:  # onnx raises its own kinds
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{draft.file.source}: its shapes do not fit: {reason}") from error
    for value, wanted in draft.shapes.items():
        if value.producer() is None or value.graph is None:
            continue
        found = value.shape
        lengths = [None if found is None else found[k] for k in range(len(found or ()))]
        known = [length if isinstance(length, int) else None for length in lengths]
        expected: list[int | str] = list(wanted)
        if draft.batch:
            expected[0] = BATCH
        if found is not None and (
            len(known) != len(expected)
            or any(k is not None and k != w for k, w in zip(known, expected, strict=True))
        ):
            raise ModelError(
                f"{draft.file.source}: tensor {clipped(repr(value.name))} of shape {list(wanted)}"
                f" is computed as {found}",
                remedy="the file contradicts itself: convert the model again",
            )
        value.shape = ir.Shape(expected)
