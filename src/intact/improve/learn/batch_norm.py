"""BatchNormalization during training, where the deployed layer has it folded into its weights.

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

import numpy as np
import torch
from torch import Tensor, nn

from intact.errors import UsageError, nearest
from intact.graph.batch_norm import BatchNorm

MOMENTUM = 0.1
"""Share of a batch in the running mean and variance (PyTorch's default)."""


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
                remedy=nearest(name, [*Folding]),
            ) from None


class FoldedNorm(nn.Module):
    """A BatchNormalization behind a layer, which the layer's weights take in.

    Args:
        norm: Its parameters.
        strategy: See the module's docstring; not FOLDED.
        axis: Axis of the output channels in the layer's weight.

    Attributes:
        weight: gamma, ``[channels]``.
        bias: beta.
        frozen: Whether batches no longer count: the layer trains as it is deployed.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: BatchNorm, strategy: Folding, axis: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(norm.gamma))
        self.bias = nn.Parameter(torch.tensor(norm.beta))
        self.register_buffer("running_mean", torch.tensor(norm.mean))
        self.register_buffer("running_var", torch.tensor(norm.variance))
        self.epsilon, self._names = norm.epsilon, norm.names
        self.strategy = strategy
        self.axis = axis
        self.frozen = strategy is Folding.FROZEN
        self._seen: tuple[Tensor, Tensor] | None = None

    @property
    def counts_batches(self) -> bool:
        """Whether this forward pass normalizes by the batch."""
        return self.training and not self.frozen

    def fold(
        self, weight: Tensor, bias: Tensor, layer: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the weight and bias that the layer computes with.

        Args:
            weight: Without the normalization.
            bias: Likewise, ``[channels]``.
            layer: Computes the layer's float result of a weight and a bias.

        Raises:
            UsageError: The batch has one value a channel, which has no variance.
        """
        if not self.counts_batches:
            return self._folded(weight, bias, self.running_mean, self.running_var)
        if self.strategy is Folding.BATCH:
            mean, variance = self._batch(layer(weight, bias))
            return self._folded(weight, bias, mean, variance)
        folded, _ = self._folded(weight, bias, self.running_mean, self.running_var)
        return folded, torch.zeros_like(bias)

    def after(self, result: Tensor, bias: Tensor, channels: int) -> Tensor:
        """Return the normalized result of a layer that had the weight and bias of `fold`.

        Args:
            result: Of the layer.
            bias: The layer's own, ``[channels]``.
            channels: Axis of the channels in the result.
        """
        if not self.counts_batches or self.strategy is Folding.BATCH:
            return result
        shape = [1] * result.ndim
        shape[channels] = -1
        running = self._deviation(self.running_var)
        own = result * (running / self.weight).reshape(shape) + bias.reshape(shape)
        mean, variance = self._batch(own, channels)
        ratio = self.weight / self._deviation(variance)
        if self.strategy is Folding.CORRECTED:
            # as above, but that the correction has no gradient through the layer's own result
            corrected = result * (running / self._deviation(variance)).reshape(shape)
            return corrected + ((bias - mean) * ratio + self.bias).reshape(shape)
        return (own - mean.reshape(shape)) * ratio.reshape(shape) + self.bias.reshape(shape)

    def keep_statistics(self) -> None:
        """Take what the last forward pass saw into the running mean and variance.

        Apart from the pass itself, which gradient checkpointing runs twice.
        """
        if self._seen is None:
            return
        with torch.no_grad():
            for running, seen in zip(
                (self.running_mean, self.running_var), self._seen, strict=True
            ):
                running.lerp_(seen.to(running.dtype), MOMENTUM)
        self._seen = None

    def parameters_now(self) -> BatchNorm:
        """Return the parameters as arrays."""
        gamma, beta, mean, variance = (
            each.detach().cpu().numpy().astype(np.float32)
            for each in (self.weight, self.bias, self.running_mean, self.running_var)
        )
        return BatchNorm(gamma, beta, mean, variance, self.epsilon, self._names)

    def _folded(
        self, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        ratio = self.weight / self._deviation(variance)
        shape = [1] * weight.ndim
        shape[self.axis] = -1
        return weight * ratio.reshape(shape), (bias - mean) * ratio + self.bias

    def _deviation(self, variance: Tensor) -> Tensor:
        return torch.sqrt(variance + self.epsilon)

    def _batch(self, result: Tensor, channels: int = 1) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a batch, and remember them."""
        axes = [axis for axis in range(result.ndim) if axis != channels]
        count = result.numel() // max(result.shape[channels], 1)
        if count < 2:
            raise UsageError(
                "a batch of one has no variance to normalize by",
                remedy="train on larger batches, or with batch_norm='frozen'",
            )
        variance, mean = torch.var_mean(result, axes, correction=0)
        unbiased = variance.detach() * (count / (count - 1))
        self._seen = mean.detach(), unbiased
        return mean, variance
