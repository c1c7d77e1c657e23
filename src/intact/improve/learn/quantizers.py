"""Declares the modules that quantize a tensor as a plan says, and may learn the scale.

What is learned is the scale itself, from the plan's on (Esser et al. 2020, "Learned Step Size
Quantization"), so that optimizers and their rates do to it what they do to any quantizer of that
paper; or its binary logarithm over the plan's, which starts at 0 (Jain et al. 2020, "Trained
Quantization Thresholds"): then an update of Adam moves scales of all sizes by the same factor.
Where a target wants powers of two it is always the logarithm, and rounded. In both a scale stays
positive whatever an optimizer does, and one that was not trained is the plan's, bit for bit.
Scales are float32 whatever the module is converted to, as in every deployed file.
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
_LEAST = 2.0**-23
"""The least scale that is learned, as in MQBench; less only where the plan's scale is less."""


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
                # From before the conversion: what went through half precision has lost digits.
                tensor.data = before.to(tensor.device)
        return self


class Quantizer(Float32Module):
    """Quantizes activations or constants on an integer grid, all that share one scale.

    Args:
        config: With scale and offset; read once.
        learning: What is learned.
        in_logarithms: Whether the logarithm of the scale is learned also where it need not be a
            power of two.
        decimal6: The target stores scales as texts of six decimals.

    Attributes:
        enabled: Whether it quantizes; switched off it returns what it is given.
        base: The plan's scale, float32 ``[]``, ``[channels]`` or one for each block.
        zero: The plan's zero point, float32 of the same shape.
        in_logarithms: Whether ``size`` is the binary logarithm of the scale over ``base``.
        size: Learned: the scale, or its logarithm; None where it is fixed.
        shift: Learned: what is added to ``zero``; None where it is fixed.
    """

    base: Tensor
    zero: Tensor

    def __init__(
        self,
        config: TensorQuantConfig,
        learning: Learning = Learning.FIXED,
        *,
        in_logarithms: bool = False,
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
        self.in_logarithms = in_logarithms or config.grid.power_of_two
        self._reach = 0.0 if in_logarithms else 0.5  # scales themselves: as MQBench learns them
        self.size = nn.Parameter(self._untrained()) if learns else None
        self.shift = nn.Parameter(torch.zeros_like(self.base)) if shifts else None

    def forward(self, value: Tensor, divided_in: torch.dtype | None = None) -> Tensor:
        """Return the fake-quantized value, of its shape; half precision becomes float32.

        Args:
            value: Floats, with the channels along the grid's axis.
            divided_in: The dtype in which constants are divided by their scale; None for
                activations, which are divided in their own.
        """
        if not self.enabled:
            return value
        # Half precision has fewer digits than 16-bit codes, and its scales would be rounded too.
        value = value if value.dtype.itemsize >= _FLOAT32_BYTES else value.float()
        numbers = self._numbers(value.dtype, value.numel())
        scale, low, high = (self._spread(each, value) for each in numbers)
        return fake_quantize(
            value,
            scale,
            low,
            high,
            self.grid.rounding,
            within=self.learning is not Learning.PACT,
            reach=self._reach,
            divided_in=divided_in,
        )

    def scale(self) -> Tensor:
        """Return the scale in effect, float32 ``[]`` or ``[channels]``, with its gradient."""
        if self.size is None:
            return self.base
        size, base = self.size, self.base.abs()
        if self.in_logarithms:
            if self.grid.power_of_two:
                size = straight_through(size, torch.round(size))
            scale = torch.clamp(base * torch.exp2(size), _TINY, _HUGE)
        else:
            # Not `abs`, which has no gradient at 0.
            size = torch.where(size < 0, -size, size)
            least = torch.clamp(base, _TINY, _LEAST)
            scale = straight_through(size, torch.clamp(torch.maximum(size, least), max=_HUGE))
        if self._decimal6:
            text = np.array(np.maximum(six_decimals(scale.detach().cpu().numpy()), SMALLEST))
            scale = straight_through(scale, torch.from_numpy(text).to(scale.device))
        # Of blocks a scale may be negative, and stays so.
        return scale if self.grid.block is None else torch.copysign(scale, self.base)

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
        self.forget()

    def forget(self) -> None:
        """Go back to the plan's scale and zero point, in place."""
        with torch.no_grad():
            if self.size is not None:
                self.size.copy_(self._untrained())
            if self.shift is not None:
                self.shift.zero_()

    def _untrained(self) -> Tensor:
        return torch.zeros_like(self.base) if self.in_logarithms else self.base.clone()

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

        Gradients are scaled as LSQ has it (section 2.2), by the elements that share a scale; of a
        whole batch, as MQBench counts them. Logarithms have no such factor (TQT).

        Args:
            kind: The dtype of what is returned.
            count: Elements that are quantized.
        """
        scale, zero = self.scale(), self.zero_point()
        if self.size is not None:
            shared = max(count // scale.numel(), 1)
            factor = 1.0 / math.sqrt(shared * max(self.grid.quant_max, 1))
            scale = scale if self.in_logarithms else scaled_gradient(scale, factor)
            zero = zero if self.shift is None else scaled_gradient(zero, factor)
        # `fake_quantize` gives the lower end the gradient of both.
        low, high = self.grid.quant_min - zero, self.grid.quant_max - zero.detach()
        return scale.to(kind), low.to(kind), high.to(kind)

    def _spread(self, numbers: Tensor, value: Tensor) -> Tensor:
        """Shape numbers of channels or blocks so that they broadcast to a value."""
        axis = self.grid.axis
        if axis is None or numbers.ndim == 0:
            return numbers
        if self.grid.block is not None:  # the last one may be shorter
            whole = numbers.repeat_interleave(self.grid.block, dim=axis)
            return whole.narrow(axis, 0, value.shape[axis])
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
            # Codes of one sign have no negative levels: their sign becomes 0.
            sign = value.sign().clamp_min(self.grid.quant_min)
            last = torch.exp2(torch.tensor(self.grid.quant_max / octave)).double() * first
            kept = torch.clamp(value.double(), -last, last)
            inside = kept == value.double()
        through = torch.where(inside, value, value.detach())
        return straight_through(through, level.float() * sign)


def quantizer_of(
    config: TensorQuantConfig, learning: Learning, *, in_logarithms: bool, decimal6: bool
) -> Quantizer:
    """Make the quantizer of a configuration.

    Logarithmic levels stay the plan's: their range has no gradient here.

    Raises:
        PlanError: It has no scale.
    """
    if config.grid.exponential:
        return LogarithmicQuantizer(config)
    return Quantizer(config, learning, in_logarithms=in_logarithms, decimal6=decimal6)


def bias_codes(bias: Tensor, data: Quantizer, weight: Quantizer) -> tuple[Tensor, Tensor]:
    """Return the integers of a bias before they are clipped, and their scale, both float64.

    No gradient goes that way: to record it costs time.

    Args:
        bias: ``[channels]``, or what broadcasts to it.
        data: The quantizer of the layer's data.
        weight: The quantizer of its weight.
    """
    with torch.no_grad():
        # Multiplied in float32, as deployed scales are, and only then widened.
        scale = torch.clamp(weight.scale() * data.scale(), min=_TINY).double()
        return torch.round(bias.detach().double() / scale), scale


_FLOAT32_BYTES = 4
