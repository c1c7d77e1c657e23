"""Declares the user's overrides of a target: nodes kept float, other bit-widths."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from intact.errors import UsageError, nearest
from intact.graph import Graph
from intact.plan.quantized_graph import Direction, Note, NoteKind, TensorEnd

_PART = re.compile(r"(?P<node>.+)\.(weight|(input|output)(\[\d+\])?)", re.DOTALL)


WIDEST_CODES = 16
"""Wider integers are accumulators: the target decides their width."""


class Overrides(msgspec.Struct, frozen=True):
    """The user's overrides of a target.

    Attributes:
        keep_float: What stays float: nodes, operator types, scopes or patterns (see `resolved`).
        bits: Bit-widths by place: ``NODE`` (its weight, or its output if it has none),
            ``NODE.weight``, ``NODE.input``, ``NODE.output`` or ``NODE.input[K]``. The most specific
            one applies.
        blocks: Sizes of blocks of weights by node, where weights are in blocks; others have the
            target's.
        weight_bits: Bit-width of all weights; None for the target's.
        activation_bits: Bit-width of all activations; None for the target's.
        widths: Bit-widths of single ends, as chosen by a search. They take precedence over
            ``bits`` and are ignored at ends that are not quantized.
        apart: Inputs of joins that are requantized, because what they join has unlike ranges (see
            `intact.plan.untie`); ignored where nothing is quantized.
    """

    keep_float: tuple[str, ...] = ()
    bits: Mapping[str, int] = msgspec.field(default_factory=dict)
    blocks: Mapping[str, int] = msgspec.field(default_factory=dict)
    weight_bits: int | None = None
    activation_bits: int | None = None
    widths: Mapping[TensorEnd, int] = msgspec.field(default_factory=dict)
    apart: frozenset[TensorEnd] = frozenset()

    def resolved(self, graph: Graph) -> ResolvedOverrides:
        """Return the overrides by the names that a graph has.

        A name is that of a node in the graph or in the given model, an operator type of either, a
        scope (``/head``, for all nodes ``/head/...``) or a pattern (``/head/*``). What was folded
        stands for what it was folded into.

        Raises:
            UsageError: A name fits nothing, with the nearest one; or a width is not 2 to 16.
        """
        names = _Names(graph)
        kept: dict[str, None] = {}
        for name in self.keep_float:
            kept.update(dict.fromkeys(names.find("--keep-float", name)))
        bits, asked = names.resolve("--bits", self.bits)
        blocks, asked_blocks = names.resolve("--node-block", self.blocks)
        self._check_widths()
        own = msgspec.structs.replace(self, keep_float=tuple(kept), bits=bits, blocks=blocks)
        return ResolvedOverrides(own, asked, names.notes(), asked_blocks)

    def _check_widths(self) -> None:
        widths = {
            **{f"--bits {place!r}": bits for place, bits in self.bits.items()},
            "--weight-bits": self.weight_bits,
            "--activation-bits": self.activation_bits,
            **{str(end): bits for end, bits in self.widths.items()},
        }
        for where, bits in widths.items():
            if bits is not None and not 2 <= bits <= WIDEST_CODES:
                raise UsageError(
                    f"{where}: {bits} bits", remedy=f"give a width from 2 to {WIDEST_CODES}"
                )

    def without(self, names: Collection[str]) -> Overrides:
        """Leave out what is said of these nodes and operator types."""
        bits, blocks = (
            {place: number for place, number in given.items() if not self._is_of(place, names)}
            for given in (self.bits, self.blocks)
        )
        kept = tuple(name for name in self.keep_float if name not in names)
        return msgspec.structs.replace(self, keep_float=kept, bits=bits, blocks=blocks)

    def _is_of(self, place: str, names: Collection[str]) -> bool:
        return place in names or self.place_node(place) in names

    @staticmethod
    def place_node(place: str) -> str:
        """Return the node of a place in ``bits``; the place itself if it has no suffix.

        >>> Overrides.place_node("block/conv.1.input[0]")
        'block/conv.1'
        """
        match = _PART.fullmatch(place)
        return match["node"] if match else place

    def places(self, end: TensorEnd, *, is_weight: bool, has_weight: bool) -> tuple[str, ...]:
        """List the places of ``bits`` that match an end, the most specific first.

        Args:
            end: The tensor end.
            is_weight: Whether the end is a weight.
            has_weight: Whether the node has a weight, which a bare ``NODE`` means.
        """
        part = "weight" if is_weight else str(end.direction)
        is_bare = is_weight or (not has_weight and end.direction is Direction.OUTPUT)
        places = (str(end), f"{end.node}.{part}", *([end.node] if is_bare else []))
        return tuple(place for place in places if place in self.bits)

    def bits_at(self, end: TensorEnd, *, is_weight: bool, has_weight: bool) -> int | None:
        """Return the overridden width at an end (see ``places``); None for the target's."""
        if end in self.widths:
            return self.widths[end]
        for place in self.places(end, is_weight=is_weight, has_weight=has_weight):
            return self.bits[place]
        return self.weight_bits if is_weight else self.activation_bits

    def block_at(self, node: str) -> int | None:
        """Return the size of the blocks of a node's weight; None for the target's."""
        return self.blocks.get(f"{node}.weight", self.blocks.get(node))


class ResolvedOverrides(msgspec.Struct, frozen=True):
    """Overrides by the names of a graph.

    Attributes:
        overrides: Their names are those of nodes and operator types of the graph.
        asked: What the user wrote, by the place in ``overrides.bits`` that it stands for.
        notes: What became of nodes that were named and are gone.
        asked_blocks: As ``asked``, of ``overrides.blocks``.
    """

    overrides: Overrides
    asked: Mapping[str, str]
    notes: tuple[Note, ...]
    asked_blocks: Mapping[str, str] = msgspec.field(default_factory=dict)


class _Names:
    """The names by which users call the nodes of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._types: dict[str, list[str]] = {}
        for node in graph.nodes:
            self._types.setdefault(node.op_type, []).append(str(node.name))
        self._names = {str(node.name) for node in graph.nodes}
        self._folded: dict[tuple[str, ...], dict[str, str]] = {}

    def has_place(self, place: str) -> bool:
        """Tell whether a place of ``bits`` names one node of the graph."""
        return place in self._names or Overrides.place_node(place) in self._names

    def find(self, flag: str, name: str) -> list[str]:
        """Return the nodes, or the operator type, that a name stands for.

        Raises:
            UsageError: There are none.
        """
        if name in self._names:
            return [name]
        given = self._graph.given_nodes
        # In this order: (1) a node of the graph; (2) one of the given model; (3) an operator type
        # of either; (4) a scope or pattern. What is more specific wins.
        if name in given:
            return self._parts(flag, name)
        of_type = [node for node, each in given.items() if each.op_type == name]
        if name in self._types or of_type:
            own = [name] if name in self._types else []
            return [*own, *self._all_parts(flag, of_type)]
        fits = _pattern(name)
        own = [node for node in self._names if fits(node)]
        gone = [
            n for n, each in given.items() if fits(n) and n not in self._names and each.computes
        ]
        if not own and not gone:
            known = self._names | set(self._types) | set(given)
            raise UsageError(
                f"{flag} {name!r}: the model has no such node or op type",
                remedy=nearest(name, known),
            )
        return [*sorted(own), *self._all_parts(flag, gone)]

    def resolve(self, flag: str, given: Mapping[str, int]) -> tuple[dict[str, int], dict[str, str]]:
        """Return numbers by the places of single nodes, and what the user wrote for each."""
        numbers: dict[str, int] = {}
        asked: dict[str, str] = {}
        # Names of one node come last, and replace what a scope or pattern said of it.
        for place, number in sorted(given.items(), key=lambda each: self.has_place(each[0])):
            for end in self.places(flag, place):
                numbers[end], asked[end] = number, place
        return numbers, asked

    def places(self, flag: str, place: str) -> list[str]:
        """Return the places of a graph's nodes that a place of ``bits`` stands for."""
        if self.has_place(place):
            return [place]
        node = place if place in self._graph.given_nodes else Overrides.place_node(place)
        nodes: dict[str, None] = {}
        for name in self.find(flag, node):
            nodes.update(dict.fromkeys([name] if name in self._names else self._types[name]))
        return [f"{name}{place[len(node) :]}" for name in nodes]

    def _parts(self, flag: str, name: str) -> list[str]:
        """Return what a node of the given model became, and note that.

        Raises:
            UsageError: Nothing of it is left.
        """
        given = self._graph.given_nodes[name]
        nodes = [node for node in given.nodes if node in self._names]
        if not nodes:
            raise UsageError(
                f"{flag} {name!r}: nothing of that {given.op_type} is left to compute: its result "
                "is constant, or no output needs it",
                remedy="leave it out",
            )
        if name not in self._names:
            self._folded.setdefault(tuple(nodes), {})[name] = given.op_type
        return nodes

    def notes(self) -> tuple[Note, ...]:
        """Say what became of the nodes that were named and are gone, once for each place."""
        found = []
        for nodes, folded in self._folded.items():
            name, op_type = next(iter(folded.items()))
            others = f" and {len(folded) - 1} other node(s) are" if len(folded) > 1 else " is"
            shown = ", ".join(map(repr, nodes[:3])) + (", ..." if len(nodes) > 3 else "")
            message = f"{op_type}{others} folded into {shown}: what was asked for holds there"
            found.append(Note(NoteKind.REWRITE, name, message))
        return tuple(found)

    def _all_parts(self, flag: str, names: Iterable[str]) -> list[str]:
        """Return what several nodes became; of those without a trace nothing is asked."""
        given = self._graph.given_nodes
        left = [name for name in names if self._names.intersection(given[name].nodes)]
        return [node for name in left for node in self._parts(flag, name)]


def _pattern(name: str) -> Callable[[str], bool]:
    """Return what tells whether a node belongs to a scope, or fits a pattern."""
    # PyTorch's exporters name scopes with slashes, the newer one with dots.
    scopes = tuple(f"{name.rstrip('/.')}{mark}" for mark in "/.")
    if any(mark in name for mark in "*?["):
        fits = re.compile(fnmatch.translate(name)).fullmatch
        return lambda node: fits(node) is not None
    return lambda node: node.startswith(scopes)
