"""Names of hostile models stay names."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from intact.formats.c.names import RESERVED, Identifiers, comment, identifier

HOSTILE = [
    "*/ int main(void) { return 1; } /*",
    'a"); system("true',
    "line\nbreak",
    "tail\\",
    "what??/",
    "int",
    "Int",
    "NULL",
    "int8_t",
    "copy",
    "memory",
    "arena",
    "arena_bytes",
    "model_run",
    "convolution_params",
    "#define x",
    "größe",
    "",
    " ",
    "7up",
    "x" * 300,
    "a/b",
    "a.b",
    "A_B",
]


@given(st.text() | st.sampled_from(HOSTILE))
def test_identifiers_are_identifiers(name: str) -> None:
    text = identifier(name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text)
    assert text.lower() not in RESERVED
    assert not text.endswith("_t")
    assert "__" not in text
    assert len(text) <= 45


@given(st.lists(st.text() | st.sampled_from(HOSTILE), max_size=30))
def test_identifiers_are_unique_in_either_case(names: list[str]) -> None:
    given_out = Identifiers(["taken"])
    found = [given_out.unique(name, "_x").lower() for name in [*names, *names]]
    assert len(set(found)) == len(found)


@given(st.text() | st.sampled_from(HOSTILE))
def test_comments_do_not_end(text: str) -> None:
    written = comment(text)
    assert re.fullmatch(r"[ -~]*", written)
    assert not re.search(r"\*|\\|\?|\n", written)
    assert len(written) <= 160
