"""Pads of windows as TFLite says them: SAME, VALID, or a PAD of its own."""

from __future__ import annotations

import numpy as np

from intact.formats.tflite.writing.draft import Draft, Options, RefusedError
from intact.program import Tensor
from intact.program.operations import Pads

SAME, VALID = 0, 1
"""``Padding`` of the schema."""


def spatial_lengths(tensor: Tensor) -> tuple[int, ...]:
    """Return the lengths of the spatial axes."""
    found = tensor.shape[1:-1]
    if None in found:
        raise RefusedError(f"{tensor.name!r} has open spatial axes")
    return tuple(length for length in found if length is not None)


def extents(kernel: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many elements the windows of a kernel span."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))


def used_pads(
    data: Tensor, output: Tensor, pads: Pads, extent: tuple[int, ...], strides: tuple[int, ...]
) -> Pads:
    """Return the pads less what no window reaches behind the data."""
    used = []
    axes = zip(spatial_lengths(data), spatial_lengths(output), pads, extent, strides, strict=True)
    for length, count, (before, after), reach, stride in axes:
        needed = (count - 1) * stride + reach - length - before
        if min(before, after) < 0 or needed > after:
            raise RefusedError(f"pads of {pads} do not give its output shape")
        used.append((before, max(needed, 0)))
    return tuple(used)


def is_same(count: int, length: int, extent: int, stride: int, pads: tuple[int, int]) -> bool:
    """Whether pads are those of SAME: half of what ceil(length / stride) windows lack, first."""
    lack = max((count - 1) * stride + extent - length, 0)
    return count == -(-length // stride) and pads == (lack // 2, lack - lack // 2)


def named_padding(
    data: Tensor, output: Tensor, pads: Pads, extent: tuple[int, ...], strides: tuple[int, ...]
) -> int | None:
    """Return VALID or SAME where the pads are those, else None."""
    if not any(map(any, pads)):
        return VALID
    axes = zip(spatial_lengths(output), spatial_lengths(data), extent, strides, pads, strict=True)
    return SAME if all(is_same(*each) for each in axes) else None


def padded(
    draft: Draft,
    data: Tensor,
    output: Tensor,
    pads: Pads,
    extent: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    fill: float | None = None,
    may_be_same: bool = True,
) -> tuple[int, Tensor]:
    """Return the schema's padding and the data, padded explicitly where need be.

    Args:
        draft: Where the PAD goes.
        data: What is padded.
        output: The operator's result.
        pads: By spatial axis.
        extent: Elements that a window spans.
        strides: By spatial axis.
        fill: Code or float to pad with; None is real 0.
        may_be_same: Whether SAME means these pads if they are of its lengths.
    """
    used = used_pads(data, output, pads, extent, strides)
    named = named_padding(data, output, used, extent, strides)
    if named is not None and (may_be_same or named == VALID):
        return named, data
    lengths = tuple(n + sum(each) for n, each in zip(spatial_lengths(data), used, strict=True))
    shape = (data.shape[0], *lengths, data.shape[-1])
    result = draft.intermediate(f"{data.name}_padded", shape, data.encoding, data)
    table = draft.constant(f"{output.name}_pads", np.asarray([(0, 0), *used, (0, 0)], np.int32))
    version = 1 if data.encoding is None else 2
    if fill is None:
        draft.operator("PAD", (data, table), (result,), Options("PadOptions"), version=version)
        return VALID, result
    kind = np.float32 if data.encoding is None else data.encoding.dtype
    value = draft.constant(f"{output.name}_fill", np.asarray([fill], kind), data.encoding)
    draft.operator(
        "PADV2", (data, table, value), (result,), Options("PadV2Options"), version=version
    )
    return VALID, result
