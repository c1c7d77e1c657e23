"""A Slice names only the axes that it cuts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.graph import constant_array, normalize
from tests.models import ModelBuilder

MOST = 2**31 - 1


def sliced(shape: list[str | int], *limits: list[int]) -> ir.Node | None:
    """Return the Slice that is left of one with these starts, ends, axes and steps."""
    builder = ModelBuilder(17)
    x = builder.node("Relu", builder.input("x", shape))
    constants = [builder.constant(np.array(each, np.int64)) for each in limits]
    builder.node("Neg", builder.node("Slice", x, *constants, name="slice"), out="y")
    builder.output("y")
    nodes = normalize(builder.build()).nodes
    return next((node for node in nodes if node.name == "slice"), None)


def axes_of(node: ir.Node) -> list[list[int]]:
    arrays = (constant_array(value) for value in node.inputs[1:])
    return [array.tolist() for array in arrays if array is not None]


@pytest.mark.parametrize("given", [True, False])
def test_the_batch_is_not_cut(*, given: bool) -> None:
    axes = [[0, 1, 2]] if given else []
    node = sliced(["batch", 4, 8], [0, 0, 2], [MOST, MOST, 7], *axes)
    assert node is not None
    assert axes_of(node) == [[2], [7], [2], [1]]


def test_one_that_cuts_nothing_is_removed() -> None:
    assert sliced(["batch", 4, 8], [0, -4, 0], [MOST, MOST, 8], [0, 1, -1]) is None


@pytest.mark.parametrize(
    "limits",
    [
        ([0], [4], [0]),  # the batch may be longer
        ([-4], [MOST], [0]),
        ([0], [3], [1]),
        ([0], [-1], [1]),
        ([1], [MOST], [1]),
        ([0], [MOST], [1], [2]),
    ],
)
def test_what_cuts_stays(limits: tuple[list[int], ...]) -> None:
    node = sliced(["batch", 4], *limits)
    assert node is not None
    assert axes_of(node) == [*limits]
