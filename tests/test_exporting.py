"""The formats that are asked for."""

from __future__ import annotations

import pytest

from intact.errors import UsageError
from intact.exporting import FormatName, chosen_formats
from intact.targets import load_target


def test_a_format_with_a_typing_error_is_guessed_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'tflite'\?$"):
        chosen_formats(load_target("tflite"), ["tflit"])


def test_formats_asked_for_twice_are_written_once() -> None:
    found = chosen_formats(load_target("tflite-micro"), ["c", "c"])
    assert found == (FormatName.C,)
