"""A choice space without the choices that cannot be deployed."""

from __future__ import annotations

from collections.abc import Collection

from intact.search.space import FLOAT, Group, Kind, Space


def deployable(
    space: Space,
    *,
    weight_bits: Collection[int],
    activation_bits: Collection[int],
    floats: bool,
) -> Space:
    """Return a space with only those choices that the formats of a deployment can express.

    A target says what its operators compute, a format what its files can hold: one for integers
    alone has no float operators, one for a runtime that knows int8 only no codes of 4 bits.

    Args:
        space: What target and graph allow.
        weight_bits: Widths that weights may have.
        activation_bits: Widths that activations may have.
        floats: Whether operators may stay float.

    Returns:
        A space in which a group that is left without any choice keeps the target's own width.
    """

    def left(group: Group) -> tuple[int, ...]:
        widths = weight_bits if group.kind is Kind.WEIGHT else activation_bits
        found = (bits for bits in group.choices if (floats if bits == FLOAT else bits in widths))
        return tuple(found) or (group.default,)

    return space.restricted({index: left(group) for index, group in enumerate(space.groups)})
