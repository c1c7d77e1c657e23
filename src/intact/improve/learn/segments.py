"""Keeps less for the backward pass, which computes the rest again: gradient checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.checkpoint import checkpoint

Values: TypeAlias = dict[str, Tensor]


def run_in_segments(
    run: Callable[[int, int, Values], None],
    count: int,
    segments: int,
    values: Values,
    constants: Mapping[str, Tensor],
) -> Values:
    """Run instructions of which only what crosses from segment to segment is kept.

    Args:
        run: Runs instructions from an index up to another on values by name, in place.
        count: How many instructions there are.
        segments: Into how many parts they are cut.
        values: The inputs by name.
        constants: Values that every segment reads; they are handed on beside what crosses.

    Returns:
        What was left of the values after the last instruction, without the constants.
    """
    edges = [round(count * k / segments) for k in range(segments + 1)]
    for first, end in itertools.pairwise(edges):

        def segment(
            *tensors: Tensor,
            at: tuple[int, int] = (first, end),
            # By default arguments: the closure would see the last segment when it is computed
            # again.
            names: tuple[str, ...] = tuple(values),
        ) -> Values:
            inside = {**constants, **dict(zip(names, tensors, strict=True))}
            run(*at, inside)
            return {key: each for key, each in inside.items() if key not in constants}

        checkpointed: Callable[..., Any] = checkpoint
        values = checkpointed(segment, *values.values(), use_reentrant=False)
    return values
