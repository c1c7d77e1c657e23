"""Makes configs from a target's tensor schemes."""

from __future__ import annotations

from functools import cache

from intact.config import (
    Granularity,
    Grid,
    PerBlock,
    PerChannel,
    PerRow,
    PerTensor,
    QuantPolicy,
    QuantState,
    Rounding,
    TensorQuantConfig,
    make_policy,
)
from intact.targets import BiasScheme, DType, TensorScheme


def config_from_scheme(
    scheme: TensorScheme, channel_axis: int | None, bits: int | None = None
) -> TensorQuantConfig:
    """Make the INITIAL config of a scheme; FP32 for a float one, DYNAMIC for a dynamic one.

    Args:
        scheme: The target's scheme for this kind of tensor.
        channel_axis: The output-channel axis of a weight; None makes a per-channel scheme
            per-tensor. With blocks the axis along which they lie.
        bits: A width that replaces the scheme's. It may be wider than the scheme's type; the format
            then decides the type.
    """
    if scheme.is_float:
        return unquantized(QuantState.FP32)
    granularity: Granularity = PerTensor()
    # A tensor without that axis, as an activation, has one scale.
    if scheme.granularity == "per_channel" and channel_axis is not None:
        granularity = PerChannel(channel_axis)
    if scheme.granularity == "per_block" and scheme.block and channel_axis is not None:
        granularity = PerBlock(channel_axis, scheme.block)
    if scheme.granularity == "per_row":
        granularity = PerRow(scheme.block)
    policy = make_policy(
        granularity,
        symmetric=scheme.symmetric,
        exponential=scheme.spacing == "exponential",
        power_of_two=scheme.power_of_two,
    )
    grid = _grid(
        policy,
        granularity,
        scheme.rounding,
        scheme.bits if bits is None else bits,
        scheme.range_for(bits),
        scheme.steps_per_octave,
    )
    state = QuantState.DYNAMIC if scheme.dynamic else QuantState.INITIAL
    return TensorQuantConfig.on_grid(grid, state=state)


def quantized_running(low: int, high: int) -> TensorQuantConfig:
    """Make the config of an end whose scale, one for the tensor, is computed while a model runs."""
    granularity = PerTensor()
    policy = make_policy(granularity, symmetric=False)
    # A grid has 2 bits at least; the codes may be fewer.
    bits = max((high - low).bit_length(), 2)
    grid = _grid(policy, granularity, Rounding.HALF_EVEN, bits, (low, high))
    return TensorQuantConfig.on_grid(grid, state=QuantState.DYNAMIC)


def passive_bias(scheme: BiasScheme, channel_axis: int | None) -> TensorQuantConfig:
    """Make the config of a bias: PASSIVE_INIT for integers, FP32 if the target adds floats.

    Args:
        scheme: The target's bias scheme.
        channel_axis: The axis of the bias for the weight's scales; None for one scale.
    """
    if scheme.dtype is DType.FLOAT32:
        return unquantized(QuantState.FP32)
    granularity: Granularity = PerTensor() if channel_axis is None else PerChannel(channel_axis)
    grid = _grid(
        make_policy(granularity, symmetric=True),
        granularity,
        Rounding.HALF_EVEN,
        max(scheme.dtype.bits, 32),
        scheme.range(),
    )
    return TensorQuantConfig.on_grid(grid, state=QuantState.PASSIVE_INIT)


def unquantized(state: QuantState) -> TensorQuantConfig:
    """Make the config of an end that is never quantized (FP32 or SOI)."""
    # A config has a grid in any state; here nothing reads it.
    return TensorQuantConfig.on_grid(_INT32, state=state)


@cache
def _grid(
    policy: QuantPolicy,
    granularity: Granularity,
    rounding: Rounding,
    bits: int,
    codes: tuple[int, int],
    steps_per_octave: int | None = None,
) -> Grid:
    """Return the grid of these fields, one object: a plan has a few, and thousands of ends."""
    return Grid(
        policy=policy,
        granularity=granularity,
        rounding=rounding,
        bits=bits,
        quant_min=codes[0],
        quant_max=codes[1],
        steps_per_octave=steps_per_octave,
    )


_INT32 = _grid(
    make_policy(PerTensor(), symmetric=True),
    PerTensor(),
    Rounding.HALF_EVEN,
    32,
    (-(2**31), 2**31 - 1),
)
