"""Finds chains of nodes that the hardware computes as one operation.

A convolution and the Relu behind it are a chain, for example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from intact.graph import IMPLICIT_SLOT
from intact.plan import QuantizedGraph, QuantPoint, quantization_points


@dataclass(frozen=True)
class Points:
    """The quantization points of a plan, by where they lie.

    Attributes:
        at_output: By value: the producer's result is quantized.
        at_input: By node name and slot: the reader quantizes.
    """

    at_output: dict[ir.Value, QuantPoint]
    at_input: dict[tuple[str, int], QuantPoint]

    @staticmethod
    def of(plan: QuantizedGraph) -> Points:
        """Find them."""
        at_output: dict[ir.Value, QuantPoint] = {}
        at_input: dict[tuple[str, int], QuantPoint] = {}
        for point in quantization_points(plan):
            if point.at_output:
                at_output[point.value] = point
            else:
                at_input |= {(str(node.name), slot): point for node, slot in point.readers}
        return Points(at_output, at_input)


def chains(plan: QuantizedGraph, points: Points) -> Iterator[tuple[ir.Node, ...]]:
    """Yield every node once, alone or with those that follow it inside one operation.

    A quantized node whose result is not quantized, and is read by nothing but one other quantized
    node, is computed inside that one. A chain comes where its last node stands, so that all it
    reads is there.
    """
    chain_of: dict[ir.Node, list[ir.Node]] = {}
    for node in plan.graph.nodes:
        heads = [
            chain_of[producer]
            for value in node.inputs
            if value is not None
            and (producer := value.producer()) is not None
            and _continues(plan, points, producer, node)
        ]
        # Of two producers that could continue here the first takes the node in; the other chain
        # ends.
        chain = heads[0] if heads else []
        chain.append(node)
        chain_of[node] = chain
    for node, chain in chain_of.items():
        if chain[-1] is node:
            yield tuple(chain)


def _continues(plan: QuantizedGraph, points: Points, producer: ir.Node, reader: ir.Node) -> bool:
    """Tell whether a node's result exists only inside the node that reads it."""
    if not (plan.is_quantized(producer) and plan.is_quantized(reader)):
        return False
    # Of several results a reader takes one, and the others would have nobody who computes them.
    if len([value for value in producer.outputs if value.name]) != 1:
        return False
    value = producer.outputs[0]
    if value.is_graph_output() or value in points.at_output:
        return False
    readers = plan.graph.consumers(value)
    return all(
        node is reader and slot != IMPLICIT_SLOT and (str(node.name), slot) not in points.at_input
        for node, slot in readers
    )
