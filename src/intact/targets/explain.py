"""Converts raw tables to a ``Target``, and errors of msgspec to messages about the file.

msgspec reports a JSON path (``$.op[3].weight.bits``). The user wrote TOML, perhaps with rules from
another file, so messages name the table and, in a list, the operators of the entry.
"""

from __future__ import annotations

import enum
import re
import typing
from types import UnionType
from typing import Any

import msgspec

from intact.errors import TargetError, nearest
from intact.targets.merge import Table
from intact.targets.rules import with_float_form
from intact.targets.schema import FORMAT, Target
from intact.targets.wording import plain, quoted, rule_label

_COMPLAINT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)

_UNKNOWN_KEY = re.compile(r"^Object contains unknown field `(?P<key>.*)`$", re.DOTALL)

_MISSING_KEY = re.compile(r"^Object missing required field `(?P<key>.*)`$", re.DOTALL)

_BAD_CHOICE = re.compile(r"^Invalid (?:enum )?value '(?P<value>.*)'$", re.DOTALL)

_BAD_NUMBER = re.compile(r"^Expected `int` (?P<sign>[<>]=) (?P<limit>-?\d+)$")

_WRONG_TYPE = re.compile(r"^Expected `(?P<wanted>.*)`, got `(?P<given>.*)`$", re.DOTALL)

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")

_TOML_TYPES = {"int": "integer", "str": "string", "bool": "true or false", "object": "table"}


def to_target(table: Table, file: str) -> Target:
    """Convert a completed table; float forms of operators are told apart from integer ones.

    Raises:
        TargetError: The file is of another format, or a key is unknown, missing or of a wrong type;
            the message has file, table and key, and the nearest spelling or the expected type.
    """
    version = table.get("format", FORMAT)
    if isinstance(version, int) and version != FORMAT:
        raise TargetError(
            f"{file}: format is {version}", remedy=f"this version reads formats 1 to {FORMAT}"
        )
    try:
        target = msgspec.convert(table, Target, strict=True)
    except msgspec.ValidationError as error:
        raise _explained(str(error), table, file) from error
    except RecursionError as error:
        raise TargetError(f"{file}: nested too deeply", remedy="use the documented keys") from error
    rules = tuple(with_float_form(rule, target.name) for rule in target.rules)
    return msgspec.structs.replace(target, rules=rules)


def _explained(message: str, table: Table, file: str) -> TargetError:
    match = _COMPLAINT.match(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    steps = [name or index for name, index in _STEP.findall(path)]
    # msgspec's message has neither the value nor the names that would have been right: both are
    # looked up along its path.
    types, value = _at(steps, table)
    if unknown := _UNKNOWN_KEY.match(what):
        where, key = _place(steps, table), plain(unknown["key"])
        # An option of another kind is no misspelling: it is told which kind has it.
        kinds = [kind for kind in _kinds(types) if key in _keys(types, {"kind": kind})]
        return TargetError(
            f"{file}: unknown key {quoted(unknown['key'])}{where and f' in {where}'}",
            remedy=f"it is one of kind {_either(kinds)}"
            if kinds
            else nearest(key, _keys(types, value)),
        )
    if missing := _MISSING_KEY.match(what):
        where = _place(steps, table)
        kinds = _kinds(types) if missing["key"] == "kind" else []
        return TargetError(
            f"{file}: key {missing['key']!r} is missing{where and f' in {where}'}",
            remedy=f"add it: {_either(kinds)}" if kinds else "add it",
        )
    where = _place(steps[:-1], table)
    place = f"{where} {steps[-1]}" if where and steps else (steps[-1] if steps else "the file")
    if choice := _BAD_CHOICE.match(what):
        # A wrong kind is reported at the key `kind`: what it may be, the table around it says.
        choices = _choices(types) or _kinds(_at(steps[:-1], table)[0])
        return TargetError(
            f"{file}: {place} is {quoted(choice['value'])}",
            remedy=nearest(plain(choice["value"]), choices),
        )
    if number := _BAD_NUMBER.match(what):
        side = "more" if number["sign"] == ">=" else "less"
        return TargetError(
            f"{file}: {place} is {value}", remedy=f"give {number['limit']} or {side}"
        )
    if wrong := _WRONG_TYPE.match(what):
        wanted = " or ".join(_TOML_TYPES.get(t, t) for t in wrong["wanted"].split(" | "))
        given = _TOML_TYPES.get(wrong["given"], wrong["given"])
        if kinds := _kinds(types):
            wanted = f"{{ kind = ... }}, where kind is {_either(kinds)}"
        return TargetError(f"{file}: {place} is of type {given}", remedy=f"give {wanted}")
    return TargetError(f"{file}: {place}: {plain(what)}", remedy="correct the value")


def _place(steps: list[str], table: Table) -> str:
    """Format the table of a path as in TOML; an entry of a list by its operators."""
    if not steps:
        return ""
    if steps[0] == "fusion" and len(steps) > 1:
        return f"[[fusion]] number {int(steps[1]) + 1}"
    number = next((place for place, step in enumerate(steps) if step.isdigit()), None)
    if number is None or steps[number - 1] not in ("op", "overrides"):
        return f"[{'.'.join(step for step in steps if not step.isdigit())}]"
    entry = _at(steps[: number + 1], table)[1]
    label = rule_label(entry.get("ops") if isinstance(entry, dict) else None)
    if steps[:number] != ["op"]:
        label = label.replace("[[op]]", f"[[{'.'.join(steps[:number])}]]")
    rest = [step for step in steps[number + 1 :] if step != "..."]
    return label + (f", {'.'.join(rest)}" if rest else "")


def _either(kinds: list[str]) -> str:
    *others, last = map(repr, kinds)
    return f"{', '.join(others)} or {last}" if others else last


def _at(steps: list[str], table: Table) -> tuple[tuple[Any, ...], Any]:
    """Return the types that a path may have, and the value there; None where there is none."""
    types: tuple[Any, ...] = (Target,)
    value: Any = table
    for step in steps:
        types = _alternatives(_inside(types, value, step))
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit():
            value = value[int(step)]
    return types, value


def _inside(types: tuple[Any, ...], value: Any, step: str) -> Any:
    """Return the type of a struct's field, a tuple's item or a dict's value."""
    for candidate in _of_kind(types, value):
        for field in msgspec.structs.fields(candidate):
            if field.encode_name == step:
                return field.type
    for candidate in types:
        origin = typing.get_origin(candidate)
        if origin is tuple and (step.isdigit() or step == "..."):
            return typing.get_args(candidate)[0]
        if origin is dict:
            return typing.get_args(candidate)[1]
    return None


def _of_kind(types: tuple[Any, ...], value: Any) -> list[type[msgspec.Struct]]:
    """Return the structs among types; of those that a kind tells apart, the one that it names."""
    structs = [
        each for each in types if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    kind = value.get("kind") if isinstance(value, dict) else None
    return [each for each in structs if each.__struct_config__.tag == kind] or structs


def _keys(types: tuple[Any, ...], value: Any) -> list[str]:
    structs = _of_kind(types, value)
    return [field.encode_name for field in msgspec.structs.fields(structs[0])] if structs else []


def _kinds(types: tuple[Any, ...]) -> list[str]:
    tags = [each.__struct_config__.tag for each in _of_kind(types, None)]
    return [tag for tag in tags if isinstance(tag, str)]


def _choices(types: tuple[Any, ...]) -> list[str]:
    choices: list[str] = []
    for candidate in types:
        if isinstance(candidate, type) and issubclass(candidate, enum.Enum):
            choices += [str(member.value) for member in candidate]
        if typing.get_origin(candidate) is typing.Literal:
            choices += [str(value) for value in typing.get_args(candidate)]
    return choices


def _alternatives(found: Any) -> tuple[Any, ...]:
    if typing.get_origin(found) in {typing.Union, UnionType}:
        return typing.get_args(found)
    return (found,)
