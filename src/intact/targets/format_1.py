"""Upgrades target files of format 1 when they are read.

For example ``requantize = "float32"`` with ``scales_in_turn = true`` becomes ``requantize = { kind
= "float_in_turn", ... }``.

There the arithmetic was one flat list of fields, and an override changed some of them: which way
of computing an option belonged to followed from combinations. Format 2 has the same options, each
with the kind that has it (`intact.targets.arithmetic`), and an override states a kind as a whole.
So what an override adds a field to is looked up in those before it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from intact.errors import TargetError, nearest
from intact.targets.arithmetic import Accumulator, Requantization
from intact.targets.merge import Table, merge
from intact.targets.schema import FORMAT
from intact.targets.wording import plain, quoted

_KINDS: Mapping[str, Table] = {
    "shift": {"kind": "shift"},
    "fixed_point_double": {"kind": "fixed_point", "product": "double"},
    "fixed_point_single": {"kind": "fixed_point", "product": "single"},
    "fixed_point_wide": {"kind": "fixed_point", "product": "wide"},
    "float32": {"kind": "float_once", "precision": "float32"},
    "float64": {"kind": "float_once", "precision": "float64"},
}
"""Values of ``requantize``."""

_ENDS = "float32_ends"
"""The ``scale_precision`` that is a kind now."""

_SAME = (
    "multiplier_bits addition addition_shift fused_bias ratio_conversions integer_whole_windows "
    "folded_factor folded_ends folded_constants"
)
_OPTIONS = {"multiplier_precision": "multiplier", **{name: name for name in _SAME.split()}}
"""Options of ``requantize``, by their name before."""

_IDLE = {"multiplier_precision", "addition_shift", "integer_whole_windows"}
"""Those that could be stated where they had no effect."""

_FOLDED = {(False, False): "none", (True, False): "per_tensor", (True, True): "per_channel"}
"""``folded_ends`` by what ``folded_ends`` and ``folded_channels`` were."""

_SUMS = {
    "accumulator_bits": "bits",
    "pair_bits": "pair_bits",
    "pair_block": "block",
    "pair_rows": "rows",
}
"""Options of ``accumulator``, by their name before."""

_FIELDS: Mapping[str, frozenset[str]] = {
    "requantize": frozenset(
        {"requantize", "scales_in_turn", "scale_precision", "folded_channels", *_OPTIONS}
    ),
    "accumulator": frozenset({"accumulator_overflow", *_SUMS}),
}
"""What decided a field of now."""

_DEFAULTS: Table = {
    **dict.fromkeys(("scales_in_turn", "folded_channels"), False),
    **{
        field.name: msgspec.to_builtins(field.default)
        for kind in typing.get_args(Requantization)
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    },
    "folded_ends": False,
}
"""What fields are that nothing states."""

_DECIDING = frozenset().union(*_FIELDS.values())
_SUBJECT = ("ops", "when", "instructions")
_MOST_OVERRIDES = 500
"""Each is compared with those before it."""


class _Override(NamedTuple):
    """An override of one or the other format, its fields those of format 1."""

    entry: Table
    fields: Table

    def implies(self, other: _Override) -> bool:
        """Tell whether the other holds wherever this one does."""
        when, others = (each.entry.get("when") or {} for each in (self, other))
        mine, theirs = (set(each.entry.get("instructions", ())) for each in (self, other))
        stated = all(when.get(key) == value for key, value in others.items())
        return stated and (not theirs or (bool(mine) and mine <= theirs))


def merge_upgraded(below: Table, table: Table, file: str) -> Table:
    """Merge a file's table over the one that it extends, and upgrade it if it is of format 1.

    Args:
        below: A table of format 2; ``{}`` where the file extends none.
        table: As it was read.
        file: Its name for messages.

    Raises:
        TargetError: It names arithmetic that there is not.
    """
    version = table.get("format", 1)
    if version != 1 or isinstance(version, bool):
        return merge(below, table)
    stated = {"format": FORMAT} if "format" in table else {}
    # A file without such fields means the same in both formats, and is spared the way back and
    # forth.
    if not _is_flat(table):
        return merge(below, table | stated)
    # Merged in the terms of format 1, because there an override of the file changes single fields
    # of the base's.
    return upgraded(merge(_flattened(below), table), file) | stated


def upgraded(table: Table, file: str) -> Table:
    """Return a table of format 1 as one of format 2; values of a wrong type stay as they are.

    Args:
        table: Complete: merged over what it extends.
        file: Its name for messages.

    Raises:
        TargetError: It names arithmetic that there is not, or an override changes part of what
            others state that may hold or not.
    """
    result = table | {"format": FORMAT}
    arithmetic = table.get("arithmetic")
    if not isinstance(arithmetic, dict):
        return result
    # Shared by both sections: overrides of [dynamic] come behind those of [arithmetic] and add to
    # them.
    before: list[_Override] = []
    for key in ("arithmetic", "dynamic"):
        section = table.get(key)
        overrides = section.get("overrides") if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(overrides, list):
            continue
        if len(overrides) > _MOST_OVERRIDES:
            raise TargetError(
                f"{file}: [{key}] has more than {_MOST_OVERRIDES} overrides",
                remedy=f"write format = {FORMAT}",
            )
        whole = [each for one in overrides for each in _whole(one, arithmetic, before, file)]
        result[key] = section | {"overrides": whole}
    groups = [group for group, names in _FIELDS.items() if names & arithmetic.keys()]
    result["arithmetic"] = _rest(result["arithmetic"]) | _nested(arithmetic, groups, file)
    return result


def without_nulls(data: Any) -> Any:
    """Return JSON values without keys that are null: those of format 1 that were not stated."""
    if isinstance(data, dict):
        return {key: without_nulls(value) for key, value in data.items() if value is not None}
    return [without_nulls(each) for each in data] if isinstance(data, list) else data


def _is_flat(table: Table) -> bool:
    """Tell whether a table has fields of format 1; without, both formats are alike."""
    sections = [
        each for key in ("arithmetic", "dynamic") if isinstance(each := table.get(key), dict)
    ]
    lists = [each for section in sections if isinstance(each := section.get("overrides"), list)]
    tables = [*sections, *(each for one in lists for each in one if isinstance(each, dict))]
    old = _DECIDING - {"requantize", "scale_precision"}
    return any(
        old & each.keys()
        or isinstance(each.get("requantize"), str)
        or each.get("scale_precision") == _ENDS
        for each in tables
    )


# ---- from flat fields to kinds ------------------------------------------------------------------


def _whole(entry: Any, base: Table, before: list[_Override], file: str) -> list[Table]:
    """Return overrides that state whole kinds, where one states some fields.

    There are several if its operators differ in what it adds to.
    """
    if not _is_readable(entry):
        return [entry]
    fields = {key: value for key, value in entry.items() if key not in _SUBJECT}
    own = _Override(entry, fields)
    groups = [group for group, names in _FIELDS.items() if names & fields.keys()]
    result: list[Table] = []
    for op in entry["ops"]:
        flat, others = dict(base), []
        for each in (each for each in before if op in each.entry["ops"]):
            if own.implies(each):
                flat |= each.fields
            else:
                others.append(each.fields)
        kinds = _nested(flat | fields, groups, file)
        # Of an override that may hold at the same node or not, the fields count in one case only:
        # one kind as a whole cannot say both.
        if any(_nested(flat | each | fields, groups, file) != kinds for each in others):
            raise TargetError(
                f"{file}: [arithmetic] an override for {plain(op)} changes part of what others "
                "before it state under another condition",
                remedy=f"write format = {FORMAT}, where an override states kinds as a whole",
            )
        kinds = _rest(entry) | kinds
        same = next((one for one in result if one == kinds | {"ops": one["ops"]}), None)
        if same is None:
            result.append(kinds | {"ops": [op]})
        else:
            same["ops"].append(op)
    before.append(own)
    return result


def _is_readable(entry: Any) -> bool:
    """Tell whether an override says when it holds; decoding tells what is wrong with others."""
    if not isinstance(entry, dict) or not isinstance(entry.get("when", {}), dict):
        return False
    lists = (entry.get("ops"), entry.get("instructions", []))
    return all(
        isinstance(one, list) and all(isinstance(each, str) for each in one) for one in lists
    )


def _rest(fields: Table) -> Table:
    """Return the fields that are as they were."""
    kept = {key: value for key, value in fields.items() if key not in _DECIDING}
    stored = fields.get("scale_precision", _ENDS)
    return kept if stored == _ENDS else kept | {"scale_precision": stored}


def _nested(flat: Table, groups: Sequence[str], file: str) -> Table:
    """Return the fields of now that are named, as flat ones decide them."""
    decide = {"requantize": _requantization, "accumulator": _accumulator}
    made = {group: decide[group](flat, file) for group in groups}
    return {group: value for group, value in made.items() if value is not None}


def _requantization(flat: Table, file: str) -> Any:
    name, turn = flat.get("requantize"), flat.get("scales_in_turn")
    if not isinstance(name, str):
        return name
    way = dict(_known(name, _KINDS, f"{file}: [arithmetic] requantize"))
    if way["kind"] == "float_once" and flat.get("scale_precision") == _ENDS:
        way = {"kind": "float_ends"} | ({} if name == "float32" else {"precision": name})
    elif turn is True and way["kind"] == "float_once":
        way["kind"] = "float_in_turn"
    elif turn not in (None, False):
        way["scales_in_turn"] = turn
    # What was a contradiction stays in the table, where decoding finds it.
    options = _options(Requantization)[way["kind"]]
    for old, new in _OPTIONS.items():
        is_idle = old in _IDLE or flat.get(old) in (None, False, "dequantized")
        if old in flat and (new in options or not is_idle):
            way[new] = flat[old]
    if way["kind"] == "float_ends":
        folded = flat.get("folded_ends") is True
        way["folded_ends"] = _FOLDED[folded, folded and flat.get("folded_channels") is True]
    return way


def _accumulator(flat: Table, file: str) -> Any:
    kind = flat.get("accumulator_overflow", "exact")
    if not isinstance(kind, str):
        return kind
    options = _known(kind, _options(Accumulator), f"{file}: [arithmetic] accumulator_overflow")
    given = {new: flat[old] for old, new in _SUMS.items() if old in flat and new in options}
    return {"kind": kind, **given}


def _known(name: str, table: Mapping[str, Any], label: str) -> Any:
    if name not in table:
        raise TargetError(f"{label} is {quoted(name)}", remedy=nearest(plain(name), table))
    return table[name]


def _options(kinds: Any) -> dict[str, tuple[str, ...]]:
    structs = typing.get_args(kinds)
    return {each.__struct_config__.tag: each.__struct_fields__ for each in structs}


# ---- and back, for a file of format 1 that extends one of format 2 ------------------------------


def _flattened(table: Table) -> Table:
    """Return a checked table of format 2 with the fields of format 1.

    Of the kinds that an override states as a whole it has what differs from all that may hold
    before it: so it stays what it changes where a file changes the rest.
    """
    result = dict(table)
    base: Table = table.get("arithmetic", {})
    # The section itself holds for every operator, like an override before all others.
    before = [_Override({}, _flat(base, base))]
    for key in ("arithmetic", "dynamic"):
        section = dict(table.get(key, {}))
        changes = []
        for entry in section.get("overrides", ()):
            flat, ops = _flat(entry, base), set(entry["ops"])
            known = [each.fields for each in before if ops & set(each.entry.get("ops", ops))]
            before.append(_Override(entry, flat))
            changes.append(
                {k: v for k, v in flat.items() if k in _SUBJECT or _differs(k, v, known)}
            )
        if section:
            kept = [each for each in changes if each.keys() - set(_SUBJECT)]
            result[key] = _flat(section, base) | ({"overrides": kept} if changes else {})
    return result


def _differs(name: str, value: Any, known: Sequence[Table]) -> bool:
    values = [each.get(name, _DEFAULTS.get(_OPTIONS.get(name, name))) for each in known]
    return name not in _DECIDING or any(each != value for each in values)


def _flat(section: Table, base: Table) -> Table:
    """Return a section, or an override, with every option of the kinds that it states."""
    flat = {key: value for key, value in section.items() if key not in _FIELDS}
    if "requantize" in section:
        way = _complete(section["requantize"], Requantization)
        kind, product, folded = way["kind"], way.get("product"), way.get("folded_ends", "none")
        by_kind = {"shift": "shift", "fixed_point": f"fixed_point_{product}"}
        stored = flat.get("scale_precision", base.get("scale_precision", "float32"))
        flat |= {old: way[new] for old, new in _OPTIONS.items() if new in way}
        flat |= {
            "requantize": by_kind.get(kind, way.get("precision", "float32")),
            "scales_in_turn": kind == "float_in_turn",
            "scale_precision": _ENDS if kind == "float_ends" else stored,
            "folded_ends": folded != "none",
            "folded_channels": folded == "per_channel",
        }
    if "accumulator" in section:
        sums = _complete(section["accumulator"], Accumulator)
        flat["accumulator_overflow"] = sums["kind"]
        flat |= {old: sums[new] for old, new in _SUMS.items() if new in sums}
    return flat


def _complete(table: Table, kinds: Any) -> Table:
    complete: Table = msgspec.to_builtins(msgspec.convert(table, kinds))
    return complete
