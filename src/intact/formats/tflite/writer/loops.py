"""Writes loops: WHILE, which runs two graphs of the file, whether to go on and a turn.

Both take what turns change and what they read from around, and a turn gives it back.
"""

from __future__ import annotations

import numpy as np

from intact.errors import Unsupported
from intact.formats.tflite.spellings import AND, LESS
from intact.formats.tflite.writer.builder import (
    WRITERS,
    FileBuilder,
    Options,
    add_cast,
    type_of,
)
from intact.formats.tflite.writer.moves import add_reshape
from intact.formats.tflite.writer.steps import write_step
from intact.graph.names import Names
from intact.program import Program, Shape, Step, Tensor
from intact.program.float_operations import Loop
from intact.program.lower import lower
from intact.program.passes.inference import open_lengths


@WRITERS.register(Loop)
def _write_loop(operation: Loop, step: Step, builder: FileBuilder) -> None:
    """Write WHILE."""
    builder.require("WHILE")
    turn = lower(operation.turn, float_operations=True)
    number, goes_on, *ports = [turn.inputs[str(each.name)] for each in operation.turn.graph.inputs]
    most, begins, *others = step.inputs
    values = [each for each in others if each is not None]
    first = builder.constant(f"{step.name}/turn", np.zeros(_lengths(number), np.int64))
    given = [first, _condition(builder, step, begins, _lengths(goes_on)), *values]
    inputs = [number, goes_on, *ports]
    if most is not None and most.data is None:
        # Handed on from turn to turn, so that the condition sees it.
        given.append(most)
        name = Names(tensor.name for tensor in turn.tensors()).fresh("most")
        most = Tensor(name, most.shape, plain=type_of(most))
        inputs.append(most)
    graphs = {
        "condSubgraphIndex": _add_condition(builder, inputs, most),
        "bodySubgraphIndex": _add_turn(builder, operation, turn, inputs),
    }
    outputs = [
        builder.intermediate(f"{step.name}/last", each.shape, None, each, plain=type_of(each).type)
        for each in given
    ]
    outputs[2 : 2 + len(step.outputs)] = step.outputs
    builder.operator("WHILE", given, outputs, Options("WhileOptions", graphs))


def _condition(
    builder: FileBuilder, step: Step, given: Tensor | None, shape: tuple[int, ...]
) -> Tensor:
    """Return whether there is a first turn, in the shape that a turn takes."""
    if given is None or given.data is not None:
        data = np.array(True) if given is None or given.data is None else given.data
        return builder.constant(f"{step.name}/begins", data.reshape(shape))
    return _shaped(builder, given, shape)


def _shaped(builder: FileBuilder, tensor: Tensor, shape: Shape) -> Tensor:
    if tensor.shape == shape:
        return tensor
    result = builder.intermediate(
        f"{tensor.name}_shaped", shape, None, tensor, plain=type_of(tensor).type
    )
    add_reshape(builder, tensor, result)
    return result


def _add_condition(builder: FileBuilder, inputs: list[Tensor], most: Tensor | None) -> int:
    """Add the graph that says whether there is a turn; return its number."""
    inner = builder.inside(tensor.name for tensor in inputs)
    for tensor in inputs:
        inner.mention(tensor)
    number, goes_on = inputs[:2]
    if most is not None:
        end = most if most.data is None else inner.constant("most", most.data)
        shape = np.broadcast_shapes(_lengths(number), _lengths(end))
        is_below = inner.intermediate("is_below", shape, None, number, plain=np.bool_)
        inner.operator(LESS.code, (number, end), (is_below,), Options(LESS.table))
        shape = np.broadcast_shapes(shape, _lengths(goes_on))
        both = inner.intermediate("goes_on", shape, None, number, plain=np.bool_)
        inner.operator(AND.code, (is_below, goes_on), (both,), Options(AND.table))
        goes_on = both
    return builder.add_subgraph(inner, inputs, [goes_on])


def _add_turn(builder: FileBuilder, operation: Loop, turn: Program, inputs: list[Tensor]) -> int:
    """Add the graph of a turn; return its number."""
    reserved = (*turn.tensors(), *inputs)
    inner = builder.inside((tensor.name for tensor in reserved), open_lengths(turn))
    for tensor in inputs:
        inner.mention(tensor)
    refusals = [
        f"{found.node or step.name}: {found.reason}"
        for step in turn.steps
        for found in write_step(step, inner)
    ]
    if refusals:
        raise Unsupported(f"in its turns {'; '.join(dict.fromkeys(refusals))}")
    number, goes_on = inputs[:2]
    named = {**turn.inputs, **turn.outputs}
    condition, *values = [named[name] for name in operation.results]
    following = inner.intermediate("next", number.shape, None, number, plain=np.int64)
    one = inner.constant("one", np.ones((), np.int64))
    inner.operator("ADD", (number, one), (following,), Options("AddOptions"))
    around = inputs[2 + len(values) :]
    outputs = [following, _shaped(inner, condition, goes_on.shape), *values, *around]
    # Handed on at the place of another, LiteRT 2.3.0 reads an input that it has written by then.
    handed = {tensor.name: place for place, tensor in enumerate(inputs)}
    for place, tensor in enumerate(outputs):
        if handed.get(tensor.name, place) != place:
            outputs[place] = _copied(inner, tensor)
    return builder.add_subgraph(inner, inputs, outputs)


def _copied(builder: FileBuilder, tensor: Tensor) -> Tensor:
    plain = type_of(tensor).type
    result = builder.intermediate(f"{tensor.name}_copy", tensor.shape, None, tensor, plain=plain)
    add_cast(builder, tensor, result)
    return result


def _lengths(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a single number, which has no open axis."""
    return tuple(1 for _ in tensor.shape)
