"""Mutations that leave JSON and TOML what they are: other types and ranges, other keys."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.fuzz.mutate.proto import NAMES
from tests.fuzz.mutate.raw import INTEGERS
from tests.fuzz.mutate.text import mutate_text

_VALUES: tuple[Any, ...] = (
    None, True, "", [], {}, [[]], {"a": {"b": []}}, 1e308, -1e308, 5e-324, -0.0, 0.5, 2**64,
    -(10**30), [1, 2, 3], [None], *NAMES, *INTEGERS,
)  # fmt: skip


def mutate_json(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the text with one to six mutations; see `mutate_bytes` for the arguments."""
    if random.random() < 0.25:
        return mutate_text(data, other, random)
    tree = json.loads(data)
    places = list(_places(json.loads(other)))
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        _mutate(tree, places, random)
    return json.dumps(tree, ensure_ascii=random.random() < 0.5).encode()


def mutate_toml(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the text with some mutations, often still TOML; see `mutate_bytes`."""
    if random.random() < 0.4:
        return mutate_text(data, other, random)
    tree = tomllib.loads(data.decode())
    places = list(_places(tomllib.loads(other.decode())))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _mutate(tree, places, random)
    return "".join(f"{json.dumps(k)} = {_inline(v)}\n" for k, v in tree.items()).encode()


def _inline(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_inline(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return '""' if value is None else json.dumps(value, ensure_ascii=False)


def _mutate(tree: Any, donor: list[tuple[Any, Any]], random: Random) -> None:
    places = list(_places(tree))
    if not places:
        return
    holder, key = random.choice(places)
    action = random.choice(
        ("odd", "odd", "own", "own", "other", "drop", "repeat", "rename", "nest")
    )
    if action == "odd":
        holder[key] = random.choice(_VALUES)
    elif action in ("own", "other"):
        source, at = random.choice(places if action == "own" else donor)
        same_key = [(s, k) for s, k in places if k == key]
        if random.random() < 0.7:
            source, at = random.choice(same_key or places)
        holder[key] = json.loads(json.dumps(source[at]))
    elif action == "drop":
        del holder[key]
    elif action == "nest":
        holder[key] = random.choice(([holder[key]], {"a": holder[key]}))
    elif isinstance(holder, list):
        holder.insert(random.randint(0, len(holder)), json.loads(json.dumps(holder[key])))
    else:
        name = random.choice((*NAMES, *[k for _, k in places if isinstance(k, str)]))
        holder[name] = holder.pop(key) if action == "rename" else holder[key]


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of the tree: the dict or list, and the key or index."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])
