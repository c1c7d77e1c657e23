"""Conversion of raw tables to a ``Target``, and of msgspec's errors to messages about the file.

msgspec reports a JSON path (``$.op[3].weight.bits``). The user wrote TOML, perhaps with rules from
another file, so messages name the table and, in a list, the operators of the entry.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from typing import Any

import msgspec

from intact.errors import TargetError, nearest
from intact.targets.merge import Table
from intact.targets.rules import with_float_form
from intact.targets.schema import Target
from intact.targets.wording import plain, quoted, rule_label

_COMPLAINT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)

_UNKNOWN_KEY = re.compile(r"^Object contains unknown field `(?P<key>.*)`$", re.DOTALL)

_MISSING_KEY = re.compile(r"^Object missing required field `(?P<key>.*)`$", re.DOTALL)

_BAD_CHOICE = re.compile(r"^Invalid enum value '(?P<value>.*)'$", re.DOTALL)

_WRONG_TYPE = re.compile(r"^Expected `(?P<wanted>.*)`, got `(?P<given>.*)`$", re.DOTALL)

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")

_TOML_TYPES = {"int": "integer", "str": "string", "bool": "true or false", "object": "table"}


def to_target(table: Table, file: str) -> Target:
    """Convert a completed table; float forms of operators are told apart from integer ones.

    Raises:
        TargetError: A key is unknown, missing or of a wrong type; the message has file, table and
            key, and the nearest spelling or the expected type.
    """
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
    if unknown := _UNKNOWN_KEY.match(what):
        where = _place(steps, table)
        return TargetError(
            f"{file}: unknown key {quoted(unknown['key'])}{where and f' in {where}'}",
            remedy=nearest(plain(unknown["key"]), _keys_at(steps)),
        )
    if missing := _MISSING_KEY.match(what):
        where = _place(steps, table)
        return TargetError(
            f"{file}: key {missing['key']!r} is missing{where and f' in {where}'}",
            remedy="add it",
        )
    where = _place(steps[:-1], table)
    place = f"{where} {steps[-1]}" if where and steps else (steps[-1] if steps else "the file")
    if choice := _BAD_CHOICE.match(what):
        return TargetError(
            f"{file}: {place} is {quoted(choice['value'])}",
            remedy=nearest(plain(choice["value"]), _choices_at(steps)),
        )
    if wrong := _WRONG_TYPE.match(what):
        wanted = " or ".join(_TOML_TYPES.get(t, t) for t in wrong["wanted"].split(" | "))
        given = _TOML_TYPES.get(wrong["given"], wrong["given"])
        return TargetError(f"{file}: {place} is of type {given}", remedy=f"give {wanted}")
    return TargetError(f"{file}: {place}: {plain(what)}", remedy="correct the value")


def _place(steps: list[str], table: Table) -> str:
    """Format the table of a path as in TOML."""
    if not steps:
        return ""
    if steps[0] == "op" and len(steps) > 1:
        entry: Any = table["op"][int(steps[1])]
        label = rule_label(entry.get("ops") if isinstance(entry, dict) else None)
        rest = [step for step in steps[2:] if step != "..."]
        return label + (f", {'.'.join(rest)}" if rest else "")
    if steps[0] == "fusion" and len(steps) > 1:
        return f"[[fusion]] number {int(steps[1]) + 1}"
    return f"[{'.'.join(step for step in steps if not step.isdigit())}]"


def _keys_at(steps: list[str]) -> list[str]:
    found: Any = Target
    for step in steps:
        found = _inside(found, step)
    for candidate in _alternatives(found):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return [field.encode_name for field in msgspec.structs.fields(candidate)]
    return []


def _choices_at(steps: list[str]) -> list[str]:
    found: Any = Target
    for step in steps:
        found = _inside(found, step)
    choices: list[str] = []
    for candidate in _alternatives(found):
        if isinstance(candidate, type) and issubclass(candidate, enum.Enum):
            choices += [str(member.value) for member in candidate]
        if typing.get_origin(candidate) is typing.Literal:
            choices += [str(value) for value in typing.get_args(candidate)]
    return choices


def _inside(container: Any, step: str) -> Any:
    """Return the type of a struct's field, a tuple's item or a dict's value."""
    for candidate in _alternatives(container):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            for field in msgspec.structs.fields(candidate):
                if field.encode_name == step:
                    return field.type
        origin = typing.get_origin(candidate)
        if origin is tuple and (step.isdigit() or step == "..."):
            return typing.get_args(candidate)[0]
        if origin is dict:
            return typing.get_args(candidate)[1]
    return None


def _alternatives(found: Any) -> tuple[Any, ...]:
    if typing.get_origin(found) in {typing.Union, types.UnionType}:
        return typing.get_args(found)
    return (found,)
