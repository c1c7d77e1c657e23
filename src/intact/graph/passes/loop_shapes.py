"""Finds the shapes that a Loop's values keep from turn to turn.

ONNX infers none for what a Loop gives, as a body may give another shape than it takes. Those that
stay as they begin are found here: all that may are taken to, and those for which the body then
gives something else are left out, until the rest agrees.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.files.claims import forget_made_up_shapes
from intact.graph.ops import input_value
from intact.graph.passes.control_flow import nodes_with_bodies
from intact.graph.passes.library import infer_shapes
from intact.graph.traversal import bodies, nodes_of

_FIRST_STATE = 2
"""The slot of the first value that turns change, of a Loop and of its body."""


def keep_shapes(model: ir.Model) -> bool:
    """Give what Loops give the shapes that their values keep.

    Args:
        model: Changed in place; what is inferred without this is inferred already.

    Returns:
        Whether any shape is new.
    """
    found = False
    # What one Loop gives may be what the next, or one in its body, begins with.
    while states := [
        state
        for node in nodes_with_bodies(model.graph, "Loop")
        for state in _states(node)
        if state.result.shape is None and _is_known(state.begins.shape)
    ]:
        kept = _kept(model, states)
        for state in kept:
            state.result.shape = state.begins.shape
        if not kept:
            break
        found = True
        # ONNX keeps a name that it made up, also where it could know better by now.
        forget_made_up_shapes(model)
        infer_shapes(model)
    return found


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


def _states(node: ir.Node) -> Iterator[_State]:
    body = next(bodies(node), None)
    if body is None:
        return
    results = zip(body.inputs[_FIRST_STATE:], body.outputs[1:], node.outputs, strict=False)
    for slot, (before, after, result) in enumerate(results, start=_FIRST_STATE):
        begins = input_value(node, slot)
        if begins is not None and isinstance(begins.type, ir.TensorType):
            yield _State(begins, before, after, result)


def _kept(model: ir.Model, states: list[_State]) -> list[_State]:
    """Return the values whose shapes stay, all of them together; bodies have these shapes then."""
    while states:
        for state in states:
            state.before.shape = state.begins.shape
        _infer_bodies(model)
        # What a turn hands on as it is has the shape that was only supposed.
        others = [state for state in states if state.after.shape != state.begins.shape]
        if not others:
            return states
        for state in others:
            state.before.shape = state.declared
        states = [state for state in states if state not in others]
    _infer_bodies(model)
    return []


def _infer_bodies(model: ir.Model) -> None:
    """Infer the shapes in the bodies of Loops, and nothing from what they were."""
    for node in nodes_with_bodies(model.graph, "Loop"):
        for body in bodies(node):
            for value in (value for inner in nodes_of(body) for value in inner.outputs):
                value.shape = None
    infer_shapes(model)


def _is_known(shape: ir.Shape | None) -> bool:
    """Tell whether each length is a number or has a name."""
    return shape is not None and all(
        isinstance(length, int) or length.value is not None for length in shape
    )
