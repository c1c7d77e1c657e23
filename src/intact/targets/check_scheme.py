"""Contradictions inside one tensor or bias scheme."""

from __future__ import annotations

from intact.errors import TargetError
from intact.targets.scheme import BiasScheme, DType, Granularity, Spacing, TensorScheme, full_range


def check_scheme(scheme: TensorScheme, file: str, where: str) -> None:
    """Refuse a scheme that no tensor can have.

    Raises:
        TargetError: File, key and remedy.
    """
    if scheme.is_float:
        return
    if not 2 <= scheme.bits <= scheme.dtype.bits:
        raise TargetError(
            f"{file}: {where} bits is {scheme.bits}, but dtype is {scheme.dtype}",
            remedy=f"use 2 to {scheme.dtype.bits} bits or a wider dtype",
        )
    if scheme.quant_min >= scheme.quant_max:
        raise TargetError(
            f"{file}: {where} quant_min {scheme.quant_min} is not below quant_max "
            f"{scheme.quant_max}",
            remedy="swap or widen them",
        )
    low, high = full_range(scheme.bits, signed=scheme.dtype.is_signed, narrow=False)
    if scheme.quant_min < low or scheme.quant_max > high:
        raise TargetError(
            f"{file}: {where} range {scheme.quant_min}..{scheme.quant_max} does not fit "
            f"{scheme.bits} bits of {scheme.dtype}",
            remedy=f"stay within {low}..{high}",
        )
    if scheme.symmetric and scheme.truncated_zero_point:
        raise TargetError(
            f"{file}: {where} truncated_zero_point is about asymmetric tensors, symmetric is true",
            remedy="remove truncated_zero_point or set symmetric = false",
        )
    _check_zero(scheme, file, where)
    if scheme.spacing is Spacing.EXPONENTIAL:
        _check_exponential(scheme, file, where)


def check_activation(scheme: TensorScheme, file: str, where: str) -> None:
    """Refuse what only weights can have.

    Raises:
        TargetError: File, key and remedy.
    """
    if scheme.granularity is Granularity.PER_CHANNEL:
        raise TargetError(
            f"{file}: {where} granularity is per_channel, but an activation's scale has to leave "
            "the sum over input channels",
            remedy="use per_tensor",
        )


def check_bias(bias: BiasScheme, file: str) -> None:
    """Refuse a bias scheme that no accumulator can take.

    Raises:
        TargetError: File, key and remedy.
    """
    limits = {"quant_min": bias.quant_min, "quant_max": bias.quant_max}
    given = [key for key, value in limits.items() if value is not None]
    if bias.dtype is DType.FLOAT32:
        if given:
            raise TargetError(
                f"{file}: [bias] {given[0]} is given, but dtype is float32",
                remedy=f"remove {given[0]} or use int32",
            )
        return
    if bias.dtype not in {DType.INT32, DType.INT16, DType.INT8}:
        raise TargetError(
            f"{file}: [bias] dtype is {bias.dtype}", remedy="use int32, int16, int8 or float32"
        )
    low, high = bias.range()
    least, most = full_range(bias.dtype.bits, signed=True, narrow=False)
    if not least <= low < 0 < high <= most:
        raise TargetError(
            f"{file}: [bias] range {low}..{high} is impossible for {bias.dtype}",
            remedy=f"stay within {least}..{most}, around 0",
        )


def _check_zero(scheme: TensorScheme, file: str, where: str) -> None:
    if scheme.symmetric and not scheme.quant_min <= 0 < scheme.quant_max:
        raise TargetError(
            f"{file}: {where} symmetric is true, but {scheme.quant_min}..{scheme.quant_max} has "
            "no 0",
            remedy="widen the range or set symmetric = false",
        )


def _check_exponential(scheme: TensorScheme, file: str, where: str) -> None:
    if not scheme.symmetric:
        raise TargetError(
            f"{file}: {where} spacing is 'exponential', which has no offset",
            remedy="set symmetric = true",
        )
    if scheme.power_of_two:
        raise TargetError(
            f"{file}: {where} power_of_two needs linear levels", remedy="set spacing = 'linear'"
        )
    if scheme.quant_min not in (0, -scheme.quant_max):
        raise TargetError(
            f"{file}: {where} range {scheme.quant_min}..{scheme.quant_max} is lopsided for "
            "'exponential' spacing",
            remedy=f"use quant_min = {-scheme.quant_max} or 0",
        )
