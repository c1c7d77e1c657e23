"""What an output would lose if one tensor were quantized otherwise: causes are weighed by it.

The float model runs with that tensor alone quantized, first as the plan does it, then without what
a cause names (a range that cuts off, one scale for all channels, a power of two). What of the noise
goes away is what the cause explains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.analyze.teacher import Replaced
from intact.calibrate.choice import FloatRuns
from intact.calibrate.observe.observer import model_of_outputs
from intact.calibrate.scales.masked import NEGLIGIBLE
from intact.config import TensorQuantConfig
from intact.data.batching import Batch, real_samples, sample_count
from intact.engines.session import make_session, run_session
from intact.numerics.affine import fake_quantize, params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.thresholds import estimate_range
from intact.plan import QuantizedGraph, QuantPoint

Array = npt.NDArray[Any]
Quantizer = Callable[[Array], Array]

_CHANNELS = 1
"""The axis of channels."""
_TAIL = 99.99
"""Percentile that a range without its tail holds."""


class Counterfactuals:
    """The noise of an output with one tensor quantized in several ways.

    Args:
        plan: A plan with scales.
        runs: The samples that are tried.
        output: The output.
        point: The quantizer of the tensor.
    """

    def __init__(
        self, plan: QuantizedGraph, runs: FloatRuns, output: str, point: QuantPoint
    ) -> None:
        self._output, self._config = output, point.config
        self._name = str(point.value.name)
        self._replaced = Replaced(plan, [self._name])
        is_input = any(value is point.value for value in plan.graph.inputs)
        model = None if is_input else model_of_outputs(plan.graph, [self._name])
        session = None if model is None else make_session(model, threads=1)
        self._batches: list[tuple[Batch, int, Array, Array]] = []
        for (feeds, real), outputs in zip(runs.batches, runs.outputs(), strict=True):
            found = feeds[self._name] if session is None else None
            if session is not None:
                (found,) = run_session(session, feeds, [self._name])
            if found is not None:
                self._batches.append((feeds, real, found, outputs[output]))
        self._now = self._noise(partial(point.config.fake_quantize, inplace=False))

    def explained(self, without: Without) -> float:
        """Return which part of the tensor's noise goes away without a cause; below 0 if it grows.

        0 where there is no noise, or levels are logarithmic.
        """
        if self._config.grid.exponential or not self._now > 0:
            return 0.0
        tensor = Seen(self._config, [found for _, _, found, _ in self._batches])
        return 1.0 - self._noise(without(tensor)) / self._now

    def _noise(self, quantizer: Quantizer) -> float:
        total = 0.0
        for feeds, real, found, wanted in self._batches:
            array = quantizer(found).astype(np.float32)
            outputs = self._replaced.run(feeds, self._name, array)
            pair = {"made": outputs[self._output], "wanted": wanted}
            pair = real_samples(pair, sample_count(feeds), real)
            total += float(np.sum((pair["made"].astype(np.float64) - pair["wanted"]) ** 2))
        return total


class Seen(msgspec.Struct, frozen=True):
    """What a tensor holds on the samples, and how it is quantized.

    Attributes:
        config: Its quantizer's.
        batches: Its values.
    """

    config: TensorQuantConfig
    batches: list[Array]

    @property
    def values(self) -> Array:
        """All values, flat."""
        return np.concatenate([array.ravel() for array in self.batches])

    def on_range(
        self, low: npt.ArrayLike, high: npt.ArrayLike, axis: int | None = None
    ) -> Quantizer:
        """Return a quantizer of the same codes on other ranges, with any scale."""
        grid = self.config.grid
        codes = grid.quant_min, grid.quant_max
        params = params_from_range(low, high, *codes, symmetric=grid.symmetric)
        return lambda array: fake_quantize(
            array.astype(np.float32), *params, *codes, rounding=grid.rounding, axis=axis
        )

    def by_method(self, method: str, **options: float) -> Quantizer:
        """Return a quantizer with the range that a method chooses of all scales."""
        levels = msgspec.structs.replace(self.config.levels, power_of_two=False)
        distribution = Distribution.from_values(self.values.astype(np.float32))
        return self.on_range(*estimate_range(distribution, levels, method, **options))


Without = Callable[[Seen], Quantizer]
"""How a tensor would be quantized without a cause, on as many codes."""


def whole_range(tensor: Seen) -> Quantizer:
    """Cut nothing off."""
    return tensor.by_method("minmax")


def without_tail(tensor: Seen) -> Quantizer:
    """Cut a few of the largest values off."""
    return tensor.by_method("percentile", percentile=_TAIL)


def any_scale(tensor: Seen) -> Quantizer:
    """Take the best scale that there is."""
    return tensor.by_method("mse")


def by_channel(tensor: Seen) -> Quantizer:
    """Give each channel a scale of its own, within the range that the plan has for all."""
    return _by_channel(tensor, *tensor.config.value_range())


def by_whole_channel(tensor: Seen) -> Quantizer:
    """Give each channel a scale of its own that cuts nothing off: no scale for all does both."""
    return _by_channel(tensor, -np.inf, np.inf)


def _by_channel(tensor: Seen, least: float, most: float) -> Quantizer:
    if any(array.ndim <= _CHANNELS for array in tensor.batches):
        return partial(tensor.config.fake_quantize, inplace=False)
    axes = [tuple(axis for axis in range(a.ndim) if axis != _CHANNELS) for a in tensor.batches]
    pairs = list(zip(tensor.batches, axes, strict=True))
    low = np.min([array.min(axis=others, initial=0.0) for array, others in pairs], axis=0)
    high = np.max([array.max(axis=others, initial=0.0) for array, others in pairs], axis=0)
    return tensor.on_range(np.maximum(low, least), np.minimum(high, most), _CHANNELS)


def without_mask(tensor: Seen) -> Quantizer:
    """Hold what is not far below 0, and the room that a masked value needs."""
    values = tensor.values
    kept = values[values > values.min() / 2]
    low, high = float(kept.min(initial=0.0)), float(kept.max(initial=0.0))
    return tensor.on_range(low - NEGLIGIBLE, high)
