"""Notes on several nodes that say the same."""

from __future__ import annotations

import pytest

from intact.cli.show_notes import notes
from intact.plan import Note, NoteKind


def overflow(node: str, channels: int) -> Note:
    message = f"the int32 bias would overflow in {channels} channel(s)"
    return Note(NoteKind.BIAS_OVERFLOW, node, message, "keep it float")


def lines(capfd: pytest.CaptureFixture[str], *found: Note) -> list[str]:
    notes(found, all_in="in out/plan.json")
    return capfd.readouterr().out.splitlines()


def test_notes_that_say_the_same_are_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    many = [overflow(f"conv{number}", number) for number in (2, 1, 9, 4, 3)]
    other = Note(NoteKind.TIE, "add", "has one scale")
    assert lines(capfd, many[0], other, *many[1:]) == [
        "note 5 nodes (conv2, conv1, conv9 and 2 more): the int32 bias would overflow in 1 to 9 "
        "channel(s); keep it float; each: in out/plan.json",
        "note add: has one scale",
    ]


def test_a_count_that_all_share_stays(capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = lines(capfd, *(overflow(name, 1) for name in "abc"))
    assert line.startswith("note 3 nodes (a, b, c): the int32 bias would overflow in 1 channel(s);")


def test_notes_that_differ_or_are_few_stay_apart(capfd: pytest.CaptureFixture[str]) -> None:
    few = [overflow("a", 1), overflow("b", 2)]
    assert lines(capfd, *few) == [f"note {note}" for note in few]
    about = [Note(NoteKind.TIE, name, f"its input is {name!r}") for name in ("x1", "x2", "x3")]
    assert lines(capfd, *about) == [f"note {note}" for note in about]
    whole = [Note(NoteKind.EXPORT, "", f"{count} tables") for count in (1, 2, 3)]
    assert lines(capfd, *whole) == [f"note {note}" for note in whole]


def measured(*losses: str) -> list[Note]:
    said = "loses {} dB in 3 channels of 0.5"
    return [
        Note(NoteKind.CALIBRATION, f"n{number}", said.format(loss))
        for number, loss in enumerate(losses)
    ]


def test_notes_that_differ_in_decimals_are_one_line_with_their_range(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (line,) = lines(capfd, *measured("0.456", "0.123", "0.3", "0.2"))
    assert line == (
        "note 4 nodes (n0, n1, n2 and 1 more): loses 0.12 to 0.46 dB in 3 channels of 0.5; "
        "each: in out/plan.json"
    )


@pytest.mark.parametrize(
    ("losses", "shown"),
    [
        (("1234.5", "-3.25", "0.1"), "-3.2 to 1234"),
        (("1.2e-05", "0.5", "7"), "1.2e-05 to 7"),
        (("0.1201", "0.1202", "0.1203"), "0.12"),
    ],
)
def test_ranges_of_decimals_are_short(
    losses: tuple[str, ...], shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (line,) = lines(capfd, *measured(*losses))
    assert f": loses {shown} dB in 3" in line


def test_versions_and_names_with_digits_are_no_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    about = [Note(NoteKind.TIE, name, f"needs opset-{name}.2.1") for name in "123"]
    assert lines(capfd, *about) == [f"note {note}" for note in about]
