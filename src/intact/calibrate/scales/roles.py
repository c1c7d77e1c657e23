"""Tells what each quantization point asks of a calibration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.config import TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import Role, input_role
from intact.plan import QuantPoint
from intact.plan.stored_weights import is_stored
from intact.plan.tie import THRESHOLD_RECTIFY, Follows


def point_role(point: QuantPoint) -> Role:
    """Return the role in which the first reader takes the data; DATA where there is none."""
    if is_stored(point.config):
        return Role.WEIGHT
    node, slot = point.readers[0] if point.readers else (None, 0)
    return Role.DATA if node is None or point.at_output else input_role(node, slot)


def is_parameter(point: QuantPoint) -> bool:
    """Tell whether the data is a constant weight or bias."""
    return point.is_constant and point_role(point) in (Role.WEIGHT, Role.BIAS)


def is_fixed(config: TensorQuantConfig) -> bool:
    """Tell whether the target prescribes the scale."""
    return bool(config.dominator.detail.get("fixed"))


def needs_range(config: TensorQuantConfig) -> bool:
    """Tell whether a tensor's own range matters: it owns a scale, or its group takes it in."""
    if is_fixed(config):
        return False
    if config.dominator is config:
        return True
    follows = config.detail.get("follows")
    return isinstance(follows, str) and follows in THRESHOLD_RECTIFY and follows != Follows.MASTER


def refuse_not_finite(values: npt.NDArray[np.floating], what: str, node: str) -> None:
    """Refuse a constant that no integers can represent.

    Args:
        values: What the constant holds.
        what: What it is, with its name.
        node: Who reads it.

    Raises:
        CalibrationError: A value is NaN or infinite.
    """
    if not np.isfinite(values).all():
        raise CalibrationError(
            f"{what} of {node} holds NaN or infinity",
            remedy="mend the model, or keep the node float",
        )
