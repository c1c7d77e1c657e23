"""Reads loops: WHILE becomes a Loop, whose body is read as the main graph is."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import refuse_mixed_batch
from intact.formats.tflite.reader.builder import ModelBuilder
from intact.formats.tflite.reader.common import READERS
from intact.formats.tflite.reader.file import Operator, Signature, Subgraph
from intact.formats.tflite.reader.steps import read_operator
from intact.formats.tflite.reader.tensors import Operand
from intact.formats.tflite.reader.turns import WHILE
from intact.graph.builder import typed_value
from intact.graph.passes.loops import LOOP


@READERS.register(WHILE)
def loop(builder: ModelBuilder, op: Operator) -> None:
    """Read WHILE of floats and whole numbers."""
    if op.turn is None:
        raise Unsupported("its graphs are not known")
    _require_alike(builder, op, op.turn)
    # A turn may mix samples, and has numbers of its own without a batch.
    refuse_mixed_batch(builder, True)
    condition, *values = map(builder.operand, op.inputs)
    body = _read_turn(builder, op.turn)
    inputs = [None, condition, *values]
    attribute = ir.AttrGraph("body", body)
    results = builder.split(LOOP, inputs, {"body": attribute}, len(values))
    for index, result in zip(op.outputs, results, strict=True):
        builder.write(index, result)


def _require_alike(builder: ModelBuilder, op: Operator, turn: Subgraph) -> None:
    """Check that values keep their type and shape, as files with other ones are resized."""
    given, inside = map(builder.tensor, op.inputs[1:]), turn.tensors
    taken, made = ((inside[place] for place in each) for each in (turn.inputs, turn.outputs[1:]))
    for tensors in zip(given, taken, made, map(builder.tensor, op.outputs), strict=True):
        if len({(each.element, each.shape) for each in tensors}) > 1:
            raise Unsupported(f"tensor {tensors[0].name!r} changes its type or shape in turns")


def _read_turn(around: ModelBuilder, turn: Subgraph) -> ir.Graph:
    """Read what a loop runs, from its values to whether it goes on and the values after."""
    file = replace(
        around.file,
        tensors=turn.tensors,
        operators=turn.operators,
        inputs=turn.inputs,
        outputs=turn.outputs,
        signature=Signature(),
    )
    builder = ModelBuilder(file, batch=False, alias={}, around=around)
    for op in turn.operators:
        try:
            read_operator(builder, op)
        except Unsupported as reason:
            raise Unsupported(f"in its turns {op.name} ({op.index}): {reason}") from reason
    if builder.writes or any(each.parameters for each in builder.reads.values()):
        raise Unsupported("its turns compute with codes, and are read in float only")
    outputs: list[ir.Value] = []
    for operand in map(builder.operand, turn.outputs):
        outputs.append(_given(builder, operand, outputs))
    builder.name_rest()
    names = around.graph.names
    ports = [
        typed_value(names.fresh("turn"), ir.DataType.INT64, ()),
        typed_value(names.fresh("goes_on"), ir.DataType.BOOL, builder.shapes[outputs[0]]),
    ]
    builder.graph.inputs[:0] = ports
    around.shapes |= builder.shapes
    around.opset = max(around.opset, builder.opset)
    return builder.graph.graph(outputs, opset=builder.opset, name="turn")


def _given(builder: ModelBuilder, operand: Operand, others: list[ir.Value]) -> ir.Value:
    """Return a value that a graph can give: its nodes make it, for one output."""
    value = operand.value
    if value.producer() is not None and value not in others:
        return value
    copy = builder.copied(operand).value
    copy.type = value.type
    builder.shapes[copy] = operand.shape
    return copy
