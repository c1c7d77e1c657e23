"""Declares weights in blocks, as a target can hold them."""

from __future__ import annotations

import enum

import msgspec

from intact.targets.scheme import SchemeOverride


class ScaleType(enum.StrEnum):
    """The type of the scales of blocks in a file."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    """Stored as float16, which kernels round to bfloat16 (LiteRT)."""

    @property
    def bytes(self) -> int:
        """Bytes of a scale in a file."""
        return 4 if self is ScaleType.FLOAT32 else 2


class BlockForm(enum.StrEnum):
    """How a file has a layer with weights in blocks."""

    FUSED = "fused"
    """As one operator that reads codes."""
    DEQUANTIZED = "dequantized"
    """As a float operator behind one that makes floats of codes, row by row."""
    IN_PLACE = "in_place"
    """So too, of codes that lie as the weight lies: nothing stands between the two."""


class BlockActivations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Activations that a layer with weights in blocks quantizes while it runs.

    Attributes:
        scheme: Overrides of ``[activation]``.
        per_block: Whether each row has a scale for each block of the weights; else a row has one,
            computed as ``[[dynamic.overrides]]`` say.
        always: Whether no kernel computes with floats, so that activations are quantized unasked.
        in_float: Widths with sizes of blocks for which the kernels compute with floats
            nevertheless.
        reason: Why a layer computes with integers, for users.
    """

    scheme: SchemeOverride
    per_block: bool = True
    always: bool = False
    in_float: tuple[tuple[int, int], ...] = ()
    reason: str


class Blocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights in blocks, as a target holds them.

    Attributes:
        bits: Widths that codes are stored in, the usual one first. Narrower codes are stored in
            the next of them.
        sizes: How many neighbours a block may have, the usual number first.
        symmetric: Whether blocks have no zero point unless asked for.
        zero_points: Whether blocks may have zero points.
        float_zero_points: Widths whose zero points may lie between the codes, as files of others
            have them.
        signed_scales: Whether scales may be negative. A symmetric block then uses its lowest code
            for the value of largest magnitude.
        scale_type: The type of scales.
        tables: Whether tables that are looked up may have them.
        ragged: Whether the last block of a row may be shorter than the others.
        form: How a layer is written.
        dynamic: Activations that are quantized while the model runs; None where they are float.
        reason: Completes "weights only: "; what users see of such a layer.
    """

    bits: tuple[int, ...]
    sizes: tuple[int, ...]
    symmetric: bool = True
    zero_points: bool = True
    float_zero_points: tuple[int, ...] = ()
    signed_scales: bool = False
    scale_type: ScaleType = ScaleType.FLOAT32
    tables: bool = True
    ragged: bool = True
    form: BlockForm = BlockForm.FUSED
    dynamic: BlockActivations | None = None
    reason: str

    def holds_between(self, bits: int) -> bool:
        """Tell whether zero points of a width may lie between the codes.

        Those of DequantizeLinear are codes.
        """
        return bits in self.float_zero_points and self.form is BlockForm.FUSED

    def stored_bits(self, bits: int) -> int:
        """Return the width in which codes are stored.

        Raises:
            ValueError: They are wider than all.
        """
        return min(width for width in self.bits if width >= bits)
