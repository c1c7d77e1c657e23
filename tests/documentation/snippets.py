"""Finds the fenced blocks and the inline code of the documentation.

A comment directly before a block says what is special about it: ``<!-- not run: REASON -->``, or
``<!-- file: NAME -->`` for the text of a file that later blocks of the page use.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from intact.recipe.commands import RECIPES, flags_of

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>not run|file): (?P<said>.*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FLAG = re.compile(r"--[a-z][a-z-]*")
_OTHER_COMMANDS = frozenset({"targets", "demo", "report", "compare", "completion"})
"""Commands without a recipe."""
_EVERYWHERE = frozenset({"--help", "--help-all", "--version", "--json", "--quiet", "--recipe"})


class Block(NamedTuple):
    """One fenced block.

    Attributes:
        language: As the fence has it; empty for what a command prints.
        text: Its lines, not indented.
        line: The line number of the fence, from 1.
        file: The name of the file whose text it is, else empty.
        not_run: Why it is not run; empty for blocks that are.
    """

    language: str
    text: str
    line: int
    file: str
    not_run: str


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    """The name of a page: ``README.md``, ``targets/tvm.md``."""
    return page.name if page.parent == REPOSITORY else page.relative_to(DOCS).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            textwrap.dedent(found["text"]),
            text.count("\n", 0, found.start("indent")) + 1,
            found["said"] if found["marker"] == "file" else "",
            found["said"] if found["marker"] == "not run" else "",
        )
        for found in _BLOCK.finditer(text)
    ]


def commands_of(block: str) -> list[list[str]]:
    """The command lines of a block as words, without comments."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def inline_code(page: Path) -> Iterator[str]:
    """What stands in single backquotes outside of blocks."""
    yield from _INLINE.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")))


def unknown_flags(command: str) -> list[str]:
    """The flags in a command line of intact that this command does not have."""
    name, *_ = command.split()[1:] or [""]
    flags = _FLAG.findall(command)
    if name in RECIPES:
        return [flag for flag in flags if flag not in flags_of(RECIPES[name]) | _EVERYWHERE]
    known = name in _OTHER_COMMANDS or not name or not name.isalpha() or name.startswith("-")
    return [] if known else [name]


def every_flag() -> frozenset[str]:
    """The flags of all commands."""
    return frozenset().union(_EVERYWHERE, *map(flags_of, RECIPES.values()))
