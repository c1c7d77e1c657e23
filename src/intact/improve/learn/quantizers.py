"""Quantizers: modules that quantize a tensor as a configuration of a plan says, and may learn how.

A learned scale is ``base * 2**ratio``, with the plan's scale as ``base`` and a ratio that starts at
0: a scale stays positive whatever an optimizer does, one learning rate suits scales of all sizes,
and one that was not trained is the plan's, bit for bit. Where a target wants powers of two, the
ratio is rounded (Jain et al. 2020, "Trained Quantization Thresholds"). Scales are float32 whatever
the module is converted to, as in every deployed file.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact.config import TensorQuantConfig
from intact.errors import PlanError, UsageError, nearest
from intact.improve.learn.fake_quantize import fake_quantize, scaled_gradient, straight_through
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import SMALLEST, six_decimals
from intact.numerics.logarithmic import zero_below

_TINY, _HUGE = 2.0**-126, 2.0**127
"""The ends of float32's normal numbers, as powers of two."""


class Learning(enum.StrEnum):
    """What a quantizer learns."""

    FIXED = "fixed"
    """Nothing: scale and zero point stay the plan's."""
    LSQ = "lsq"
    """The scale, from values that are rounded and values that are clipped."""
    LSQ_PLUS = "lsq+"
    """The scale, and the zero point where there is one."""
    PACT = "pact"
    """The threshold, from values that are clipped."""

    @staticmethod
    def of(name: str) -> Learning:
        """Return the way of learning that is called so.

        Raises:
            UsageError: None is.
        """
        try:
            return Learning(name.lower())
        except ValueError:
            raise UsageError(
                f"{name!r} is no way to learn scales", remedy=nearest(name, map(str, Learning))
            ) from None


class Float32Module(nn.Module):
    """A module whose own floats stay float32 when a whole model is converted to another dtype."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {
            n: t.detach()
            for n, t in (*self._parameters.items(), *self._buffers.items())
            if t is not None
        }
        super()._apply(fn, recurse)
        for name, before in kept.items():
            tensor = getattr(self, name)
            if tensor.dtype != before.dtype:
                tensor.data = before.to(tensor.device)
        return self


class Quantizer(Float32Module):
    """Quantizes activations or constants on an integer grid, all that share one scale.

    Args:
        config: With scale and offset; read once.
        learning: What is learned.
        decimal6: The target stores scales as texts of six decimals.

    Attributes:
        enabled: Whether it quantizes; switched off it returns what it is given.
        base: The plan's scale, float32 ``[]`` or ``[channels]``.
        zero: The plan's zero point, float32 of the same shape.
        ratio: Learned: binary logarithm of the scale over ``base``; None where it is fixed.
        shift: Learned: what is added to ``zero``; None where it is fixed.
    """

    base: Tensor
    zero: Tensor

    def __init__(
        self,
        config: TensorQuantConfig,
        learning: Learning = Learning.FIXED,
        *,
        decimal6: bool = False,
    ) -> None:
        super().__init__()
        params = config.params
        if params is None:
            raise PlanError("a quantizer has no scale yet", remedy="calibrate the plan first")
        self.grid = config.grid
        self.learning = learning
        self.enabled = True
        self._decimal6 = decimal6
        self.register_buffer("base", torch.tensor(params.scale))
        self.register_buffer("zero", torch.tensor(params.zero_point.astype(np.float32)))
        learns = learning is not Learning.FIXED
        shifts = learning is Learning.LSQ_PLUS and not config.grid.symmetric
        self.ratio = nn.Parameter(torch.zeros_like(self.base)) if learns else None
        self.shift = nn.Parameter(torch.zeros_like(self.base)) if shifts else None

    def forward(self, value: Tensor, divided_in: torch.dtype | None = None) -> Tensor:
        """Return the fake-quantized value, of its shape; half precision becomes float32.

        Args:
            value: Floats, with the channels along the grid's axis.
            divided_in: Of constants, in which dtype they are divided by their scale; None for
                activations, which are divided in their own.
        """
        if not self.enabled:
            return value
        value = value if value.dtype.itemsize >= _FLOAT32_BYTES else value.float()
        samples = 1 if divided_in is not None or value.ndim == 0 else max(len(value), 1)
        count = value.numel() // samples
        numbers = self._numbers(value.dtype, count)
        scale, low, high = (self._spread(each, value) for each in numbers)
        return fake_quantize(
            value,
            scale,
            low,
            high,
            self.grid.rounding,
            within=self.learning is not Learning.PACT,
            divided_in=divided_in,
        )

    def scale(self) -> Tensor:
        """Return the scale in effect, float32 ``[]`` or ``[channels]``, with its gradient."""
        if self.ratio is None:
            return self.base
        ratio = self.ratio
        if self.grid.power_of_two:
            ratio = straight_through(ratio, torch.round(ratio))
        scale = torch.clamp(self.base * torch.exp2(ratio), _TINY, _HUGE)
        if self._decimal6:
            text = np.array(np.maximum(six_decimals(scale.detach().cpu().numpy()), SMALLEST))
            scale = straight_through(scale, torch.from_numpy(text).to(scale.device))
        return scale

    def zero_point(self) -> Tensor:
        """Return the zero point in effect, a whole float32 of the scale's shape."""
        if self.shift is None:
            return self.zero
        moved = self.zero + self.shift
        whole = torch.clamp(torch.round(moved), self.grid.quant_min, self.grid.quant_max)
        return straight_through(moved, whole)

    def rescale(self, config: TensorQuantConfig) -> None:
        """Take scale and zero point of another configuration on the same grid, in place."""
        params = config.params
        if params is None:
            raise PlanError("a quantizer has no scale yet", remedy="calibrate the plan first")
        with torch.no_grad():
            self.base.copy_(torch.tensor(params.scale))
            self.zero.copy_(torch.tensor(params.zero_point.astype(np.float32)))
            for learned in (self.ratio, self.shift):
                if learned is not None:
                    learned.zero_()

    def spread_numbers(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scale, and the ends of the codes less the zero point, without gradients.

        Args:
            value: What they are shaped for.
        """
        with torch.no_grad():
            scale, zero = self.scale(), self.zero_point()
            numbers = scale, self.grid.quant_min - zero, self.grid.quant_max - zero
            one, two, three = (self._spread(each.to(value.dtype), value) for each in numbers)
            return one, two, three

    def params(self) -> QuantParams:
        """Return scale (float32) and zero point (int64) in effect as arrays."""
        with torch.no_grad():
            scale, zero = self.scale().cpu().numpy(), self.zero_point().cpu().numpy()
        return QuantParams(np.array(scale, np.float32), np.rint(zero).astype(np.int64))

    def codes(self, quantized: Tensor) -> Tensor:
        """Return the integers of fake-quantized values, int64 of their shape."""
        scale = self._spread(self.scale(), quantized).double()
        zero = self._spread(self.zero_point(), quantized).double()
        return (torch.round(quantized.double() / scale) + zero).long()

    def values(self, codes: Tensor) -> Tensor:
        """Return what codes stand for, float64 of their shape."""
        scale, zero = self._spread(self.scale(), codes), self._spread(self.zero_point(), codes)
        return (codes.double() - zero.double()) * scale.double()

    def _numbers(self, kind: torch.dtype, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scale and the ends of the codes less the zero point.

        Gradients are scaled as LSQ has it (section 2.2), by the elements that share a scale: of a
        weight, or of an activation in one sample, so that they do not depend on the batch.

        Args:
            kind: The dtype of what is returned.
            count: Elements that are quantized.
        """
        scale, zero = self.scale(), self.zero_point()
        if self.ratio is not None:
            shared = max(count // scale.numel(), 1)
            factor = 1.0 / math.sqrt(shared * max(self.grid.quant_max, 1))
            scale = scaled_gradient(scale, factor)
            zero = zero if self.shift is None else scaled_gradient(zero, factor)
        low, high = self.grid.quant_min - zero, self.grid.quant_max - zero.detach()
        return scale.to(kind), low.to(kind), high.to(kind)

    def _spread(self, numbers: Tensor, value: Tensor) -> Tensor:
        """Shape numbers of channels so that they broadcast along the grid's axis."""
        axis = self.grid.axis
        if axis is None or numbers.ndim == 0:
            return numbers
        behind = value.ndim - 1 - (axis % value.ndim)
        return numbers.reshape(-1, *(1,) * behind)

    def extra_repr(self) -> str:
        """Name the grid."""
        kind = f"{self.grid.bits} bits, {self.grid.quant_min}..{self.grid.quant_max}"
        return f"{kind}, {self.learning}"


class LogarithmicQuantizer(Quantizer):
    """Quantizes to levels ``scale * 2**(k / octave)`` and 0, see `intact.numerics.logarithmic`."""

    def forward(self, value: Tensor, divided_in: torch.dtype | None = None) -> Tensor:  # noqa: ARG002
        """Return the value at the nearest level; what is beyond the last has no gradient."""
        if not self.enabled:
            return value
        octave, scale = self.grid.octave, self.scale().double()
        with torch.no_grad():
            first = self._spread(scale, value)
            ratio = value.double().abs() / first
            position = torch.log(ratio) * (octave / math.log(2.0))
            codes = torch.round(position.clamp(1.0, float(self.grid.quant_max)))
            level = torch.exp2(codes / octave) * first
            level = torch.where(ratio < zero_below(octave), torch.zeros_like(level), level)
            sign = value.sign().clamp_min(self.grid.quant_min)
            last = torch.exp2(torch.tensor(self.grid.quant_max / octave)).double() * first
            kept = torch.clamp(value.double(), -last, last)
            inside = kept == value.double()
        through = torch.where(inside, value, value.detach())
        return straight_through(through, level.float() * sign)


def quantizer_of(config: TensorQuantConfig, learning: Learning, *, decimal6: bool) -> Quantizer:
    """Make the quantizer of a configuration.

    Logarithmic levels stay the plan's: their range has no gradient here.

    Raises:
        PlanError: It has no scale.
    """
    if config.grid.exponential:
        return LogarithmicQuantizer(config)
    return Quantizer(config, learning, decimal6=decimal6)


def bias_codes(bias: Tensor, data: Quantizer, weight: Quantizer) -> tuple[Tensor, Tensor]:
    """Return the integers of a bias before they are clipped, and their scale, both float64.

    No gradient goes that way: to record it costs time.

    Args:
        bias: ``[channels]``, or what broadcasts to it.
        data: Of the layer's data.
        weight: Of its weight.
    """
    with torch.no_grad():
        scale = torch.clamp(weight.scale() * data.scale(), min=_TINY).double()
        return torch.round(bias.detach().double() / scale), scale


_FLOAT32_BYTES = 4
