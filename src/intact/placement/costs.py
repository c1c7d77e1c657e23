"""Finds what pieces cost: from a runtime's profile, or from the target's cost table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from intact.data.batching import Batch
from intact.errors import IntactError
from intact.formats.base.format import Kernel
from intact.graph import is_constant
from intact.ops.operators import DequantizeLinear, QuantizeLinear
from intact.placement.pieces import Costs, Line, Pieces
from intact.plan import QuantizedGraph
from intact.search.cost.kinds import elements as elements_of
from intact.search.cost.kinds import is_product, products
from intact.search.cost.structure import Shapes
from intact.targets import DType

_QUANTIZE, _DEQUANTIZE = QuantizeLinear.name, DequantizeLinear.name
USUAL = Line(5e-6, 0.4e-9)
"""The time of a conversion that no profile shows: as on one core of 2021."""


class Profile:
    """The kernels of one model, by the nodes that they compute.

    Args:
        kernels: In the order in which they run.
        plan: The plan of the model.

    Attributes:
        seconds: By node name; kernels of no node count with the one behind them.
        elements: That each node writes.
    """

    def __init__(self, kernels: Sequence[Kernel], plan: QuantizedGraph) -> None:
        self._nodes = {str(node.name) for node in plan.graph.nodes}
        self._writers = {
            str(value.name): str(node.name)
            for node in plan.graph.nodes
            for value in node.outputs
            if value.name
        }
        self._conversions: dict[str, list[tuple[int, float]]] = {_QUANTIZE: [], _DEQUANTIZE: []}
        self.seconds: dict[str, float] = {}
        self.elements: dict[str, int] = {}
        # Kernels of no node (a reorder of layouts) are paid by the node that follows, for which
        # they were made; those at the end by the last.
        waiting, last = 0.0, ""
        for kernel in kernels:
            if kernel.op_type in self._conversions:
                point = (max(kernel.reads_elements, kernel.writes_elements), kernel.seconds)
                self._conversions[kernel.op_type].append(point)
                continue
            node = self._node_of(kernel)
            if not node:
                waiting += kernel.seconds
                continue
            self.seconds[node] = self.seconds.get(node, 0.0) + kernel.seconds + waiting
            self.elements[node] = max(self.elements.get(node, 0), kernel.writes_elements)
            waiting, last = 0.0, node
        if last:
            self.seconds[last] += waiting

    def piece_seconds(self, pieces: Pieces) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the seconds of each piece."""
        return np.array(
            [sum(self.seconds.get(n, 0.0) for n in p) for p in pieces.names], np.float64
        )

    def outside(self, pieces: Pieces) -> float:
        """Return the seconds of all nodes that are in no piece."""
        return sum(s for name, s in self.seconds.items() if name not in pieces.of_node)

    @property
    def quantize(self) -> Line:
        """The time of quantizing a tensor."""
        return _line(self._conversions[_QUANTIZE])

    @property
    def dequantize(self) -> Line:
        """The time of dequantizing a tensor."""
        return _line(self._conversions[_DEQUANTIZE])

    def _node_of(self, kernel: Kernel) -> str:
        """Return the node that a kernel computes; the last of several that are fused."""
        for name in kernel.computes:
            if name in self._nodes:
                return name
            if name in self._writers:
                return self._writers[name]
        return ""


def _line(points: Sequence[tuple[int, float]]) -> Line:
    """Fit a line to times by elements, from the usual one where there are none."""
    if not points:
        return USUAL
    fixed = min(seconds for _, seconds in points)
    # The slope from the largest tensors, where the fixed part is least of the time; the median, as
    # one may have been interrupted.
    largest = sorted(points)[-3:]
    each = float(np.median([max(seconds - fixed, 0.0) / max(n, 1) for n, seconds in largest]))
    smallest = min(points)[0]
    if each <= 0:  # all of one size
        return Line(0.0, fixed / max(smallest, 1))
    return Line(max(fixed - each * smallest, 0.0), each)


def measured_costs(pieces: Pieces, in_float: Profile, in_integers: Profile, feeds: Batch) -> Costs:
    """Return the costs that two profiles show.

    Args:
        pieces: The pieces of the plan with all integers.
        in_float: The profile of the float model.
        in_integers: The profile of that plan.
        feeds: What both were run on.
    """
    sizes = {name: int(array.size) for name, array in feeds.items()}
    return Costs(
        in_float.piece_seconds(pieces),
        in_integers.piece_seconds(pieces),
        in_integers.quantize,
        in_integers.dequantize,
        {**sizes, **in_float.elements, **in_integers.elements},
    )


def correct(
    costs: Costs, pieces: Pieces, mixed: Profile, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Costs:
    """Return costs in which pieces take what they took in a model of both precisions.

    A float piece among integer ones may need another layout than among its like.
    """
    seen = mixed.piece_seconds(pieces)
    # A piece without a kernel of its own was fused into another: its old cost stands.
    known = seen > 0
    return replace(
        costs,
        in_float=np.where(kept & known, seen, costs.in_float),
        in_integers=np.where(~kept & known, seen, costs.in_integers),
    )


def table_costs(plan: QuantizedGraph, pieces: Pieces, feeds: Batch) -> Costs | None:
    """Return the costs of the target's file; None where it has none, or shapes are not known.

    Its entries are relative: ``"Conv.float32" = 3.3`` is what a product of a Conv costs in float,
    ``"QuantizeLinear.uint8" = 2.0`` an element that becomes a code. What has no entry costs 1.
    """
    if not plan.target.cost:
        return None
    try:
        shapes = Shapes(plan.graph, dict(feeds) or None)
        counts = {
            str(node.name): products(node, shapes)
            if is_product(node)
            else elements_of(node, shapes)
            for node in plan.graph.nodes
            if str(node.name) in pieces.of_node
        }
        sizes = {
            str(value.name if (node := value.producer()) is None else node.name): int(
                np.prod(shapes.of(value), dtype=np.int64)
            )
            for value in plan.graph.values
            if not is_constant(value) and plan.graph.is_float(value)
        }
    except IntactError:
        return None
    by_name = {str(node.name): node for node in plan.graph.nodes}
    activation = plan.target.activation.dtype

    def cost(piece: Sequence[str], dtype: DType) -> float:
        return sum(
            counts[name] * plan.target.cost_of(by_name[name].op_type, dtype)
            for name in piece[:1]  # the others are fused with it
        )

    def line(name: str) -> Line:
        return Line(0.0, plan.target.cost_of(name, activation))

    return Costs(
        np.array([cost(piece, DType.FLOAT32) for piece in pieces.names], np.float64),
        np.array([cost(piece, activation) for piece in pieces.names], np.float64),
        line(_QUANTIZE),
        line(_DEQUANTIZE),
        sizes,
    )


def signature(plan: QuantizedGraph, piece: Sequence[str]) -> list[str]:
    """Say all of a piece that its time depends on, besides the shapes of the model's inputs."""
    found = []
    for name in piece:
        node = plan.graph.node(name)
        attributes = sorted(f"{key}={value.value}" for key, value in node.attributes.items())
        shapes = [str(None if v is None else (v.shape, v.dtype)) for v in node.inputs]
        widths = [
            str(plan.input_config(node, slot).bits)
            for slot, value in enumerate(node.inputs)
            if value is not None
        ]
        found += [node.op_type, *attributes, *shapes, *widths]
    return found
