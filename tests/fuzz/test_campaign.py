"""What a reader must not do is noticed, with the file it did it with."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fuzz.campaign import run_cases


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("raise", "KeyError"),
        ("nothing", "not one line"),
        ("chat", "not one line"),
        ("memory", "Unable to allocate"),
        ("hidden", "too much memory"),
        ("hang", "Timeout"),
        ("toil", f"exit code {-signal.SIGPROF}"),
        ("abort", "exit code -6"),
    ],
)
def test_what_must_not_happen_is_noticed(broken: str, says: str, tmp_path: Path) -> None:
    failures = list(run_cases(broken, seed=1, first=0, count=8))
    assert failures
    cases = [failure.case for failure in failures]
    assert cases == sorted(set(cases))
    for failure in failures:
        assert says in failure.wrong
        assert failure.save(tmp_path).read_bytes() == b"bad"
    described = tmp_path / f"{broken}-1-{cases[0]}.txt.txt"
    assert f"{broken}, seed 1, case {cases[0]}" in described.read_text()


def test_a_refusal_in_one_line_is_as_it_should_be() -> None:
    assert not list(run_cases("refuse", seed=1, first=0, count=8))
