"""Configs made from a target's tensor schemes."""

from __future__ import annotations

from intact.config import (
    Granularity,
    PerChannel,
    PerTensor,
    QuantState,
    Rounding,
    TensorQuantConfig,
    make_policy,
)
from intact.targets import BiasScheme, DType, TensorScheme


def config_from_scheme(
    scheme: TensorScheme, channel_axis: int | None, bits: int | None = None
) -> TensorQuantConfig:
    """Make the INITIAL config of a scheme; FP32 for a float scheme.

    Args:
        scheme: The target's scheme for this kind of tensor.
        channel_axis: The output-channel axis of a weight; None makes a per-channel scheme
            per-tensor.
        bits: A width that replaces the scheme's. It may be wider than the scheme's type; the format
            then decides the type.
    """
    if scheme.is_float:
        return unquantized(QuantState.FP32)
    granularity: Granularity = PerTensor()
    if scheme.granularity == "per_channel" and channel_axis is not None:
        granularity = PerChannel(channel_axis)
    quant_min, quant_max = scheme.range_for(bits)
    return TensorQuantConfig(
        policy=make_policy(
            granularity,
            symmetric=scheme.symmetric,
            exponential=scheme.spacing == "exponential",
            power_of_two=scheme.power_of_two,
        ),
        rounding=scheme.rounding,
        bits=scheme.bits if bits is None else bits,
        quant_min=quant_min,
        quant_max=quant_max,
        granularity=granularity,
        steps_per_octave=scheme.steps_per_octave,
    )


def passive_bias(scheme: BiasScheme, channel_axis: int | None) -> TensorQuantConfig:
    """Make the config of a bias: PASSIVE_INIT for integers, FP32 if the target adds floats.

    Args:
        scheme: The target's bias scheme.
        channel_axis: The axis of the bias for the weight's scales; None for one scale.
    """
    if scheme.dtype is DType.FLOAT32:
        return unquantized(QuantState.FP32)
    quant_min, quant_max = scheme.range()
    granularity: Granularity = PerTensor() if channel_axis is None else PerChannel(channel_axis)
    return TensorQuantConfig(
        policy=make_policy(granularity, symmetric=True),
        rounding=Rounding.HALF_EVEN,
        bits=max(scheme.dtype.bits, 32),
        quant_min=quant_min,
        quant_max=quant_max,
        granularity=granularity,
        state=QuantState.PASSIVE_INIT,
    )


def unquantized(state: QuantState) -> TensorQuantConfig:
    """Make the config of an end that is never quantized (FP32 or SOI)."""
    return TensorQuantConfig(
        policy=make_policy(PerTensor(), symmetric=True),
        rounding=Rounding.HALF_EVEN,
        bits=32,
        quant_min=-(2**31),
        quant_max=2**31 - 1,
        state=state,
    )
