"""Learns one block of a network: the rounding of weights, scales of activations, biases.

The block is fed with the activations that the quantized model has there, and is trained by Adam to
give what the float block gives (BRECQ, see `reconstruct`, which calls this for block after block):

    learner = BlockLearner(slices, block, learnable_scales(slices, block), 0.5, random)
    for step in learner.run(quantized, in_float, wanted, Pace(steps=2000, batch=32), by_sample):
        ...
    learned = learner.learned()  # not in force yet: the caller measures it first

While it learns, each weight lies between two neighbouring levels and is drawn to one of them
(AdaRound, `SoftWeight` below), and random elements of the activations stay in float (QDrop).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from intact.improve.learn.blocks import Block
from intact.improve.learn.instructions import Quantize, QuantizeBias
from intact.improve.learn.segments import Values
from intact.improve.learn.slices import QUANTIZED, Mode, Slices
from intact.improve.learn.streams import Draws, Stream, to_device

ROUNDING_RATE, SCALE_RATE, BIAS_RATE = 3e-2, 2e-3, 1e-2
"""Learning rates of Adam: of V, of binary logarithms of scales, of biases in steps of the weight at
a large input."""
REGULARISER = 0.1
"""Weight of the mean of all regularisers beside a loss that begins at about 1."""
_WARM_UP = 0.2
"""Share of the steps before roundings are drawn to whole levels."""
_TINY = 1e-30


@dataclass(frozen=True)
class Pace:
    """How long a block is trained.

    Attributes:
        steps: How many steps it takes.
        batch: How many samples a step sees.
    """

    steps: int
    batch: int


@dataclass(frozen=True)
class Learned:
    """What a block may have learned; nothing of it is in force yet.

    Attributes:
        weights: Weights by name, as real numbers on the grid of their codes.
        biases: Biases by name, as real numbers.
        scales: By key of the quantizer: log2 of the learned scale over the plan's.
    """

    weights: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]

    def candidates(self, best: Learned) -> list[Learned]:
        """Return what may be kept: all of it, or with the scales of what is best so far."""
        if not self.weights or not self.scales:
            return [self]
        return [self, Learned(self.weights, self.biases, best.scales)]


class BlockLearner:
    """Trains one block.

    Args:
        slices: The plan as torch instructions; its quantizers are trained in place.
        block: The block.
        scales: Keys of the quantizers of activations whose scales are trained.
        drop: Probability with which an element stays in float while learning.
        random: Decides which.
        rounds: Whether roundings are learned.
    """

    def __init__(
        self,
        slices: Slices,
        block: Block,
        scales: frozenset[str],
        drop: float,
        random: torch.Generator,
        *,
        rounds: bool = True,
    ) -> None:
        self._slices, self._block = slices, block
        self._drop, self._random = drop, random
        self._names: dict[str, str] = {}
        self._soft: dict[str, SoftWeight] = {}
        self._biases: dict[str, nn.Parameter] = {}
        self._bias_units: dict[str, Tensor] = {}
        for step in slices.steps.constants_for(block.first, block.end):
            if not isinstance(step, Quantize | QuantizeBias) or step.end.node not in block.layers:
                continue
            if isinstance(step, Quantize) and step.end.slot == 1 and rounds:
                self._names[step.writes[0]] = step.reads[0]
                self._soft[step.writes[0]] = self._soften(step)
            elif isinstance(step, QuantizeBias):
                self._add_bias(step)
        self._scales = {key: slices.quantizers[key] for key in sorted(scales)}

    def run(
        self, quantized: Stream, in_float: Stream, wanted: Stream, pace: Pace, free: frozenset[str]
    ) -> Iterator[int]:
        """Train; yield the number of each step after it.

        Args:
            quantized: The block's inputs as the quantized model has them.
            in_float: As the float model has them.
            wanted: The float block's results.
            pace: How long.
            free: Keys of tensors whose first axis is that of samples, so that samples of several
                units can be put together in a batch.

        Raises:
            FloatingPointError: The loss is not finite.
        """
        groups = self._groups()
        if not groups:
            return
        draws = Draws((quantized, in_float, wanted), pace.batch, free, self._random)
        unit = self._weights_only_loss(draws)
        rates = [float(group["lr"]) for group in groups]
        optimizer = torch.optim.Adam(groups)
        # Range first: after the last step nothing more is drawn.
        for step, (given, floats, targets) in zip(range(pace.steps), draws, strict=False):
            share = step / pace.steps
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                # Roundings settle by the regulariser, for which they need their full rate to the
                # end.
                falls = group["name"] != "rounding"
                group["lr"] = rate * (0.5 * (1 + math.cos(math.pi * share)) if falls else 1.0)
            optimizer.zero_grad(set_to_none=True)
            distance_now = self._loss(given, floats, targets)
            if not distance_now.requires_grad:
                return  # operators without a gradient stand behind all that could learn
            loss = distance_now / unit + self._regulariser(share)
            if not math.isfinite(float(loss.detach())):
                raise FloatingPointError(self._block.node)
            loss.backward()
            optimizer.step()
            yield step + 1

    def learned(self) -> Learned:
        """Return what was learned by now."""
        weights = {self._names[key]: soft.hard() for key, soft in self._soft.items()}
        biases = {n: p.detach().clone() for n, p in self._bias_values().items()}
        scales = {
            key: each.size.detach().clone()
            for key, each in self._scales.items()
            if each.size is not None
        }
        return Learned(weights, biases, scales)

    # ---- parts -------------------------------------------------------------------------------

    def _soften(self, step: Quantize) -> SoftWeight:
        """Return the weight that a step quantizes, with a rounding that can be trained."""
        name, quantizer = step.reads[0], self._slices.quantizers[step.quantizer]
        weight = self._slices.in_float[name]
        scale, low, high = quantizer.spread_numbers(weight)
        codes = torch.round(quantizer(self._slices.values[name]).double() / scale.double())
        known = KNOWN if name in self._slices.rounded else 0.0
        soft = SoftWeight(weight, scale, codes, low, high, known)
        soft.to(self._slices.device)
        return soft

    def _add_bias(self, step: QuantizeBias) -> None:
        """Train what is added to a bias.

        It is counted in what one step of a weight gives with a large input, a quarter of the range.
        """
        name = step.reads[0]
        # A bias that other layers read cannot be learned for this one.
        if name not in self._slices.values or len(self._slices.readers(name)) != 1:
            return
        data, weight = (self._slices.quantizers[key] for key in (step.data, step.weight))
        bias = self._slices.values[name]
        reach = (data.grid.quant_max - data.grid.quant_min) / 4
        unit = (weight.scale() * data.scale()).detach() * reach
        if unit.numel() not in (1, bias.numel()):
            return
        self._bias_units[name] = unit.to(bias.dtype).expand(bias.shape) if unit.ndim == 0 else unit
        self._biases[name] = nn.Parameter(torch.zeros_like(bias))

    def _bias_values(self) -> dict[str, Tensor]:
        values = self._slices.values
        return {n: values[n] + p * self._bias_units[n] for n, p in self._biases.items()}

    def _groups(self) -> list[dict[str, Any]]:
        roundings = [soft.v for soft in self._soft.values()]
        scales = [each.size for each in self._scales.values() if each.size is not None]
        for scale in scales:
            scale.requires_grad_()
        named = (
            ("rounding", roundings, ROUNDING_RATE),
            ("scales", scales, SCALE_RATE),
            ("biases", list(self._biases.values()), BIAS_RATE),
        )
        return [{"name": n, "params": params, "lr": rate} for n, params, rate in named if params]

    def _loss(self, given: Values, floats: Values, targets: Values) -> Tensor:
        mode = Mode(
            softened={key: soft() for key, soft in self._soft.items()},
            biases=self._bias_values(),
            mix=self._mix if self._drop else None,
        )
        inputs, wanted = to_device(self._slices, given), to_device(self._slices, targets)
        if self._drop:
            there = to_device(self._slices, floats)
            inputs = {k: self._mix(t, there[k]) for k, t in inputs.items()}
        found = self._slices.run(self._block, inputs, mode)
        return distance(found, wanted)

    def _weights_only_loss(self, draws: Draws) -> float:
        """Return the loss on one batch with the plan's weights and float activations.

        The loss is counted in it, so that one weight of the regulariser fits all blocks.
        """
        _, floats, targets = next(iter(draws))
        with torch.no_grad():
            mode = Mode(activations=False)
            found = self._slices.run(self._block, to_device(self._slices, floats), mode)
            by_weights = float(distance(found, to_device(self._slices, targets)))
        return max(by_weights, _TINY)

    def _regulariser(self, share: float) -> Tensor | float:
        if share < _WARM_UP or not self._soft:
            return 0.0
        beta = beta_at((share - _WARM_UP) / (1 - _WARM_UP))
        count = sum(soft.v.numel() for soft in self._soft.values())
        parts = [soft.regulariser(beta) for soft in self._soft.values()]
        return REGULARISER * torch.stack(parts).sum() / count

    def _mix(self, quantized: Tensor, in_float: Tensor) -> Tensor:
        """Keep elements in float at random (QDrop)."""
        if not quantized.is_floating_point():
            return quantized
        return torch.where(self._draw_dropped(quantized), in_float, quantized)

    def _draw_dropped(self, like: Tensor) -> Tensor:
        """Draw where elements stay in float: from eight numbers of 8 bits each drawn at once."""
        words = -(-like.numel() // 8)
        drawn = torch.empty(words, dtype=torch.int64).random_(
            -(2**63), None, generator=self._random
        )
        bytes_ = drawn.view(torch.uint8)[: like.numel()].reshape(like.shape)
        return (bytes_ < round(256 * self._drop)).to(like.device)


def distance(found: Values, wanted: Values) -> Tensor:
    """Return the sum over all results of the mean squared error over the mean square."""
    parts = []
    for key, target in wanted.items():
        if target.is_floating_point() and target.numel():
            power = target.square().mean().clamp_min(_TINY)
            parts.append((found[key] - target).square().mean() / power)
    return torch.stack(parts).sum() if parts else torch.zeros(())


def decibels(slices: Slices, block: Block, inputs: Stream, wanted: Stream) -> float:
    """Return the signal to quantization noise of a block's results, over all of them, dB."""
    noise: dict[str, float] = {}
    power: dict[str, float] = {}
    with torch.no_grad():
        for unit, targets in zip(inputs.units, wanted.units, strict=True):
            found = slices.run(block, to_device(slices, unit), QUANTIZED)
            for key, target in targets.items():
                if target.is_floating_point():
                    there = target.double()
                    off = found[key].cpu().double() - there
                    noise[key] = noise.get(key, 0.0) + float(off.square().sum())
                    power[key] = power.get(key, 0.0) + float(there.square().sum())
    ratios = [noise[key] / max(power[key], _TINY) for key in noise]
    mean = sum(ratios) / len(ratios) if ratios else 0.0
    return math.inf if mean == 0 else -10 * math.log10(mean)


def learnable_scales(slices: Slices, block: Block) -> frozenset[str]:
    """Return the quantizers of activations that lie in a block alone and can be trained."""
    count: dict[str, int] = {}
    for step in (*slices.steps.steps, *slices.steps.constants):
        if isinstance(step, Quantize):
            count[step.quantizer] = count.get(step.quantizer, 0) + 1
    inside = [s for s in slices.steps.steps[block.first : block.end] if isinstance(s, Quantize)]
    mine = [step.quantizer for step in inside]
    return frozenset(
        key
        for key in mine
        # A scale that quantizes in other blocks too is not this block's to move.
        if mine.count(key) == count[key]
        and slices.quantizers[key].size is not None
        and key not in slices.given
    )


# Learns to round weights up or down, as the result of their layer wants it (AdaRound).
#
# Source: Nagel et al. 2020, "Up or Down? Adaptive Rounding for Post-Training Quantization"
# (AdaRound), equations 21 to 24. A weight is ``scale * clip(low + h(V), quant_min, quant_max)``
# with ``h(V) = clip(1.2 * sigmoid(V) - 0.1, 0, 1)``, and ``1 - |2 h(V) - 1|**beta`` draws ``h``
# to 0 or 1 as beta falls. A weight of 2.3 steps begins at ``low = 2`` and ``h = 0.3``.

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
    """Return the V of which h, 0 to 1, is the rectified sigmoid: `rectified_sigmoid` backwards."""
    return torch.logit((h - _STRETCHED_LOW) / (_STRETCHED_HIGH - _STRETCHED_LOW))


def beta_at(share: float) -> float:
    """Return the exponent of the regulariser when a share of its time, 0 to 1, is over."""
    return _LAST_BETA + 0.5 * (_FIRST_BETA - _LAST_BETA) * (1 + math.cos(math.pi * share))


class SoftWeight(nn.Module):
    """A weight whose rounding is learned: each element lies between two neighbouring levels.

    Calling it gives the weight with soft levels, for training; `hard` gives whole ones.

    The two levels are those around the float weight. Where a rounding in the plan went further away
    than that, they are the plan's level and its neighbour on the side of the float weight: so what
    the plan has can always be reached.

    Args:
        weight: In float.
        scale: Broadcasts to it.
        codes: The integers that the plan has, less the zero point, as floats.
        low: Smallest code less the zero point; broadcasts like the scale.
        high: Largest code less the zero point.
        known: How far from the float weight towards the plan's level elements begin, 0 to less
            than 1.

    Attributes:
        v: V, which is learned, of the weight's shape.
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
            whole = self.base + (rectified_sigmoid(self.v) >= 0.5)
            return torch.clamp(whole, self.low, self.high) * self.scale

    def regulariser(self, beta: float) -> Tensor:
        """Return the sum of ``1 - |2 h(V) - 1|**beta``: 0 where all are whole."""
        return (1 - (2 * rectified_sigmoid(self.v) - 1).abs().pow(beta)).sum()
