"""Tells in which widths a target can keep keys and values of decoders as codes."""

from __future__ import annotations

import enum

import msgspec

from intact.errors import UsageError
from intact.targets.schema import Caches
from intact.targets.scheme import DType, Granularity, TensorScheme


class CacheScales(enum.StrEnum):
    """For what a cache has one scale."""

    TENSOR = "tensor"
    """For all of it."""
    CHANNEL = "channel"
    """For each channel of a head."""


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
