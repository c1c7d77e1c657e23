"""Measures what a cause explains: what an output would lose without it.

The float model runs with that activation or weight alone quantized, first as the plan does it, then
without what a cause names (a range that cuts off, one scale for all channels, a power of two). What
of the noise goes away is what the cause explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.noise import Part
from intact.analyze.errors import layer_results
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.scales.masked import NEGLIGIBLE
from intact.config import TensorQuantConfig
from intact.data.batching import real_samples, sample_count
from intact.engines.executor import Run
from intact.engines.piecewise import FloatPieces
from intact.limits import TRIED_BYTES
from intact.numerics.affine import fake_quantize, params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels
from intact.numerics.thresholds import estimate_range
from intact.numerics.weight_range import weight_range
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd

Array = npt.NDArray[Any]
Quantizer = Callable[[Array], Array]

_CHANNELS = 1
"""The axis of channels."""
_BYTES = 4
"""Of a float32."""
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
        # Only what follows the tensor is run again for each way.
        self._pieces = FloatPieces(plan.graph, [self._name])
        values = [
            (self._pieces.values(feeds, limit=math.inf), feeds, real)
            for feeds, real in runs.batches
        ]
        self._batches = [(known, sample_count(feeds), real) for known, feeds, real in values]
        self._now = self._noise(partial(point.config.fake_quantize, inplace=False))

    def explained_part(self, without: Without) -> float:
        """Return which part of the tensor's noise goes away without a cause; below 0 if it grows.

        0 where there is no noise, or levels are logarithmic.
        """
        # `not >` also where the noise is NaN.
        if self._config.grid.exponential or not self._now > 0:
            return 0.0
        tensor = QuantizedValues(self._config, [known[self._name] for known, _, _ in self._batches])
        return 1.0 - self._noise(without(tensor)) / self._now

    def _noise(self, quantizer: Quantizer) -> float:
        total = 0.0
        for known, size, real in self._batches:
            array = quantizer(known[self._name]).astype(np.float32)
            outputs = self._pieces.run(known, {self._name: array})
            pair = {"made": outputs[self._output], "wanted": known[self._output]}
            pair = real_samples(pair, size, real)
            total += float(np.sum((pair["made"].astype(np.float64) - pair["wanted"]) ** 2))
        return total


class QuantizedValues(msgspec.Struct, frozen=True):
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
        # Other causes are weighed without the restriction, which is a cause of its own.
        levels = msgspec.structs.replace(self.config.levels, power_of_two=False)
        distribution = Distribution.from_values(self.values.astype(np.float32))
        return self.on_range(*estimate_range(distribution, levels, method, **options))


Without = Callable[[QuantizedValues], Quantizer]
"""How a tensor would be quantized without a cause, on as many codes."""


def whole_range(tensor: QuantizedValues) -> Quantizer:
    """Cut nothing off."""
    return tensor.by_method("minmax")


def without_tail(tensor: QuantizedValues) -> Quantizer:
    """Cut a few of the largest values off."""
    return tensor.by_method("percentile", percentile=_TAIL)


def any_scale(tensor: QuantizedValues) -> Quantizer:
    """Take the best scale that there is."""
    return tensor.by_method("mse")


def by_channel(tensor: QuantizedValues) -> Quantizer:
    """Give each channel a scale of its own, within the range that the plan has for all."""
    return _by_channel(tensor, *tensor.config.value_range())


def by_whole_channel(tensor: QuantizedValues) -> Quantizer:
    """Give each channel a scale of its own that cuts nothing off: no scale for all does both."""
    return _by_channel(tensor, -np.inf, np.inf)


def _by_channel(tensor: QuantizedValues, least: float, most: float) -> Quantizer:
    if any(array.ndim <= _CHANNELS for array in tensor.batches):
        return partial(tensor.config.fake_quantize, inplace=False)
    axes = [tuple(axis for axis in range(a.ndim) if axis != _CHANNELS) for a in tensor.batches]
    pairs = list(zip(tensor.batches, axes, strict=True))
    # Ranges hold 0, as those of plans do.
    low = np.min([array.min(axis=others, initial=0.0) for array, others in pairs], axis=0)
    high = np.max([array.max(axis=others, initial=0.0) for array, others in pairs], axis=0)
    return tensor.on_range(np.maximum(low, least), np.minimum(high, most), _CHANNELS)


def without_mask(tensor: QuantizedValues) -> Quantizer:
    """Hold what is not far below 0, and the room that a masked value needs."""
    values = tensor.values
    # Masks add the same huge number everywhere: halfway to it lies nothing else.
    kept = values[values > values.min() / 2]
    low, high = float(kept.min(initial=0.0)), float(kept.max(initial=0.0))
    return tensor.on_range(low - NEGLIGIBLE, high)


# ---- constants --------------------------------------------------------------------------------


class Constant(msgspec.Struct, frozen=True):
    """A weight or bias, and how it is quantized.

    Attributes:
        point: Its quantizer.
        array: Its values, float32.
        outputs: The axis of a weight along which output channels lie; None where there is none.
        inputs: The axis of a weight along which input channels lie; None where there is none.
    """

    point: QuantPoint
    array: npt.NDArray[np.float32]
    outputs: int | None = None
    inputs: int | None = None

    @property
    def now(self) -> Array:
        """The constant as the plan quantizes it."""
        return _stored(self.point)

    def quantized(
        self,
        method: str,
        *,
        levels: Levels | None = None,
        axis: int | None = None,
        array: npt.NDArray[np.float32] | None = None,
    ) -> Array:
        """Quantize it anew.

        Args:
            method: Chooses ranges.
            levels: Levels other than the plan's.
            axis: Axis along which it has several scales; None for that of the plan.
            array: Values that take the place of its own.
        """
        config, values = self.point.config, self.array if array is None else array
        used = config.levels if levels is None else levels
        # Blocks lie along the plan's axis; along another one there are channels.
        along, block = (config.grid.axis, config.grid.block) if axis is None else (axis, None)
        low, high = weight_range(values, used, method, along, block)
        codes = used.quant_min, used.quant_max
        params = params_from_range(low, high, *codes, symmetric=config.grid.symmetric)
        return fake_quantize(
            values, *params, *codes, rounding=config.rounding, axis=along, block=block
        )


WithoutInConstant = Callable[[Constant], Array]
"""How a constant would be quantized without a cause."""


def constant_on_any_scale(constant: Constant) -> Array:
    """Take the best scale that there is."""
    levels = msgspec.structs.replace(constant.point.config.levels, power_of_two=False)
    return constant.quantized("mse", levels=levels)


def constant_on_whole_range(constant: Constant) -> Array:
    """Take the scale that just holds the values: none is cut off, no room is left."""
    return constant.quantized("minmax")


def constant_by_output(constant: Constant) -> Array:
    """Give each output channel a scale of its own."""
    return constant.quantized("minmax", axis=constant.outputs)


def constant_by_input(constant: Constant) -> Array:
    """Bring the weights of all input channels to one size, as equalization does."""
    axis = constant.inputs
    if axis is None:
        return constant.now
    # Divided and multiplied back: the layer computes the same, but rounds by other steps.
    others = tuple(other for other in range(constant.array.ndim) if other != axis)
    sizes = np.abs(constant.array).max(axis=others, keepdims=True)
    sizes = np.where(sizes > 0, sizes, 1).astype(np.float32)
    return np.asarray(constant.quantized("minmax", array=constant.array / sizes) * sizes)


def constant_with_bits(constant: Constant, bits: int) -> Array:
    """Take codes of more bits."""
    config = constant.point.config
    times = 2 ** max(bits - config.bits, 0)
    levels = msgspec.structs.replace(
        config.levels, quant_min=config.quant_min * times, quant_max=config.quant_max * times
    )
    return constant.quantized("minmax", levels=levels)


class ConstantTrials:
    """The noise of an output with some constants quantized in several ways, and nothing else.

    Args:
        plan: A plan with scales.
        runs: The samples that are tried.
        output: The output.
        points: The quantizers of the constants.
    """

    def __init__(
        self, plan: QuantizedGraph, runs: FloatRuns, output: str, points: Sequence[QuantPoint]
    ) -> None:
        self._runs, self._output = runs, output
        self._readers = {
            point.end: [(str(node.name), slot) for node, slot in point.readers] for point in points
        }
        self._pieces = FloatPieces(plan.graph, [place.tensor for place in layer_results(plan)])
        # By identity: arrays have no hash, and the runs hold the batches as long as this lives.
        self._known = {id(feeds): self._pieces.values(feeds) for feeds, _ in runs.batches}

    def powers(self, parts: Sequence[Part]) -> list[float]:
        """Return the noise powers with each of some groups quantized as in the plan."""
        found: list[float] = []
        for some in _within_memory(parts):
            found += self._noises([{point.end: _stored(point) for point in part} for part in some])
        return found

    def explained_part(
        self, constant: Constant, ways: Sequence[WithoutInConstant | None]
    ) -> list[float]:
        """Return which part of the constant's noise goes away without each cause.

        Below 0 if it grows; 0 for None, where there is no noise, or levels are logarithmic.
        """
        if constant.point.config.grid.exponential:
            return [0.0 for _ in ways]
        # All ways run side by side in one pass over the samples.
        kept = [way for way in ways if way is not None]
        arrays = [constant.now, *(way(constant) for way in kept)]
        end = constant.point.end
        now, *found = self._noises([{end: array.astype(np.float32)} for array in arrays])
        if not now > 0:
            return [0.0 for _ in ways]
        left = iter(found)
        return [0.0 if way is None else 1.0 - next(left) / now for way in ways]

    def _noises(self, changes: Sequence[dict[TensorEnd, Array]]) -> list[float]:
        def run_of(constants: dict[TensorEnd, Array]) -> Run:
            given = {
                reader: array for end, array in constants.items() for reader in self._readers[end]
            }
            pieces = self._pieces.exchanged(given)
            return lambda feeds: pieces.run(self._known[id(feeds)], {})

        found = self._runs.errors(*map(run_of, changes))
        return [float(each.outputs[self._output].noise.sum()) for each in found]


def _within_memory(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Divide groups of constants: of those that are tried at once a session each holds copies."""
    some: list[Part] = []
    held = 0
    for part in parts:
        size = sum(np.prod(_shape(point), dtype=np.int64) * _BYTES for point in part)
        if some and held + size > TRIED_BYTES:
            yield some
            some, held = [], 0
        some.append(part)
        held += int(size)
    if some:
        yield some


def _shape(point: QuantPoint) -> tuple[int, ...]:
    value = point.value.const_value
    return () if value is None else tuple(value.shape.numpy())


def _stored(point: QuantPoint) -> Array:
    value = point.value.const_value
    codes = point.constant_codes()
    shape = codes.shape if value is None else value.shape.numpy()
    return np.asarray(point.config.dequantize(codes).reshape(shape), np.float32)
