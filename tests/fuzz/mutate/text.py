"""Mutations of text in tokens and lines: TOML, JSON, CSV and the tables of other tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from tests.fuzz.mutate.raw import mutate_bytes

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[-+\w.]+|\s+|.', re.DOTALL)
_ODD = (
    "0", "-1", "1.5", "1e999", "nan", "inf", "-inf", "NaN", "9" * 5000, "2147483648", "-0.0",
    "9223372036854775808", "1e-400", "0x7f", "true", "null", '""', '"a\\nb"', '"\\u0000"', "''",
    '"\\ud800"', f'"{"x" * 3000}"', "[]", "{}", "[[]]", "2020-01-01", "\u202e", "\0", "\r", ",",
    '"Conv"', '"../up.toml"', '"/etc/passwd"', "a.b.c", ".", "=", "[", "]", "{", "}", "#", "\n",
)  # fmt: skip
_DEPTHS = (20, 300, 20_000)


def mutate_text(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the text with one to six mutations; see `mutate_bytes` for the arguments."""
    if random.random() < 0.15:
        return mutate_bytes(data, other, random)
    tokens = _TOKEN.findall(data.decode("utf-8"))
    donor = _TOKEN.findall(other.decode("utf-8"))
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        tokens = random.choice(_MUTATIONS)(tokens, donor, random)
    return "".join(tokens).encode("utf-8")


def _exchange(tokens: list[str], donor: list[str], random: Random) -> list[str]:
    """Put a token of this or of the other text in the place of one of the same kind."""
    at = _place(tokens, random)
    same = [each for each in random.choice((tokens, donor)) if _kind(each) == _kind(tokens[at])]
    return [*tokens[:at], random.choice(same or [""]), *tokens[at + 1 :]]


def _put_odd(tokens: list[str], _donor: list[str], random: Random) -> list[str]:
    at = _place(tokens, random)
    return [*tokens[:at], random.choice(_ODD), *tokens[at + random.randint(0, 1) :]]


def _cut(tokens: list[str], _donor: list[str], random: Random) -> list[str]:
    at = _place(tokens, random)
    return [*tokens[:at], *tokens[at + random.choice((1, 1, 2, 5, 40)) :]]


def _move_lines(tokens: list[str], donor: list[str], random: Random) -> list[str]:
    """Drop or repeat some lines, or bring some of the other text."""
    lines = "".join(tokens).splitlines(keepends=True) or [""]
    extra = "".join(donor).splitlines(keepends=True) or [""]
    at, length = random.randrange(len(lines)), random.choice((1, 1, 2, 8))
    source = random.choice((lines, lines, extra))
    start = random.randrange(len(source))
    drop = random.choice((0, length))
    return [*lines[:at], *source[start : start + length], *lines[at + drop :]]


def _nest(tokens: list[str], _donor: list[str], random: Random) -> list[str]:
    """Put a token into many brackets."""
    at, depth = _place(tokens, random), random.choice(_DEPTHS)
    opening, closing = random.choice((("[", "]"), ('{"a":', "}"), ("{a=", "}"), ("a.", "")))
    rest = closing * random.choice((depth, 0))
    return [*tokens[:at], opening * depth, tokens[at], rest, *tokens[at + 1 :]]


def _place(tokens: list[str], random: Random) -> int:
    if not tokens:
        tokens.append("")
    solid = [at for at, token in enumerate(tokens) if not token.isspace()]
    return random.choice(solid or [0])


def _kind(token: str) -> str:
    for kind, starts in (("string", "\"'"), ("number", "0123456789+-")):
        if token[:1] in starts and token:
            return kind
    return "word" if token.isalnum() else token


_MUTATIONS: tuple[Callable[[list[str], list[str], Random], list[str]], ...] = (
    *[_exchange] * 4,
    *[_put_odd] * 3,
    *[_move_lines] * 2,
    _cut,
    _nest,
)
