"""Lowers Loops for formats that hold loops: a turn is a plan of its own, in float."""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import input_value, normalize
from intact.graph.passes.loops import turn_of
from intact.ops import operators
from intact.plan import build_float
from intact.plan.preparation import graphs_for
from intact.program.float_operations import Loop
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.lowerings import UNROLLING_LOWERINGS

_FIRST_STATE = 2
"""The slot of the first value that turns change."""


@UNROLLING_LOWERINGS.register(operators.Loop, any_rank=True)
def loop(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> None:
    """Lower a Loop whose values keep their shapes."""
    node, target = chain[0], builder.plan.target
    values = [value for value in node.inputs[_FIRST_STATE:] if value is not None]
    if len(node.outputs) > len(values):
        raise Unsupported(
            "it collects a value of each turn, of which there are as many as it turns: let it keep "
            "the last, or turn a constant number of times"
        )
    turn, around, results = turn_of(node, builder.plan.graph.model)
    graph = normalize(turn, in_place=True)
    _check_shapes(node, graph.model.graph, results)
    (prepared,) = graphs_for(graph, [target])
    given = [
        None if input_value(node, slot) is None else builder.read(node, slot) for slot in (0, 1)
    ]
    given += [builder.read(node, slot) for slot in range(_FIRST_STATE, len(node.inputs))]
    given += [builder.floats_of(value) for value in around]
    outputs = [
        builder.tensor(value if value.name else begins, None)
        for value, begins in zip(node.outputs, values, strict=True)
    ]
    operation = Loop(build_float(prepared, target), tuple(results))
    builder.emit(chain, operation, given, outputs)
    for value, output in zip(node.outputs, outputs, strict=True):
        if value.name:
            builder.set_result(value, output)


def _check_shapes(node: ir.Node, turn: ir.Graph, results: list[str]) -> None:
    """Check that a turn gives values of the shapes that it takes.

    Raises:
        Unsupported: It does not, or nothing tells.
    """
    named = {str(value.name): value for value in (*turn.inputs, *turn.outputs)}
    values = zip(turn.inputs[_FIRST_STATE:], results[1:], node.outputs, strict=False)
    for before, after, result in values:
        if result.shape is None or before.shape != named[after].shape:
            raise Unsupported(f"{before.name!r} may change its shape from turn to turn")
