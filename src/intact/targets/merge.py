"""Merges a target file over the one that it extends.

Tables are merged key by key; values and plain lists are replaced, and so are tables that name their
``kind``: they are complete, as options of one kind mean nothing in another. In lists of rules an
entry with the same operators and condition (or pattern) is merged into the one of the base; others
are added at the end, where they win. An empty list (``op = []``) removes those of the base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from intact.errors import TargetError
from intact.targets.scheme import DType, Spacing, float_scheme, full_range
from intact.targets.wording import plain

Table: TypeAlias = dict[str, Any]


def merge(base: Table, over: Table) -> Table:
    """Merge ``over`` over ``base``; neither is changed.

    Both are raw TOML. ``over`` is not validated yet: a value of an unexpected type is copied, and
    validation reports it later.
    """
    return _merge_tables(base, over, path=())


def _merge_tables(base: Table, over: Table, path: tuple[str, ...]) -> Table:
    result = dict(base)
    for key, value in over.items():
        below = base.get(key)
        here = (*path, key)
        if isinstance(below, dict) and isinstance(value, dict) and "kind" not in value:
            # Recursion is no deeper than the base, which has been validated.
            result[key] = _merge_tables(below, value, here)
        elif here in _SUBJECT and isinstance(below, list) and isinstance(value, list):
            result[key] = _merge_rules(below, value, _SUBJECT[here])
        else:
            result[key] = value
    return result


def _merge_rules(base: list[Any], over: list[Any], subject: Callable[[Table], bytes]) -> list[Any]:
    if not over:
        return []
    result = list(base)
    places = {subject(entry): index for index, entry in enumerate(base)}
    for entry in over:
        place = places.get(subject(entry)) if isinstance(entry, dict) else None
        if place is None:
            result.append(entry)
        else:
            # The path is one that names no list of rules: lists within a rule are replaced as a
            # whole.
            result[place] = _merge_tables(result[place], entry, path=("",))
    return result


def _op_subject(entry: Table) -> bytes:
    return _key([_as_set(entry.get("ops")), entry.get("when"), entry.get("instructions")])


def _form_subject(entry: Table) -> bytes:
    return _key(entry.get("op"))


def _fusion_subject(entry: Table) -> bytes:
    return _key(entry.get("pattern"))


def _as_set(ops: object) -> object:
    # The order of operators in a rule has no meaning.
    return sorted(ops) if isinstance(ops, list) and all(isinstance(x, str) for x in ops) else ops


def _key(value: object) -> bytes:
    """Encode a TOML value for comparison, independent of the order of keys."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (RecursionError, msgspec.MsgspecError, TypeError, ValueError):
        return b""  # not a valid value


_SUBJECT: Mapping[tuple[str, ...], Callable[[Table], bytes]] = {
    ("op",): _op_subject,
    ("fusion",): _fusion_subject,
    ("cache", "form"): _form_subject,
    ("dynamic", "op"): _op_subject,
    ("dynamic", "overrides"): _op_subject,
    ("arithmetic", "overrides"): _op_subject,
}

_OF_INTEGERS = (
    "bits",
    "quant_min",
    "quant_max",
    "symmetric",
    "granularity",
    "block",
    "spacing",
    "steps_per_octave",
    "power_of_two",
    "rounding",
    "truncated_zero_point",
    "dynamic",
)


def complete(table: Table, file: str) -> Table:
    """Add default bits and ranges to a table; values of a wrong type are not changed.

    Raises:
        TargetError: If keys for integers are given for a float tensor: later the given and the
            default values could not be distinguished.
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
                f"{file}: [cost] {plain(key)} is a table, because an unquoted dot starts one",
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
        # The struct requires these fields, and a file cannot state them for floats.
        floats = float_scheme()
        return {
            **{
                key: getattr(floats, key) for key in ("bits", "quant_min", "quant_max", "symmetric")
            },
            **scheme,
        }
    bits = scheme.get("bits", dtype.bits)
    if not isinstance(bits, int) or isinstance(bits, bool) or not 2 <= bits <= dtype.bits:
        # Filled in, so that the error is reported for bits.
        return {"quant_min": 0, "quant_max": 1, **scheme}
    # Logarithmic levels are those of magnitudes, with a sign: both sides have as many.
    narrow = scheme.get("spacing") == Spacing.EXPONENTIAL
    low, high = full_range(bits, signed=dtype.is_signed, narrow=narrow)
    return {"bits": bits, "quant_min": low, "quant_max": high, **scheme}
