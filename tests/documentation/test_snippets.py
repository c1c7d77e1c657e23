"""Every command and every snippet of the README and the documentation runs, in its order."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from intact.cli import run
from tests.documentation.folder import prepare
from tests.documentation.prepared import ELSEWHERE, PREPARED
from tests.documentation.snippets import (
    REPOSITORY,
    Block,
    blocks_of,
    commands_of,
    every_flag,
    inline_code,
    name_of,
    pages,
    unknown_flags,
)

PAGES = {name_of(page): page for page in pages()}
RUN = {"sh", "python", "toml"}
SHOWN = {"", "text", "yaml", "json", "c", "cpp", "js", "{toctree}", "{eval-rst}"}
"""Blocks of other languages: what is printed, what a file has, what the site is made of."""
NOWHERE_ELSE: tuple[frozenset[str], str] = (frozenset(), "")
WITH_BLOCKS = [
    name
    for name, page in PAGES.items()
    if {block.language for block in blocks_of(page)} & RUN - ELSEWHERE.get(name, NOWHERE_ELSE)[0]
]
MOST_NOT_RUN = 6
OTHER_TOOLS = re.compile(r"--(int8)\b")
"""Inline code about flags of other programs."""


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_every_block_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    prepare(tmp_path)
    names: dict[str, Any] = {"__name__": "snippet"}
    if name in PREPARED:
        names.update(PREPARED[name]() or {})
    elsewhere, _ = ELSEWHERE.get(name, NOWHERE_ELSE)
    for block in blocks_of(PAGES[name]):
        place = f"{name}, line {block.line}"
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        if block.not_run or block.file or block.language in elsewhere:
            continue
        if block.language == "sh":
            for words in commands_of(block.text):
                run_command(words, place, capfd)
        elif block.language == "python":
            exec(compile(block.text, place, "exec"), names)


def run_command(words: list[str], place: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Run a command of intact; of others, look whether there is what they name."""
    if words[0] == "intact":
        code, error = run(words[1:]), capfd.readouterr().err
        assert code == 0, f"{place}: {' '.join(words)}: {error}"
    elif words[0] == "make":
        rules = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(rules), place
    elif words[:2] == ["pip", "install"]:
        assert words[2] != "intact", f"{place}: that is another project"
        known = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        (extras,) = re.findall(r"^(?:intact-quantizer|\.|dist/\*\.whl)(?:\[(.*)\])?$", words[2])
        assert {each for each in extras.split(",") if each} <= set(known["optional-dependencies"])
    elif words[0] in ("cc", "./classify"):
        if shutil.which("cc") is not None:
            subprocess.run(words, check=True, timeout=60)
            said = capfd.readouterr().out
            assert words[0] == "cc" or re.match(r"\d+ [\d.]+\n", said), place
    elif words[0] == "python":
        assert (REPOSITORY / words[1]).is_file(), place
    else:
        pytest.fail(f"{place}: what is to be done with {' '.join(words)}?")


def test_blocks_that_are_not_run_are_few_and_right() -> None:
    left: list[Block] = []
    for name, page in PAGES.items():
        blocks = blocks_of(page)
        for block in blocks:
            place = f"{name}, line {block.line}"
            assert block.language in RUN | SHOWN, place
            printed = block.language not in RUN
            commands = re.search(r"^(intact|pip|make) ", block.text, re.MULTILINE)
            assert not (printed and commands), f"{place}: say sh"
            if block.language == "toml":
                tomllib.loads(block.text)
                assert block.file, f"{place}: say <!-- file: NAME --> in the line before"
            if block.file:
                rest = "".join(each.text for each in blocks if each.line > block.line)
                assert Path(block.file).stem in rest, f"{place}: nothing reads {block.file}"
            if block.not_run:
                left.append(block)
            if block.not_run and block.language == "sh":
                for line in block.text.splitlines():
                    assert not (line.startswith("intact ") and unknown_flags(line)), place
            if block.not_run and block.language == "python":
                compile(block.text, place, "exec")
    assert len(left) <= MOST_NOT_RUN
    assert all(len(block.not_run.split()) > 1 for block in left)


@pytest.mark.parametrize("name", PAGES)
def test_options_in_the_text_exist(name: str) -> None:
    flags = every_flag()
    for code in inline_code(PAGES[name]):
        if code.startswith("intact "):
            assert not unknown_flags(code), code
        elif code.startswith("--") and not OTHER_TOOLS.search(code):
            assert set(re.findall(r"--[a-z][a-z-]*", code)) <= flags, code


def test_pages_that_others_run_exist() -> None:
    for name, (_, test) in ELSEWHERE.items():
        assert name in PAGES
        assert (REPOSITORY / test).is_file()
    assert set(PREPARED) <= set(PAGES)
