"""Declares what a plan may ask of a format."""

from __future__ import annotations

import msgspec


class Expressible(msgspec.Struct, frozen=True):
    """What a plan may ask of a format: for searches, which then propose nothing else.

    Attributes:
        weight_bits: Widths of weights, where a format holds fewer codes than any integers.
        activation_bits: Widths of activations.
        integer_bits: Widths that its runtime computes with integers, of those.
        floats: Whether operators may stay float.
        stored_bits: Widths that its files give to a constant; a code takes the least that holds it.
        logarithmic: Whether levels may be spaced logarithmically.
        dynamic: Whether activations may be quantized while the model runs.
        blocks: Whether weights may have scales in blocks.
        caches: Whether caches of decoders may hold codes.
        open_sizes: Whether tensors may have sizes that are not known, besides the batch.
        batches: Whether a file may compute several samples together.
        number_inputs: Whether inputs may hold whole numbers that are not looked up in a table.
        mixes: Whether activations of several widths may meet.
        half_ends: Whether inputs and outputs may be float16.
        float16: Whether float operators may compute in float16.
        several_scales: Whether a tensor may have scales of their own for some of its readers.
    """

    weight_bits: frozenset[int] = frozenset(range(2, 17))
    activation_bits: frozenset[int] = frozenset(range(2, 17))
    integer_bits: frozenset[int] = frozenset(range(2, 17))
    floats: bool = True
    stored_bits: frozenset[int] = frozenset({4, 8, 16, 32})
    logarithmic: bool = False
    dynamic: bool = False
    blocks: bool = False
    caches: bool = False
    open_sizes: bool = True
    batches: bool = True
    number_inputs: bool = True
    mixes: bool = True
    half_ends: bool = True
    several_scales: bool = True
    float16: bool = False

    def __and__(self, other: Expressible) -> Expressible:
        """Combine two formats: what both express."""
        fields = self.__struct_fields__  # each a set or a flag
        return Expressible(*(getattr(self, name) & getattr(other, name) for name in fields))

    @property
    def packs(self) -> bool:
        """Whether codes of 4 bits are stored two a byte."""
        return 4 in self.stored_bits

    def stored(self, bits: int) -> int:
        """Return the bits that a constant's code of some width takes in a file."""
        return min(width for width in self.stored_bits if width >= bits)


EIGHT_BITS = frozenset({8})


WHOLE_BYTES = frozenset({8, 16, 32})


UP_TO_EIGHT_BITS = frozenset(range(2, 9))


INTEGERS_ALONE = Expressible(
    UP_TO_EIGHT_BITS,
    UP_TO_EIGHT_BITS,
    floats=False,
    stored_bits=WHOLE_BYTES,
    open_sizes=False,
    half_ends=False,
)
"""What formats for machines without floats express."""
