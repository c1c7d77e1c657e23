"""Writes and reads ``weights.npz``: integers that do not follow from the float model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from intact.config import StateMeaning, TensorQuantConfig
from intact.errors import PlanError
from intact.graph import Graph, is_constant
from intact.plan.array_file import Shape, arrays_hash, arrays_to_bytes, load_arrays
from intact.plan.quantized_graph import Codes, Direction, TensorEnd

_TYPES = frozenset(np.dtype(name) for name in ("i1", "u1", "i2", "u2", "i4"))
_AGAIN = "import the model again"


def baked_to_bytes(baked: Mapping[TensorEnd, Codes]) -> bytes:
    """Encode the file; equal integers give equal bytes."""
    return arrays_to_bytes(_by_text(baked))


def baked_hash(baked: Mapping[TensorEnd, Codes]) -> str:
    """Compute the SHA-256 of the integers in hexadecimal; "" if there are none."""
    return arrays_hash(_by_text(baked))


def load_baked(
    path: Path, graph: Graph, configs: Mapping[TensorEnd, TensorQuantConfig], expected: str
) -> dict[TensorEnd, Codes]:
    """Read integers and check them against their plan.

    Args:
        path: The file; shapes are compared with the constants before memory is allocated.
        graph: The model.
        configs: The configs of the plan: ends must be BAKED, and integers in their range.
        expected: The hash that the plan has.

    Raises:
        PlanError: The file is missing, damaged or belongs to another plan.
    """

    def shape_of(name: str) -> Shape:
        end = TensorEnd.parse(name)
        # Before the array is read: a file that names ends of another plan costs no memory.
        config = configs.get(end)
        if config is None or config.meaning is not StateMeaning.BAKED:
            raise ValueError(f"{end} is not baked in the plan")
        return constant_shape(graph, end)

    found = load_arrays(path, shape_of, _TYPES, expected, what="integers", remedy=_AGAIN)
    baked = {TensorEnd.parse(name): codes for name, codes in found.items()}
    for end, codes in baked.items():
        config = configs[end]
        outside = codes[(codes < config.quant_min) | (codes > config.quant_max)]
        if outside.size:
            raise PlanError(
                f"{path}: cannot be read as integers of a plan ({end} contains {outside[0]}, the "
                f"plan's range is {config.quant_min}..{config.quant_max})"
            )
    return baked


def constant_shape(graph: Graph, end: TensorEnd) -> Shape:
    """Return the shape of the constant at an end.

    Raises:
        ValueError: There is none.
    """
    inputs = graph.node(end.node).inputs if end.direction is Direction.INPUT else ()
    value = inputs[end.slot] if end.slot < len(inputs) else None
    if value is None or not is_constant(value) or value.const_value is None:
        raise ValueError(f"{end} is not a constant of the model")
    return tuple(value.const_value.shape.numpy())


def _by_text(baked: Mapping[TensorEnd, Codes]) -> dict[str, Codes]:
    return {str(end): codes for end, codes in baked.items()}
