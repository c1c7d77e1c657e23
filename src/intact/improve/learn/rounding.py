"""Rounding to integers in torch, in the modes of `intact.numerics.rounding`, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from intact.config import Rounding

Round: TypeAlias = Callable[[Tensor], Tensor]


def _half_up(steps: Tensor) -> Tensor:
    nearest = torch.round(steps)
    return nearest + (steps - nearest == 0.5)


def _half_down(steps: Tensor) -> Tensor:
    nearest = torch.round(steps)
    return nearest - (steps - nearest == -0.5).to(nearest.dtype)


def _half_away(steps: Tensor) -> Tensor:
    return torch.sign(steps) * _half_up(steps.abs())


def _half_toward_zero(steps: Tensor) -> Tensor:
    return torch.sign(steps) * _half_down(steps.abs())


ROUNDERS: Mapping[Rounding, Round] = MappingProxyType(
    {
        Rounding.HALF_EVEN: torch.round,
        Rounding.NEAREST: torch.round,
        Rounding.HALF_UP: _half_up,
        Rounding.HALF_DOWN: _half_down,
        Rounding.HALF_AWAY_FROM_ZERO: _half_away,
        Rounding.HALF_TOWARD_ZERO: _half_toward_zero,
        Rounding.UP: torch.ceil,
    }
)
"""From floats of any shape to whole floats of the same dtype."""
