"""Finds the nodes behind a quantized tensor, up to where their result is quantized next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.graph import IMPLICIT_SLOT, is_constant
from intact.improve.refine.walk import Array, Arrays, Run, Walk
from intact.plan import QuantizedGraph

_MOST_NODES = 16


@dataclass(frozen=True)
class Block:
    """A reader of a tensor and the nodes behind it, up to the next quantized result.

    Attributes:
        nodes: The nodes, in their order; each reads the one before.
        value: The tensor.
        run: Computes the result of the last node.
        fed: What the nodes read in the quantized model but for the tensor, for each batch.
        wanted: The result in the float model, for each batch.
    """

    nodes: tuple[ir.Node, ...]
    value: ir.Value
    run: Run
    fed: list[Arrays]
    wanted: list[Array]

    @staticmethod
    def behind(plan: QuantizedGraph, walk: Walk, reader: ir.Node, slot: int) -> Block | None:
        """Return the block of a reader of a tensor; None where other inputs are not known yet."""
        value = reader.inputs[slot] if slot != IMPLICIT_SLOT else None
        if value is None or not _is_known(walk, reader, value):
            return None
        nodes, read = [reader], set(reader.inputs)
        while (follower := _follower(plan, walk, nodes[-1])) is not None:
            others = {each for each in follower.inputs if each not in nodes[-1].outputs}
            # A value that is read twice is fed once, and may be quantized otherwise for each
            # reader.
            again = {each for each in others & read if each is not None and not is_constant(each)}
            if again or len(nodes) == _MOST_NODES:
                break
            nodes.append(follower)
            read |= others
        return Block._of(walk, tuple(nodes), value)

    @staticmethod
    def _of(walk: Walk, nodes: tuple[ir.Node, ...], value: ir.Value) -> Block:
        fed: list[Arrays] = [{} for _ in range(walk.batches)]
        floats: list[Arrays] = [{} for _ in range(walk.batches)]
        constants: Arrays = {}
        for node in nodes:
            constants |= walk.constants(node)
            for slot, each in enumerate(node.inputs):
                if each is None or is_constant(each) or not walk.knows(each):
                    continue
                for into, array in zip(floats, walk.in_float(each), strict=True):
                    into[each] = array
                if each is not value:
                    for into, array in zip(fed, walk.quantized(node, slot), strict=True):
                        into[each] = array
        own = {v: v.const_value.numpy() for v in constants if v.const_value is not None}
        run = walk.runner(nodes, constants)
        wanted = [run(arrays | own)[0] for arrays in floats]
        return Block(nodes, value, run, [arrays | constants for arrays in fed], wanted)

    @property
    def name(self) -> str:
        """Name of the last node."""
        return str(self.nodes[-1].name)

    def powers(self, batch: int, array: Array) -> tuple[float, float]:
        """Return signal and noise power of the result for the tensor as it is quantized.

        Args:
            batch: Which one.
            array: The tensor of this batch.
        """
        wanted = self.wanted[batch].astype(np.float64)
        found = self.run({**self.fed[batch], self.value: array})[0]
        return float(np.square(wanted).sum()), float(np.square(found - wanted).sum())


def _is_known(walk: Walk, node: ir.Node, but: ir.Value) -> bool:
    """Tell whether a node has one output and all its inputs are constants or known."""
    if len([value for value in node.outputs if value.name]) != 1 or not node.outputs[0].name:
        return False
    # A body reads values of the graph that are not among the inputs.
    if any(True for a in node.attributes.values() if a.type in _BODIES):
        return False
    return all(
        value is None or value is but or is_constant(value) or walk.knows(value)
        for value in node.inputs
    )


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _follower(plan: QuantizedGraph, walk: Walk, node: ir.Node) -> ir.Node | None:
    """Return the only reader of a node's result, if it takes the result as it is."""
    value = node.outputs[0]
    point = walk.points.at_output.get(value)
    if value.is_graph_output() or (point is not None and not point.is_passed_on):
        return None
    readers = plan.graph.consumers(value)
    if len(readers) != 1:
        return None
    reader, slot = readers[0]
    is_taken = slot != IMPLICIT_SLOT and (str(reader.name), slot) not in walk.points.at_input
    return reader if is_taken and _is_known(walk, reader, value) else None
