"""Finds the shapes that a Loop's values keep from turn to turn.

ONNX infers none for what a Loop gives, as a body may give another shape than it takes. Those that
stay as they begin are found here: all that may are taken to, and those for which the body then
gives something else are left out, until the rest agrees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from intact.graph.files.claims import forget_made_up_shapes
from intact.graph.ops import input_value
from intact.graph.passes.control_flow import nodes_with_bodies
from intact.graph.passes.library import infer_shapes
from intact.graph.traversal import bodies, nodes_of
from intact.ops.operators import Loop

_FIRST_STATE = 2
"""The slot of the first value that turns change, of a Loop and of its body."""


class _State:
    """A value that turns change.

    Args:
        begins: What the Loop takes.
        before: What a turn takes.
        after: What a turn gives.
        result: What the Loop gives.
    """

    def __init__(
        self, begins: ir.Value, before: ir.Value, after: ir.Value, result: ir.Value
    ) -> None:
        self.begins, self.before, self.after, self.result = begins, before, after, result
        self.declared = before.shape


def keep_shapes(model: ir.Model) -> bool:
    """Give what Loops give the shapes that their values keep.

    Args:
        model: Changed in place; what is inferred without this is inferred already.

    Returns:
        Whether any shape is new.
    """
    loops = nodes_with_bodies(model.graph, Loop)
    states = [state for node in loops for state in _states(node)]
    left = states
    while left:
        for body in (body for node in loops for body in bodies(node)):
            for value in (value for inner in nodes_of(body) for value in inner.outputs):
                value.shape = None
        for state in left:
            state.before.shape = state.result.shape = None
        supposed = _suppose(model, left)
        # What a turn hands on as it is has the shape that was only supposed.
        kept = [state for state in supposed if state.after.shape == state.begins.shape]
        for state in left:
            if state not in kept:
                state.before.shape, state.result.shape = state.declared, None
        if len(kept) == len(left):
            return True
        left = kept
    if states:  # none of which stays
        infer_shapes(model)
    return False


def _suppose(model: ir.Model, states: Collection[_State]) -> list[_State]:
    """Give values before and behind turns the shapes that they begin with, as far as known."""
    supposed: list[_State] = []
    while True:
        # ONNX keeps a name that it made up, also where it could know better by now.
        forget_made_up_shapes(model)
        infer_shapes(model)
        more = [each for each in states if each not in supposed and _is_known(each.begins.shape)]
        if not more:
            return supposed
        for state in more:
            state.before.shape = state.result.shape = state.begins.shape
        supposed += more


def _states(node: ir.Node) -> Iterator[_State]:
    body = next(bodies(node), None)
    if body is None:
        return
    results = zip(body.inputs[_FIRST_STATE:], body.outputs[1:], node.outputs, strict=False)
    for slot, (before, after, result) in enumerate(results, start=_FIRST_STATE):
        begins = input_value(node, slot)
        if begins is not None and isinstance(begins.type, ir.TensorType):
            yield _State(begins, before, after, result)


def _is_known(shape: ir.Shape | None) -> bool:
    """Tell whether each length is a number or has a name."""
    return shape is not None and all(
        isinstance(length, int) or length.value is not None for length in shape
    )
