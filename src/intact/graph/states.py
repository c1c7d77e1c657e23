"""Stores the states of a model of streams: inputs that it takes from its last run.

A denoiser that is run on one frame after the other, for example, has an output ``h_out`` that is
the input ``h`` of the next run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.metadata import metadata_of, set_metadata

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
    found = {
        state.before: {"after": state.after, "shape": state.first.shape, "first": _flat(state)}
        for state in states
    }
    set_metadata(model, METADATA_KEY, found)


def _flat(state: State) -> list[float]:
    """Return the numbers of the first value; one where all are equal."""
    numbers = [float(number) for number in state.first.reshape(-1)]
    # As a rule all are zero, and the metadata stay short whatever the size.
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def states_of(model: ir.Model) -> Mapping[str, State]:
    """Return the states of a model by the names of their inputs.

    Raises:
        ModelError: The metadata does not hold what `set_states` writes.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    outputs = {str(value.name) for value in model.graph.outputs}

    def read(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, State]:
        found = {name: _state(inputs[name], each) for name, each in stored.items()}
        if not outputs.issuperset(state.after for state in found.values()):
            raise ValueError(stored)
        return found

    return metadata_of(model, METADATA_KEY, read, {})


def _state(value: ir.Value, stored: Mapping[str, Any]) -> State:
    shape = tuple(int(length) for length in stored["shape"])
    wanted = () if value.shape is None else value.shape.dims
    is_input = len(wanted) == len(shape) and all(
        not isinstance(length, int) or length == own
        for length, own in zip(wanted[1:], shape[1:], strict=True)
    )
    numbers = np.array([float(number) for number in stored["first"]], np.float32)
    if not is_input or shape[:1] != (1,) or numbers.size not in (1, math.prod(shape)):
        raise ValueError(shape)
    first = np.broadcast_to(numbers.reshape(shape if numbers.size > 1 else ()), shape)
    return State(str(value.name), str(stored["after"]), first)
