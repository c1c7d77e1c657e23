"""SimQ of a tensor config: compiled loops for linear grids, NumPy for logarithmic ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import TensorQuantConfig
from intact.numerics.simulated_quantize import FLOAT, SimulatedQuantize
from intact.run.limits import EXACT_BELOW
from intact.run.overflow import WrappingSums

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LogarithmicQuantizer:
    """A quantiser to levels that are spaced logarithmically.

    Attributes:
        config: Its grid and scale.
    """

    config: TensorQuantConfig

    @cached_property
    def key(self) -> bytes:
        """Bytes that are equal where two of them do the same to all data."""
        return config_key(self.config)

    def __call__(self, data: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Return the data on their levels, in ``out`` if given.

        Raises:
            DataError: A value is NaN.
        """
        levels = self.config.fake_quantize(data)
        if out is None:
            return levels
        np.copyto(out, levels)
        return out


@dataclass(frozen=True, eq=False)
class OverflowingQuantizer:
    """Sums that wrap round in their accumulator, and what is then made of them.

    Attributes:
        overflow: From integers to floats.
        then: What quantises them; None where they stay as they are.
    """

    overflow: SimulatedQuantize
    then: SimulatedQuantize | LogarithmicQuantizer | None

    @cached_property
    def key(self) -> bytes:
        """Bytes that are equal where two of them do the same to all data."""
        return self.overflow.key + (b"" if self.then is None else self.then.key)

    def __call__(self, data: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Return the data wrapped and quantised; see `SimulatedQuantize`."""
        sums = self.overflow(data, out)
        return sums if self.then is None else self.then(sums, sums)


Quantizer: TypeAlias = SimulatedQuantize | LogarithmicQuantizer | OverflowingQuantizer


def overflowing(sums: WrappingSums, then: Quantizer | None) -> OverflowingQuantizer | None:
    """Return what wraps sums and goes on; None where float32 does not hold them."""
    if sums.scale is None or sums.largest is None or sums.largest >= EXACT_BELOW:
        return None
    overflow = SimulatedQuantize(
        in_scale=sums.scale, in_dtype=f"int{sums.bits}", out_dtype=FLOAT, axis=sums.axis
    )
    return OverflowingQuantizer(overflow, None if isinstance(then, OverflowingQuantizer) else then)


def quantizer_of(config: TensorQuantConfig) -> Quantizer:
    """Return what puts data on the grid of a config that has its scale."""
    params = config.params
    if config.grid.exponential or params is None:
        return LogarithmicQuantizer(config)
    sign = "" if config.quant_min < 0 else "u"
    return SimulatedQuantize(
        out_scale=params.scale,
        clip_min=config.quant_min,
        clip_max=config.quant_max,
        zero_point=params.zero_point,
        rounding=config.rounding,
        out_dtype=f"{sign}int{config.bits}",
        axis=config.granularity.axis,
    )


def config_key(config: TensorQuantConfig) -> bytes:
    """Return bytes that are equal where two configs quantise alike."""
    grid, params = config.grid, config.params
    parts: list[Any] = [grid.exponential, grid.rounding.value, grid.axis]
    parts += [grid.quant_min, grid.quant_max]
    if params is not None:
        parts += [params.scale.tobytes(), params.zero_point.tobytes()]
    return repr(parts).encode()
