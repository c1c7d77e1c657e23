"""The formats that are asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intact.cli import options
from intact.errors import UsageError
from intact.formats.registry import FormatName, chosen_formats
from intact.targets import load_target


def test_a_format_with_a_typing_error_is_guessed_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'tflite'\?$"):
        chosen_formats(load_target("tflite"), ["tflit"])


def test_formats_asked_for_twice_are_written_once() -> None:
    found = chosen_formats(load_target("tflite-micro"), ["c", "c"])
    assert found == (FormatName.C,)


def test_the_help_names_every_format() -> None:
    described = Path(options.__file__).read_text().split("What to write: ")[1].split(";")[0]
    words = set(re.findall(r"\w+", described))
    assert {name.value for name in FormatName} <= words
