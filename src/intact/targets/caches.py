"""Caches of decoders as codes: what a target can keep keys and values in."""

from __future__ import annotations

import enum

import msgspec

from intact.errors import UsageError
from intact.targets.scheme import DType, Granularity, TensorScheme


class CacheScales(enum.StrEnum):
    """For what a cache has one scale."""

    TENSOR = "tensor"
    """For all of it."""
    CHANNEL = "channel"
    """For each channel of a head."""


CACHING = {"GroupQueryAttention": frozenset({4, 8}), "Concat": frozenset({8})}
"""Operators that append to a cache, with the widths in which formats can write one."""


class CacheForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that keep what they append as codes.

    Attributes:
        op: Their type: GroupQueryAttention of ONNX Runtime, or Concat.
        bits: Widths of codes.
        reason: Completes "caches only: "; what users see of such a node.
        lacking: Why there are no other widths, for users.
    """

    op: str
    bits: tuple[int, ...]
    reason: str
    lacking: str = ""


class Caches(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Caches that a target can keep as codes; float keys and values are made of them where read.

    Attributes:
        forms: ``[[cache.form]]`` entries.
        scheme: What is asked for, the same for all caches; None where they are floats, as in
            targets' files.
    """

    forms: tuple[CacheForm, ...] = msgspec.field(name="form", default=())
    scheme: TensorScheme | None = None

    @property
    def bits(self) -> tuple[int, ...]:
        """All widths."""
        return tuple(sorted({bits for form in self.forms for bits in form.bits}))

    def form_of(self, op_type: str) -> CacheForm | None:
        """Return how nodes of a type keep codes; None for nodes that do not."""
        return next((form for form in self.forms if form.op == op_type), None)


def with_caches(caches: Caches | None, target: str, bits: int, scales: CacheScales) -> Caches:
    """Ask for caches of a width.

    Args:
        caches: What a target can do; None for nothing.
        target: Its name.
        bits: The width.
        scales: For what there is one scale.

    Raises:
        UsageError: The target has no such caches.
    """
    if caches is None or not caches.forms:
        raise UsageError(
            f"--cache-bits {bits}: target {target} keeps caches as floats",
            remedy="leave it out, or choose a target that has them: `intact targets`",
        )
    if bits not in caches.bits:
        known = " or ".join(map(str, caches.bits))
        raise UsageError(
            f"--cache-bits {bits}: target {target} keeps caches in {known} bits",
            remedy=f"give {known}",
        )
    is_tensor = scales is CacheScales.TENSOR
    scheme = TensorScheme(
        dtype=DType.INT8,
        bits=bits,
        quant_min=-(1 << bits - 1),
        quant_max=(1 << bits - 1) - 1,
        symmetric=True,
        granularity=Granularity.PER_TENSOR if is_tensor else Granularity.PER_CHANNEL,
    )
    return msgspec.structs.replace(caches, scheme=scheme)
