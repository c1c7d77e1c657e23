"""Cuts a plan into pieces that are int8 or float as wholes, and solves for the cheapest.

A conversion between the two costs time as well, so that a fast float layer between int8 layers may
still be better in int8: a minimum cut finds the best of all placements.

`Pieces.of` cuts a plan, `Costs` has the times of pieces and conversions, and `Costs.cheapest` gives
a bool for each piece, True for those to keep in float. For three layers in a row with the times 5,
1, 5 in float and 2, 2, 2 in int8, and conversions of 1 each, it is ``[False, False, False]``: all
in int8 takes 6, with the middle layer in float 2 + 1 + 1 + 1 + 2 = 7, and both ends are converted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import IMPLICIT_SLOT, is_constant
from intact.numerics.min_cut import cheapest_labels
from intact.plan import QuantizedGraph
from intact.plan.quantized_graph import quantizes
from intact.program.lower.chains import Points, chains


class Line(msgspec.Struct, frozen=True):
    """The time of a conversion as a line: a fixed part, and one for each element.

    Attributes:
        fixed: Seconds of any.
        each: Seconds of one element.
    """

    fixed: float = 0.0
    each: float = 0.0

    def at(self, elements: int) -> float:
        """Return the seconds for a tensor."""
        return self.fixed + self.each * elements


class Tensor(NamedTuple):
    """A tensor between pieces, by their indices.

    Attributes:
        producer: The piece that writes it; None for what is always float.
        readers: The pieces that read it as codes where they compute with integers.
        in_float: Whether something that is always float reads it.
        source: The name of the node or input that writes it.
        gives_float: Whether its producer writes floats for nothing where no reader wants codes.
    """

    producer: int | None
    readers: tuple[int, ...]
    in_float: bool
    source: str
    gives_float: bool = False


@dataclass(frozen=True)
class Pieces:
    """The parts of a plan that are integer or float as wholes.

    Attributes:
        names: The nodes of each: fused nodes are together.
        tensors: What lies between them.
        of_node: The piece of each quantized node, by name.
    """

    names: tuple[tuple[str, ...], ...]
    tensors: tuple[Tensor, ...]
    of_node: Mapping[str, int]

    @staticmethod
    def of(plan: QuantizedGraph) -> Pieces:
        """Divide a plan that has as much in integers as can be."""
        names = [
            tuple(str(node.name) for node in chain)
            for chain in chains(plan, Points.of(plan))
            if any(plan.is_quantized(node) for node in chain)
        ]
        of_node = {name: index for index, piece in enumerate(names) for name in piece}
        return Pieces(tuple(names), tuple(_tensors(plan, of_node)), of_node)

    def nodes(self, kept: npt.NDArray[np.bool_]) -> tuple[str, ...]:
        """Name the nodes of the pieces that are marked."""
        return tuple(
            name
            for piece, is_kept in zip(self.names, kept, strict=True)
            if is_kept
            for name in piece
        )

    def mark(self, names: Collection[str]) -> npt.NDArray[np.bool_]:
        """Mark the pieces of which all nodes are named."""
        return np.array([all(name in names for name in piece) for piece in self.names], np.bool_)


@dataclass(frozen=True)
class Costs:
    """What pieces and conversions take, in seconds or in a unit of the target's.

    Attributes:
        in_float: The time of each piece, float64 ``[pieces]``.
        in_integers: The time of each in integers, float64 ``[pieces]``.
        quantize: The time that a tensor takes to become codes.
        dequantize: The time that a tensor takes to become floats.
        elements: Elements of tensors, by the node or input that writes them.
    """

    in_float: npt.NDArray[np.float64]
    in_integers: npt.NDArray[np.float64]
    quantize: Line
    dequantize: Line
    elements: Mapping[str, int]

    def total(self, pieces: Pieces, kept: npt.NDArray[np.bool_]) -> float:
        """Return what a placement costs.

        Args:
            pieces: The pieces.
            kept: Which of them are float, bool ``[pieces]``.
        """
        total = float(np.where(kept, self.in_float, self.in_integers).sum())
        for tensor in pieces.tensors:
            elements = self.elements.get(tensor.source, 0)
            is_float = tensor.producer is None or bool(kept[tensor.producer])
            if is_float and not all(kept[list(tensor.readers)]):
                total += self.quantize.at(elements)
            if not is_float and (tensor.in_float or any(kept[list(tensor.readers)])):
                total += self._float_cost(tensor, elements)
        return total

    def cheapest(
        self, pieces: Pieces, penalties: Sequence[float] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Return which pieces to keep in float so that the whole costs least, as `total` counts.

        Args:
            pieces: The pieces.
            penalties: Further costs of each piece in integers.
        """
        count = len(pieces.names)
        penalty = np.zeros(count) if penalties is None else np.asarray(penalties, np.float64)
        # As a minimum cut: a node for each piece, whose label is its precision, and an edge with
        # the cost of converting wherever two labels may differ.
        costs = [list(pair) for pair in zip(self.in_float, self.in_integers + penalty, strict=True)]
        edges: list[tuple[int, int, float]] = []  # labels: True is integer
        for tensor in pieces.tensors:
            elements = self.elements.get(tensor.source, 0)
            to_codes, to_float = self.quantize.at(elements), self._float_cost(tensor, elements)
            if tensor.producer is None:
                # An input is float: it is quantized once if any reader wants codes, which a node of
                # its own says.
                costs.append([0.0, to_codes])
                edges += [(reader, len(costs) - 1, np.inf) for reader in tensor.readers]
                continue
            if tensor.readers:  # one is True where any reader wants codes, one False where any not
                costs += [[0.0, 0.0], [0.0, 0.0]]
                wants_codes, wants_floats = len(costs) - 2, len(costs) - 1
                edges.append((wants_codes, tensor.producer, to_codes))
                for reader in tensor.readers:
                    edges += [(reader, wants_codes, np.inf), (wants_floats, reader, np.inf)]
                if not tensor.in_float:
                    # Something reads it as float anyway in the other case: that cost is the
                    # producer's alone, below.
                    edges.append((tensor.producer, wants_floats, to_float))
            if tensor.in_float:
                costs[tensor.producer][1] += to_float
        return ~cheapest_labels(np.array(costs, np.float64).reshape(-1, 2), edges)[:count]

    def _float_cost(self, tensor: Tensor, elements: int) -> float:
        return 0.0 if tensor.gives_float else self.dequantize.at(elements)


def _tensors(plan: QuantizedGraph, of_node: Mapping[str, int]) -> Iterator[Tensor]:
    """Yield what lies between pieces, and between them and what is always float."""
    outputs = {str(value.name) for value in plan.graph.outputs}
    for value in plan.graph.values:
        if is_constant(value) or not plan.graph.is_float(value):
            continue
        node = value.producer()
        producer = None if node is None else of_node.get(str(node.name))
        readers: dict[int, None] = {}
        in_float = str(value.name) in outputs
        for reader, slot in plan.graph.consumers(value):
            index = of_node.get(str(reader.name))
            if index is not None and index == producer:
                continue  # inside the piece
            if index is None or slot == IMPLICIT_SLOT or not _takes_codes(plan, reader, slot):
                in_float = True
            else:
                readers[index] = None
        if readers or (producer is not None and in_float):
            source = str(value.name if node is None else node.name)
            yield Tensor(producer, tuple(readers), in_float, source, _gives_float(plan, node))


def _takes_codes(plan: QuantizedGraph, node: ir.Node, slot: int) -> bool:
    config = plan.input_config(node, slot)
    return quantizes(config) or config.dominator is not config


def _gives_float(plan: QuantizedGraph, node: ir.Node | None) -> bool:
    rule = None if node is None else plan.target.rule_for(node)
    return rule is not None and rule.float_output
