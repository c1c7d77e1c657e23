"""Computes large constants when they are written, so that one at a time is in memory."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

COMPUTED_AT_ONCE = 1 << 24
"""Bytes of a constant up to which what is made of it is computed at once."""


def computed(
    source: ir.TensorProtocol | None, compute: Callable[[], ir.TensorProtocol], dtype: ir.DataType
) -> ir.TensorProtocol:
    """Return a tensor of a constant's shape that is computed from it, of a large one when written.

    Args:
        source: The constant; None for none that takes memory.
        compute: Makes the tensor.
        dtype: Its type.
    """
    if source is None or source.nbytes <= COMPUTED_AT_ONCE:
        return compute()
    return ir.LazyTensor(compute, dtype, ir.Shape(source.shape.numpy()))
