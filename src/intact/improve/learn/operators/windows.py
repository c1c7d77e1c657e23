"""Sliding windows over spatial axes, of tensors."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.improve.learn.operators.rules import Integers
from intact.program.operations import Pads


def padded(x: Tensor, pads: Pads, value: float = 0.0) -> Tensor:
    """Pad the last axes with a value; negative pads take elements away."""
    flat = [each for pair in reversed(pads) for each in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


def views(x: Tensor, kernel: Integers, strides: Integers, dilations: Integers) -> Tensor:
    """Return all windows of data ``[N, C, *S]`` as a view ``[N, C, *places, *kernel]``."""
    for k, (width, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        x = x.unfold(2 + k, (width - 1) * dilation + 1, stride)[..., ::dilation]
    return x


def is_even(pads: Pads) -> bool:
    """Tell whether pads are as long behind as before, and take nothing away."""
    return all(before == behind and before >= 0 for before, behind in pads)
