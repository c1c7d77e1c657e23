"""The user's overrides of a target: nodes kept float, other bit-widths."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from intact.errors import UsageError, nearest
from intact.graph import Graph
from intact.plan.quantized_graph import Direction, TensorEnd

_PART = re.compile(r"(?P<node>.+)\.(weight|(input|output)(\[\d+\])?)", re.DOTALL)


class Overrides(msgspec.Struct, frozen=True):
    """The user's overrides of a target.

    Attributes:
        keep_float: Node names or op types that stay float.
        bits: Bit-widths by place: ``NODE`` (its weight, or its output if it has none),
            ``NODE.weight``, ``NODE.input``, ``NODE.output`` or ``NODE.input[K]``. The most specific
            one applies.
        weight_bits: Bit-width of all weights; None for the target's.
        activation_bits: Bit-width of all activations; None for the target's.
        widths: Bit-widths of single ends, as chosen by a search. They take precedence over
            ``bits`` and are ignored at ends that are not quantized.
        apart: Inputs of joins that are requantized, because what they join has unlike ranges (see
            `intact.plan.untie`); ignored where nothing is quantized.
    """

    keep_float: tuple[str, ...] = ()
    bits: Mapping[str, int] = msgspec.field(default_factory=dict)
    weight_bits: int | None = None
    activation_bits: int | None = None
    widths: Mapping[TensorEnd, int] = msgspec.field(default_factory=dict)
    apart: frozenset[TensorEnd] = frozenset()

    def check(self, graph: Graph) -> None:
        """Check that the names exist in the graph and that widths are 2 to 16.

        Raises:
            UsageError: One is wrong; the message has the nearest name.
        """
        names = {str(node.name) for node in graph.nodes}
        types = {node.op_type for node in graph.nodes}
        for name in self.keep_float:
            if name not in names and name not in types:
                raise UsageError(
                    f"--keep-float {name!r}: the model has no such node or op type",
                    remedy=nearest(name, names | types),
                )
        for place in self.bits:
            if self.place_node(place) not in names and place not in names:
                raise UsageError(
                    f"--bits {place!r}: the model has no such node",
                    remedy=nearest(self.place_node(place), names),
                )
        widths = {
            **{f"--bits {place!r}": bits for place, bits in self.bits.items()},
            "--weight-bits": self.weight_bits,
            "--activation-bits": self.activation_bits,
            **{str(end): bits for end, bits in self.widths.items()},
        }
        for where, bits in widths.items():
            if bits is not None and not 2 <= bits <= 16:
                raise UsageError(f"{where}: {bits} bits", remedy="give a width from 2 to 16")

    def without(self, names: Collection[str]) -> Overrides:
        """Leave out what is said of these nodes and operator types."""
        bits = {place: bits for place, bits in self.bits.items() if not self._is_of(place, names)}
        kept = tuple(name for name in self.keep_float if name not in names)
        return msgspec.structs.replace(self, keep_float=kept, bits=bits)

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
