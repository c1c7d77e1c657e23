"""Scales of activations as the hardware gets them: rounded to what they are stored in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from intact.calibrate.scales.roles import is_parameter
from intact.config import TensorQuantConfig
from intact.numerics.decimals import SMALLEST, six_decimals
from intact.plan import Note, NoteKind, QuantPoint
from intact.targets import ScalePrecision


def store_scales(points: Iterable[QuantPoint], precision: ScalePrecision) -> list[Note]:
    """Round the scales of activations in place, zero points stay; weights are not stored so.

    With ``decimal6`` a scale becomes the float32 that is read from its text of six decimals. One
    that would be read as 0 becomes the smallest that is not: its tensor uses few of the codes, but
    all its values have one.

    Args:
        points: Those of a plan; each has its scale.
        precision: Of the target's arithmetic.

    Returns:
        A note, if scales were raised.
    """
    if precision is not ScalePrecision.DECIMAL6:
        return []
    raised: list[str] = []
    seen: set[int] = set()
    for point in points:
        root = point.config.dominator
        if is_parameter(point) or id(root) in seen or root.params is None:
            continue
        seen.add(id(root))
        if _store(root):
            raised.append(str(point.value.name))
    if not raised:
        return []
    return [
        Note(
            NoteKind.CALIBRATION,
            "",
            f"the scales of {len(raised)} tensor(s) are 0 in six decimals, which is how they are "
            f"stored, and were raised to 0.000001 (first: {raised[0]!r})",
            "scale the model's values up there if their accuracy matters",
        )
    ]


def _store(config: TensorQuantConfig) -> bool:
    """Round one scale; return whether it had to be raised."""
    params = config.params
    if params is None:
        return False
    stored = six_decimals(params.scale)
    is_raised = bool((stored == 0).any())
    config.set_params(np.maximum(stored, SMALLEST), params.zero_point)
    return is_raised
