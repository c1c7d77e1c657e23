"""One error for all that cannot be expressed."""

from __future__ import annotations

import pytest

from intact.errors import ExportError, Unsupported
from intact.program.unsupported import UnsupportedNodes


def test_unsupported_nodes_of_one_reason_are_reported_together() -> None:
    found = UnsupportedNodes("C cannot hold", "keep them float")
    for name in ("a", "b", "a"):
        found.add(repr(name), "no kernel")
    found.add("'c'", "16 bits")
    assert str(found.error()) == (
        "C cannot hold 'a', 'b': no kernel; 'c': 16 bits; keep them float"
    )


def test_reasons_that_differ_in_names_are_one_line_where_all_would_be_too_long() -> None:
    found = UnsupportedNodes("C cannot hold", "keep them float")
    for number in range(40):
        found.add(f"'node_{number}'", f"a length of 'value_{number}' is not known")
    found.add("'b'", "16 bits")
    assert str(found.error()) == (
        "C cannot hold 40 places ('node_0', 'node_1', 'node_2', ...): a length of 'value_0' is not "
        "known; 'b': 16 bits; keep them float"
    )
    assert not found.error().unsaid


def test_a_remedy_of_all_is_said_once() -> None:
    found = UnsupportedNodes("C cannot hold", "keep it float")
    found.add("'a'", Unsupported("no kernel", "leave it out"))
    found.add("'b'", Unsupported("16 bits", "leave it out"))
    assert str(found.error()) == "C cannot hold 'a': no kernel; 'b': 16 bits; leave it out"


def test_different_remedies_stand_by_their_reasons() -> None:
    found = UnsupportedNodes("C cannot hold")
    found.add("'a'", Unsupported("no kernel", "leave it out"))
    found.add("'b'", Unsupported("16 bits", "take 8"))
    assert str(found.error()) == (
        "C cannot hold 'a': no kernel (leave it out); 'b': 16 bits (take 8); mend each as it says"
    )


def test_collected_reasons_are_raised_at_the_end() -> None:
    found = UnsupportedNodes("C cannot hold")
    found.raise_any()
    with found.collect("'a'"):
        raise Unsupported("no kernel", "leave it out")
    with pytest.raises(ExportError, match="'a': no kernel"):
        found.raise_any()
