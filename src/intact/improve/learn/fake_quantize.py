"""Fake quantization with the gradients of quantization-aware training.

Forward, a value becomes ``scale * clip(round(value / scale), low, high)``, where ``low`` and
``high`` are the ends of the codes less the zero point. Backward, rounding is taken for the identity
(the straight-through estimator), and values that the clip changes have no gradient:

====================  =======================================  ==================================
``v = value / scale``  to the scale                             to the zero point
====================  =======================================  ==================================
``low < v < high``    LSQ: ``round(v) - v``; PACT: 0            0
``v <= low``          ``low``                                   ``-scale``
``v >= high``         ``high``                                  ``-scale``
====================  =======================================  ==================================

Sources: LSQ, Esser et al. 2020, "Learned Step Size Quantization", equation 3; the zero point, LSQ+,
Bhalgat et al. 2020, equations 6 and 7 (their offset is ``-zero_point * scale``); PACT, Choi et al.
2018, equation 4, whose threshold is ``high * scale``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from intact.improve.learn.rounding import Round


class _FakeQuantize(torch.autograd.Function):
    """See the module's docstring; ``within`` adds the gradient of LSQ to that of PACT."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        scale: Tensor,
        low: Tensor,
        high: Tensor,
        rounds: Round,
        within: bool,
        divided_in: torch.dtype,
    ) -> Tensor:
        steps = (value.to(divided_in) / scale.to(divided_in)).to(value.dtype)
        codes = torch.clamp(rounds(steps), low, high)
        is_learned = scale.requires_grad or low.requires_grad
        if value.requires_grad or is_learned:
            inside = (steps > low) & (steps < high)
            ctx.save_for_backward(inside, scale, *_kept(steps, codes, inside, is_learned, within))
            ctx.shapes = scale.shape, low.shape
        return codes * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        inside, scale, *learned = ctx.saved_tensors
        to_value = gradient * inside if ctx.needs_input_grad[0] else None
        to_scale = to_end = None
        if ctx.needs_input_grad[1]:
            to_scale = _summed(gradient * learned[0], ctx.shapes[0])
        if ctx.needs_input_grad[2]:
            to_end = _summed(gradient * ~inside * scale, ctx.shapes[1])
        return to_value, to_scale, to_end, None, None, None, None


def _kept(
    steps: Tensor, codes: Tensor, inside: Tensor, is_learned: bool, within: bool
) -> Sequence[Tensor]:
    """Return the derivative by the scale, where it is wanted."""
    if not is_learned:
        return ()
    return (torch.where(inside, codes - steps, codes) if within else codes * ~inside,)


def _summed(gradient: Tensor, shape: torch.Size) -> Tensor:
    return gradient.sum_to_size(shape)


def fake_quantize(
    value: Tensor,
    scale: Tensor,
    low: Tensor,
    high: Tensor,
    rounds: Round = torch.round,
    *,
    within: bool = True,
    divided_in: torch.dtype | None = None,
) -> Tensor:
    """Fake-quantize a tensor.

    Args:
        value: Floats of any shape.
        scale: Positive, of the same dtype, of a shape that broadcasts to the value's.
        low: Smallest code less the zero point, shaped like the scale or ``[]``. Its gradient is
            that of both ends: they move together, by minus the zero point.
        high: Largest code less the zero point; it gets no gradient of its own.
        rounds: To whole numbers.
        within: Whether values that are not clipped have a say in the scale: LSQ, or else PACT.
        divided_in: In which dtype a value is divided by its scale; None for the value's own.

    Returns:
        Of the value's shape and dtype.
    """
    kind = divided_in or value.dtype
    result: Tensor = _FakeQuantize.apply(value, scale, low, high, rounds, within, kind)
    return result


class _Through(torch.autograd.Function):
    """Another value, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, other: Tensor) -> Tensor:  # noqa: ARG004
        return other.to(value.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:  # noqa: ARG004
        return gradients[0], None


def straight_through(value: Tensor, other: Tensor) -> Tensor:
    """Return ``other``, in the value's dtype, with the gradient of ``value``."""
    result: Tensor = _Through.apply(value, other)
    return result


class _ScaledGradient(torch.autograd.Function):
    """The same number, with a fraction of its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def scaled_gradient(value: Tensor, factor: float) -> Tensor:
    """Return a tensor whose gradient is multiplied by a factor (LSQ, section 2.2)."""
    result: Tensor = _ScaledGradient.apply(value, factor)
    return result
