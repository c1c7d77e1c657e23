"""States: inputs that a model of streams takes from its last run, and what they are at first.

They are metadata of the model, so that they hold in a result's folder too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ModelError

METADATA_KEY = "intact.states"


class State(msgspec.Struct, frozen=True, eq=False):
    """One state.

    Attributes:
        before: Name of the input that takes its value.
        after: Name of the output that is its value for the next run.
        first: Its value in the first run, float32 as the input, with the first axis of one.
    """

    before: str
    after: str
    first: npt.NDArray[np.float32]


def set_states(model: ir.Model, states: Sequence[State]) -> None:
    """Store the states of a model, which is changed in place."""
    if states:
        found = {
            state.before: {"after": state.after, "shape": state.first.shape, "first": _flat(state)}
            for state in states
        }
        model.metadata_props[METADATA_KEY] = json.dumps(found)


def _flat(state: State) -> list[float]:
    """Return the numbers of the first value; one where all are equal."""
    numbers = [float(number) for number in state.first.reshape(-1)]
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def states_of(model: ir.Model) -> Mapping[str, State]:
    """Return the states of a model by the names of their inputs.

    Raises:
        ModelError: The metadata does not hold what `set_states` writes.
    """
    text = model.metadata_props.get(METADATA_KEY)
    if text is None:
        return {}
    inputs = {str(value.name): value for value in model.graph.inputs}
    outputs = {str(value.name) for value in model.graph.outputs}
    try:
        found = {name: _state(inputs[name], each) for name, each in json.loads(text).items()}
        fits = all(state.after in outputs for state in found.values())
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        fits = False
    if not fits:
        raise ModelError(
            f"the model's metadata {METADATA_KEY!r} cannot be read",
            remedy="remove that entry, or read the original model again",
        )
    return found


def _state(value: ir.Value, stored: Mapping[str, Any]) -> State:
    shape = tuple(int(length) for length in stored["shape"])
    wanted = () if value.shape is None else value.shape.dims
    is_input = len(wanted) == len(shape) and all(
        not isinstance(length, int) or length == own
        for length, own in zip(wanted[1:], shape[1:], strict=True)
    )
    numbers = np.array(stored["first"], np.float32)
    if not is_input or shape[:1] != (1,) or numbers.size not in (1, math.prod(shape)):
        raise ValueError(shape)
    first = np.broadcast_to(numbers.reshape(shape if numbers.size > 1 else ()), shape)
    return State(str(value.name), str(stored["after"]), first)
