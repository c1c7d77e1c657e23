"""From a target's tensor scheme to a config."""

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
    """Return an INITIAL config for a scheme, or an FP32 one for a scheme that stays float.

    Args:
        scheme: The target's scheme for this kind of tensor.
        channel_axis: The output-channel axis of a weight; None where there is none, which makes
            a per-channel scheme per-tensor.
        bits: A width that replaces the scheme's, wider than its type too: which type then holds
            the codes is for the format to say.
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
    )


def passive_bias(scheme: BiasScheme, channel_axis: int | None) -> TensorQuantConfig:
    """Return the config of a bias: PASSIVE_INIT for integers, FP32 where the target adds floats.

    Args:
        scheme: How the target adds biases.
        channel_axis: The axis of the bias along which the weight's scales run; None for one scale.
    """
    if scheme.dtype is DType.FLOAT32:
        return unquantized(QuantState.FP32)
    quant_min, quant_max = scheme.range()
    granularity: Granularity = PerTensor() if channel_axis is None else PerChannel(channel_axis)
    return TensorQuantConfig(
        policy=make_policy(granularity, symmetric=True),
        rounding=Rounding.HALF_EVEN,
        bits=32,
        quant_min=quant_min,
        quant_max=quant_max,
        granularity=granularity,
        state=QuantState.PASSIVE_INIT,
    )


def unquantized(state: QuantState) -> TensorQuantConfig:
    """Return the config of an end that is never quantized (FP32 or SOI)."""
    return TensorQuantConfig(
        policy=make_policy(PerTensor(), symmetric=True),
        rounding=Rounding.HALF_EVEN,
        bits=32,
        quant_min=-(2**31),
        quant_max=2**31 - 1,
        state=state,
    )
