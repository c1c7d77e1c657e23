"""Laying one target file over another, as ``extends`` asks.

Tables are merged key by key; values and plain lists are replaced. Lists of rules are merged by
what each rule is about: an entry about the same thing is merged into the one below it, others are
added at the end, where they win. An empty list (``op = []``) clears what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

Table: TypeAlias = dict[str, Any]


def merge(base: Table, over: Table) -> Table:
    """Return ``over`` laid over ``base``; neither is changed.

    Both are raw TOML. ``over`` is not validated yet, so whatever has an unexpected type is
    simply taken over and complained about later.
    """
    return _merge_tables(base, over, path=())


def _merge_tables(base: Table, over: Table, path: tuple[str, ...]) -> Table:
    result = dict(base)
    for key, value in over.items():
        below = base.get(key)
        here = (*path, key)
        if isinstance(below, dict) and isinstance(value, dict):
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
            result[place] = _merge_tables(result[place], entry, path=("",))
    return result


def _op_subject(entry: Table) -> bytes:
    return _key([_as_set(entry.get("ops")), entry.get("when")])


def _fusion_subject(entry: Table) -> bytes:
    return _key(entry.get("pattern"))


def _as_set(ops: object) -> object:
    return sorted(ops) if isinstance(ops, list) and all(isinstance(x, str) for x in ops) else ops


def _key(value: object) -> bytes:
    """A comparable form of any TOML value; tables are equal whatever the order of their keys."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (RecursionError, msgspec.MsgspecError, TypeError, ValueError):
        return b""  # nothing that validates


_SUBJECT: Mapping[tuple[str, ...], Callable[[Table], bytes]] = {
    ("op",): _op_subject,
    ("fusion",): _fusion_subject,
    ("arithmetic", "overrides"): _op_subject,
}
