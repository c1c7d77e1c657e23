"""Computes BatchNormalization during training, where the deployed layer has it folded.

The strategies are those of MQBench (Li et al. 2021, "MQBench", section on folding BN), which
numbers them 0 to 4. ``ratio`` is ``gamma / deviation``::

    0  folded     weights and bias as they are; there is no normalization any more
    1  frozen     weight * ratio, with the running deviation, which training leaves alone
    2  batch      weight * ratio, with that of the batch: a convolution in float finds it
    3  corrected  weight * ratio with the running deviation, the result times running / batch
    4  live       weight * ratio with the running deviation, the result divided by ratio, then
                  normalized by the batch, as PyTorch does

In evaluation all are the same: weight and bias folded with the running mean and deviation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from intact.errors import UsageError, nearest
from intact.graph.batch_norm import BatchNorm

MOMENTUM = 0.1
"""Share of a batch in the running mean and variance (PyTorch's default)."""


_SMALLEST, _LEAST_SHARE = 1e-30, 1e-10
"""The least gamma of a channel that is alive, by itself and beside the bias that was folded."""


class Folding(enum.StrEnum):
    """What becomes of the BatchNormalizations that were folded into layers."""

    FOLDED = "folded"
    FROZEN = "frozen"
    BATCH = "batch"
    CORRECTED = "corrected"
    LIVE = "live"

    @staticmethod
    def of(name: str) -> Folding:
        """Return the strategy that is called so.

        Raises:
            UsageError: None is.
        """
        try:
            return Folding(name.lower())
        except ValueError:
            raise UsageError(
                f"{name!r} is no strategy for BatchNormalization",
                remedy=nearest(name, map(str, Folding)),
            ) from None


def dead_channels(norm: BatchNorm) -> npt.NDArray[np.bool_]:
    """Return which channels are but their beta, bool ``[channels]``.

    Their gamma is 0, or so small beside beta that float32 keeps nothing of the layer's own bias: it
    could not be divided out again. Training leaves them as they are.
    """
    gamma = np.abs(norm.gamma.astype(np.float64))
    return (gamma < _SMALLEST) | (gamma < _LEAST_SHARE * np.abs(norm.offset))


@dataclass
class Statistics:
    """What a forward pass knows of a normalization's input, and what it finds out.

    It goes with the pass: gradient checkpointing computes it twice, and the second time has to see
    what the first one saw, though the running statistics have moved since.

    Attributes:
        mean: The running mean when the pass began, ``[channels]``.
        variance: The running variance.
        seen: Mean and unbiased variance of the batch; None where it does not count.
    """

    mean: Tensor
    variance: Tensor
    seen: tuple[Tensor, Tensor] | None = None


class FoldedNorm(nn.Module):
    """A BatchNormalization behind a layer, which the layer's weights take in.

    Args:
        norm: Its parameters.
        strategy: See the module's docstring; not FOLDED.
        axis: Axis of the output channels in the layer's weight.
        alive: Which channels depend on the layer, bool ``[channels]``; see `dead_channels`. The
            gamma of others is not used, but must not be 0: it is divided by.

    Attributes:
        weight: gamma, ``[channels]``.
        bias: beta.
        frozen: Whether batches no longer count: the layer trains as it is deployed.
        alive: 1, and 0 for channels whose results do not depend on the layer.
    """

    running_mean: Tensor
    running_var: Tensor
    alive: Tensor

    def __init__(
        self, norm: BatchNorm, strategy: Folding, axis: int, alive: npt.NDArray[np.bool_]
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(norm.gamma))
        self.bias = nn.Parameter(torch.tensor(norm.beta))
        self.register_buffer("running_mean", torch.tensor(norm.mean))
        self.register_buffer("running_var", torch.tensor(norm.variance))
        # Not in a state dict: it follows from the plan.
        self.register_buffer("alive", torch.from_numpy(alive.astype(np.float32)), persistent=False)
        self.epsilon, self._names = norm.epsilon, norm.names
        self.strategy = strategy
        self.axis = axis
        self.frozen = strategy is Folding.FROZEN

    @property
    def counts_batches(self) -> bool:
        """Whether this forward pass normalizes by the batch."""
        return self.training and not self.frozen

    def statistics(self) -> Statistics:
        """Return what a forward pass that begins now is to go by."""
        running = self.running_mean, self.running_var
        # Copied, because `keep` changes them in place before the backward pass may ask again.
        return Statistics(*(each.clone() if self.counts_batches else each for each in running))

    def fold(
        self,
        weight: Tensor,
        bias: Tensor,
        layer: Callable[[Tensor, Tensor], Tensor],
        statistics: Statistics,
    ) -> tuple[Tensor, Tensor]:
        """Return the weight and bias that the layer computes with.

        Args:
            weight: The weight without the normalization.
            bias: The bias without it, ``[channels]``.
            layer: Computes the layer's float result of a weight and a bias.
            statistics: What this pass normalizes by.

        Raises:
            UsageError: The batch has one value a channel, which has no variance.
        """
        if not self.counts_batches:
            return self._fold_in(weight, bias, statistics.mean, statistics.variance)
        if self.strategy is Folding.BATCH:
            mean, variance = _batch(layer(weight, bias), 1, statistics)
            return self._fold_in(weight, bias, mean, variance)
        folded, _ = self._fold_in(weight, bias, statistics.mean, statistics.variance)
        return folded, torch.zeros_like(bias)

    def after(self, result: Tensor, bias: Tensor, channels: int, statistics: Statistics) -> Tensor:
        """Return the normalized result of a layer that had the weight and bias of `fold`.

        Args:
            result: What the layer computed.
            bias: The layer's own, ``[channels]``.
            channels: Axis of the channels in the result.
            statistics: What this pass normalizes by.
        """
        if not self.counts_batches or self.strategy is Folding.BATCH:
            return result
        shape = [1] * result.ndim
        shape[channels] = -1
        running = self._deviation(statistics.variance)
        own = result * (running / self.weight).reshape(shape) + bias.reshape(shape)
        mean, variance = _batch(own, channels, statistics)
        ratio = self._ratio(variance)
        if self.strategy is Folding.CORRECTED:
            # as above, but that the correction has no gradient through the layer's own result
            corrected = result * (running / self._deviation(variance)).reshape(shape)
            return corrected + ((bias - mean) * ratio + self.bias).reshape(shape)
        return (own - mean.reshape(shape)) * ratio.reshape(shape) + self.bias.reshape(shape)

    def keep(self, statistics: Statistics) -> None:
        """Take what a forward pass saw into the running mean and variance."""
        if statistics.seen is None:
            return
        with torch.no_grad():
            for running, seen in zip(
                (self.running_mean, self.running_var), statistics.seen, strict=True
            ):
                running.lerp_(seen.to(running.dtype), MOMENTUM)

    def parameters_now(self) -> BatchNorm:
        """Return the parameters as arrays."""
        gamma, beta, mean, variance = (
            each.detach().cpu().numpy().astype(np.float32)
            for each in (self.alive * self.weight, self.bias, self.running_mean, self.running_var)
        )
        return BatchNorm(gamma, beta, mean, variance, self.epsilon, self._names)

    def _fold_in(
        self, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        ratio = self._ratio(variance)
        shape = [1] * weight.ndim
        shape[self.axis] = -1
        return weight * ratio.reshape(shape), (bias - mean) * ratio + self.bias

    def _ratio(self, variance: Tensor) -> Tensor:
        return self.alive * self.weight / self._deviation(variance)

    def _deviation(self, variance: Tensor) -> Tensor:
        return torch.sqrt(variance + self.epsilon)


def _batch(result: Tensor, channels: int, statistics: Statistics) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a batch, and note them.

    Raises:
        UsageError: The batch has one value a channel, which has no variance.
    """
    axes = [axis for axis in range(result.ndim) if axis != channels]
    count = result.numel() // max(result.shape[channels], 1)
    if count < 2:
        raise UsageError(
            "a batch of one has no variance to normalize by",
            remedy="train on larger batches, or with batch_norm='frozen'",
        )
    # Half floats overflow in a sum of squares.
    wide = result if result.dtype.itemsize >= _FLOAT32_BYTES else result.float()
    variance, mean = torch.var_mean(wide, axes, correction=0)
    # PyTorch normalizes by the biased variance and remembers the unbiased one.
    statistics.seen = mean.detach(), variance.detach() * (count / (count - 1))
    return mean, variance


_FLOAT32_BYTES = 4
