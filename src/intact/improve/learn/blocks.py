"""Cuts a network into blocks, at tensors that everything behind them goes through.

A residual network is cut behind its Adds, for example: no other tensor reaches later layers there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from intact.improve.learn.instructions import Compute, Instruction, Program, Quantize


@dataclass(frozen=True)
class Steps:
    """The instructions of a program, those that compute constants apart.

    Attributes:
        steps: What depends on the model's inputs, in order.
        constants: What depends on constants alone, in order.
        fixed: The keys of all constants: those that the program begins with, and those computed.
        outputs: The keys of the model's outputs.
    """

    steps: tuple[Instruction, ...]
    constants: tuple[Instruction, ...]
    fixed: frozenset[str]
    outputs: tuple[str, ...]

    @staticmethod
    def of(program: Program, constants: Collection[str]) -> Steps:
        """Divide a program.

        Args:
            program: The program.
            constants: The keys of the constants that it begins with.
        """
        known, fixed, steps = set(constants), [], []
        for each in program.instructions:
            if all(key in known for key in each.reads if key):
                known |= set(each.writes)
                fixed.append(each)
            else:
                steps.append(each)
        return Steps(tuple(steps), tuple(fixed), frozenset(known), program.outputs)

    def constants_for(self, first: int, end: int) -> tuple[Instruction, ...]:
        """Return the instructions for the constants that some of the steps read."""
        wanted = {key for step in self.steps[first:end] for key in step.reads}
        found = []
        # From the end: what a wanted constant is computed from stands before it.
        for each in reversed(self.constants):
            if wanted & set(each.writes):
                found.append(each)
                wanted |= set(each.reads)
        return tuple(found[::-1])

    def alive(self) -> list[frozenset[str]]:
        """Return for each position, 0 to the number of steps, what is read behind it.

        Only what steps or the model's inputs give counts, no constants: every block has those.
        """
        made: dict[str, int] = {}
        last: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            for key in step.reads:
                if key and key not in self.fixed:
                    made.setdefault(key, 0)
                    last[key] = index
            made |= dict.fromkeys(step.writes, index + 1)
        places: list[set[str]] = [set() for _ in range(len(self.steps) + 1)]
        for key, index in last.items():
            for at in range(made[key], index + 1):
                places[at].add(key)
        return [frozenset(each) for each in places]


@dataclass(frozen=True)
class Block:
    """Some steps in a row that are learned together.

    Attributes:
        first: The first step.
        end: The step behind the last.
        reads: What its steps and later ones read of what was before it.
        writes: Its own results: what later steps read, or the model returns.
        keeps: What steps behind it read, of its own results and of what was before it.
        layers: The names of the nodes in it whose weights are learned.
        node: The name of the last node in it.
    """

    first: int
    end: int
    reads: frozenset[str]
    writes: tuple[str, ...]
    keeps: frozenset[str]
    layers: tuple[str, ...]
    node: str


def articulations(steps: Steps, sizes: Mapping[str, int]) -> dict[int, str]:
    """Find the tensors that everything behind them goes through.

    Integers (lengths, indices, masks) that run beside them do not count: rounding does not change
    them, and they may be alive everywhere.

    Args:
        steps: The steps of a program.
        sizes: The elements of each tensor of floats, of one sample, by key.

    Returns:
        The keys by position: the number of steps in front of a cut. A tensor that is quantized is
        cut behind its quantizer.
    """
    found: dict[int, str] = {}
    places = steps.alive()
    edges = [i for i, step in enumerate(steps.steps) if isinstance(step, Compute)]
    for before, after in pairwise(edges):
        single = [p for p in range(before + 1, after + 1) if _single(places[p], sizes)]
        quantized = [p for p in single if isinstance(steps.steps[p - 1], Quantize)]
        if single:
            # Behind a quantizer if there is one, so that it is learned with what it quantizes.
            at = quantized[-1] if quantized else single[0]
            found[at] = _single(places[at], sizes)
    return found


def _single(keys: Collection[str], sizes: Mapping[str, int]) -> str:
    floats = [key for key in keys if key in sizes]
    return floats[0] if len(floats) == 1 else ""


def blocks(
    steps: Steps, sizes: Mapping[str, int], layers: Collection[str], most: int, largest: int
) -> tuple[Block, ...]:
    """Cut a program into blocks; every step is in one.

    Between articulation points parts are joined to blocks of up to ``most`` layers, so that the
    tensors between blocks are as small as possible: that are the bottlenecks of inverted
    residuals, say, and blocks have as few neighbours as can be.

    Args:
        steps: The steps of a program.
        sizes: The elements of each tensor of floats, of one sample, by key.
        layers: The nodes whose weights are learned.
        most: Layers of a joined block.
        largest: Layers of a part without articulation points; one of more is cut at its layers.
    """
    at_layer = [isinstance(s, Compute) and s.node in layers for s in steps.steps]
    found = articulations(steps, sizes)
    edges = _join_parts(found, at_layer, sizes, most)
    cuts = [edges[0]]
    for first, end in pairwise(edges):
        inside = [index for index in range(first, end) if at_layer[index]]
        if len(inside) > max(most, largest):
            cuts += inside[1:]
        cuts.append(end)
    places = steps.alive()
    return tuple(_block(steps, places, layers, first, end) for first, end in pairwise(cuts))


def _join_parts(
    found: Mapping[int, str], at_layer: Sequence[bool], sizes: Mapping[str, int], most: int
) -> list[int]:
    """Choose positions with the least sum of sizes such that joined parts have few layers."""
    places = sorted({0, *found, len(at_layer)})
    counts = [sum(at_layer[a:b]) for a, b in pairwise(places)]
    best: list[tuple[int, int]] = [(0, -1)]  # sum of sizes up to here, place before
    for end in range(1, len(places)):
        options = []
        for first in range(end - 1, -1, -1):
            # A single part is taken whatever it has: it cannot be cut here.
            if first < end - 1 and sum(counts[first:end]) > most:
                break
            options.append((best[first][0], first))
        # Of equal sums the latest start: blocks stay small.
        total, first = min(options, key=lambda option: (option[0], -option[1]))
        best.append((total + sizes.get(found.get(places[end], ""), 0), first))
    chosen, at = [len(places) - 1], len(places) - 1
    while at > 0:
        at = best[at][1]
        chosen.append(at)
    return [places[index] for index in reversed(chosen)]


def _block(
    steps: Steps, places: Sequence[frozenset[str]], layers: Collection[str], first: int, end: int
) -> Block:
    inside = steps.steps[first:end]
    own = [key for step in inside for key in step.writes if key]
    kept = places[end] | set(steps.outputs)
    nodes = [step.node for step in inside if isinstance(step, Compute)]
    return Block(
        first,
        end,
        places[first],
        tuple(key for key in own if key in kept),
        places[end],
        tuple(node for node in nodes if node in layers),
        nodes[-1] if nodes else "",
    )
