"""What a file may leave out because it follows from the rest."""

from __future__ import annotations

from intact.errors import TargetError
from intact.targets.merge import Table
from intact.targets.scheme import DType, Spacing, float_scheme, full_range
from intact.targets.wording import plain

_OF_INTEGERS = (
    "bits",
    "quant_min",
    "quant_max",
    "symmetric",
    "granularity",
    "spacing",
    "power_of_two",
    "rounding",
    "truncated_zero_point",
)


def complete(table: Table, file: str) -> Table:
    """Return the table with bits and ranges filled in; what has a wrong type is left alone.

    Raises:
        TargetError: If keys about integers are given for a tensor that stays float: afterwards
            the given and the default could not be told apart.
    """
    result = dict(table)
    for key in ("activation", "weight"):
        scheme = table.get(key)
        if isinstance(scheme, dict):
            result[key] = _completed(scheme, file, f"[{key}]")
    activation, arithmetic = result.get("activation"), table.get("arithmetic")
    if (
        isinstance(activation, dict)
        and activation.get("dtype") == DType.FLOAT32
        and isinstance(arithmetic, dict)
        and "zero_point" in arithmetic
    ):
        raise TargetError(
            f"{file}: [arithmetic] zero_point is given, but activations are float32",
            remedy="remove zero_point",
        )
    cost = table.get("cost")
    for key, value in cost.items() if isinstance(cost, dict) else ():
        if isinstance(value, dict):
            raise TargetError(
                f"{file}: [cost] {plain(key)} is a table, because a bare dot opens one",
                remedy=f'write "{plain(key)}.uint8" in quotes',
            )
    return result


def _completed(scheme: Table, file: str, where: str) -> Table:
    name = scheme.get("dtype")
    if not isinstance(name, str) or name not in {dtype.value for dtype in DType}:
        return scheme
    dtype = DType(name)
    if dtype.is_float:
        for key in _OF_INTEGERS:
            if key in scheme:
                raise TargetError(
                    f"{file}: {where} {key} is given, but dtype is float32",
                    remedy=f"remove {key} or use an integer dtype",
                )
        floats = float_scheme()
        return {
            **{
                key: getattr(floats, key) for key in ("bits", "quant_min", "quant_max", "symmetric")
            },
            **scheme,
        }
    bits = scheme.get("bits", dtype.bits)
    if not isinstance(bits, int) or isinstance(bits, bool) or not 2 <= bits <= dtype.bits:
        # Filled in all the same, so that the complaint is about bits.
        return {"quant_min": 0, "quant_max": 1, **scheme}
    narrow = scheme.get("spacing") == Spacing.EXPONENTIAL
    low, high = full_range(bits, signed=dtype.is_signed, narrow=narrow)
    return {"bits": bits, "quant_min": low, "quant_max": high, **scheme}
