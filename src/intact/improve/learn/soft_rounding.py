"""Learns to round weights up or down, as the result of their layer wants it.

Source: Nagel et al. 2020, "Up or Down? Adaptive Rounding for Post-Training Quantization"
(AdaRound), equations 21 to 24. A weight is ``scale * clip(low + h(V), quant_min, quant_max)`` with
``h(V) = clip(1.2 * sigmoid(V) - 0.1, 0, 1)``, and ``1 - |2 h(V) - 1|**beta`` draws ``h`` to 0 or 1
as beta falls.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_STRETCHED_LOW, _STRETCHED_HIGH = -0.1, 1.1
"""The sigmoid is stretched to these ends, so that it reaches 0 and 1."""
_MARGIN = 1e-3
"""How far from whole levels a weight begins at least: at the ends h has no gradient."""
KNOWN = 0.5
"""How far from the float weight towards the plan's level a weight begins that a pass has rounded by
more than its own value: what that pass knew of other weights is not lost, and nothing is settled.
"""
_FIRST_BETA, _LAST_BETA = 20.0, 2.0


def rectified_sigmoid(v: Tensor) -> Tensor:
    """Return h(V), 0 to 1, of the shape of V."""
    stretched = torch.sigmoid(v) * (_STRETCHED_HIGH - _STRETCHED_LOW) + _STRETCHED_LOW
    return torch.clamp(stretched, 0.0, 1.0)


def inverse(h: Tensor) -> Tensor:
    """Return the V of which h, 0 to 1, is the rectified sigmoid."""
    return torch.logit((h - _STRETCHED_LOW) / (_STRETCHED_HIGH - _STRETCHED_LOW))


def beta_at(share: float) -> float:
    """Return the exponent of the regulariser when a share of its time, 0 to 1, is over."""
    return _LAST_BETA + 0.5 * (_FIRST_BETA - _LAST_BETA) * (1 + math.cos(math.pi * share))


class SoftWeight(nn.Module):
    """A weight between two neighbouring levels each.

    The two levels are those around the float weight. Where a rounding in the plan went further away
    than that, they are the plan's level and its neighbour on the side of the float weight: so what
    the plan has can always be reached.

    Args:
        weight: In float.
        scale: Broadcasts to it.
        codes: The integers that the plan has, less the zero point, as floats.
        low: Smallest code less the zero point; broadcasts like the scale.
        high: Largest code less the zero point.
        known: How far they begin towards the plan's level, 0 to less than 1.

    Attributes:
        v: Learned, of the weight's shape.
    """

    base: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        codes: Tensor,
        low: Tensor,
        high: Tensor,
        known: float = 0.0,
    ) -> None:
        super().__init__()
        # In float64, because the quotient decides between neighbours: rounded, a whole number could
        # come out beside itself.
        aim = weight.double() / scale.double()
        base = torch.where(aim >= codes.double(), codes.double(), codes.double() - 1)
        for name, tensor in (("base", base), ("scale", scale), ("low", low), ("high", high)):
            self.register_buffer(name, tensor.to(weight.dtype))
        share = torch.clamp(aim - base, _MARGIN, 1 - _MARGIN)
        share = share + known * (codes.double() - base - share)
        self.v = nn.Parameter(inverse(share).to(weight.dtype))

    def forward(self) -> Tensor:
        """Return the weight with soft levels."""
        soft = self.base + rectified_sigmoid(self.v)
        return torch.clamp(soft, self.low, self.high) * self.scale

    def hard(self) -> Tensor:
        """Return the weight with whole levels, without gradient."""
        with torch.no_grad():
            whole = self.base + (rectified_sigmoid(self.v) >= _HALF)
            return torch.clamp(whole, self.low, self.high) * self.scale

    def regulariser(self, beta: float) -> Tensor:
        """Return the sum of ``1 - |2 h(V) - 1|**beta``: 0 where all are whole."""
        return (1 - (2 * rectified_sigmoid(self.v) - 1).abs().pow(beta)).sum()


_HALF = 0.5
