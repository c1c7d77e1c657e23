"""Which release of TensorRT reads which ONNX opset.

Source: ``docs/operators.md`` of onnx-tensorrt, at the releases named.
"""

from __future__ import annotations

OLDEST = 9
NEWEST = 24
PER_CHANNEL = 13
"""QuantizeLinear has an axis from here on."""

_SINCE = ((13, "8.0"), (17, "8.5"), (19, "9.2"), (NEWEST, "10.15"))
"""Newest opset of a release. Between two releases named, an earlier one may suffice."""


def first_release(opset: int) -> str | None:
    """Return the first of the releases named that reads an opset, None if none does.

    >>> first_release(17), first_release(18), first_release(26)
    ('8.5', '9.2', None)
    """
    return next((release for newest, release in _SINCE if opset <= newest), None)
