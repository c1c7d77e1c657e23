"""Packs codes of 2, 4 or 8 bits into bytes, the low bits first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_BYTE = 8


def pack_bits(codes: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Pack codes along the last axis; a last byte that is not full ends in zeros.

    Args:
        codes: Integers from 0 to ``2**bits - 1``, ``[..., n]``.
        bits: 1, 2, 4 or 8.

    Returns:
        Bytes ``[..., ceil(n * bits / 8)]``.

    >>> pack_bits(np.array([1, 2, 3]), 4).tolist()
    [33, 3]
    """
    each = _BYTE // bits
    found = np.asarray(codes).astype(np.uint8, copy=False)
    missing = -found.shape[-1] % each
    if missing:
        found = np.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, missing)])
    # A copy, which the others are added to in place.
    packed = np.ascontiguousarray(found[..., ::each])
    for place in range(1, each):
        packed |= found[..., place::each] << np.uint8(place * bits)
    return packed


def unpack_bits(packed: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.uint8]:
    """Return the first ``count`` codes along the last axis of what `pack_bits` packed.

    >>> unpack_bits(np.array([33, 3], np.uint8), 4, 3).tolist()
    [1, 2, 3]
    """
    each = _BYTE // bits
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * each), np.uint8)
    mask = np.uint8((1 << bits) - 1)
    for place in range(each):
        codes[..., place::each] = (packed >> np.uint8(place * bits)) & mask
    return codes[..., :count]
