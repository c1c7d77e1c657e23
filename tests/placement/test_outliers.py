"""A net that loses an output to channels much larger than the others is equalized unasked."""

from __future__ import annotations

import onnx
import pytest

import intact
from intact.placement import outliers
from tests.placement.test_huge import of_channels, samples

SENTENCE = "channels are equalized"


def lost() -> onnx.ModelProto:
    """Convolutions with channels many times larger than the others, and not hundreds of times."""
    return of_channels(42.0, "Relu", at=(0, 2, 4))


def told(model: onnx.ModelProto, **options: object) -> list[str]:
    found = intact.quantize(model, samples(model), target="tflite", **options)  # type: ignore[arg-type]
    return [str(note) for note in found.plan.notes if SENTENCE in str(note)]


def test_an_output_that_is_lost_to_a_channel_is_equalized() -> None:
    (note,) = told(lost())
    assert "channel 3 of" in note
    assert note.endswith("--preset fast leaves it out")


@pytest.mark.parametrize("options", [{"preset": "fast"}, {"improve": ["bias"]}])
def test_what_the_user_chooses_is_left_alone(options: dict[str, object]) -> None:
    assert told(lost(), **options) == []


def test_nothing_is_looked_at_where_little_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(outliers, "_outliers")
    assert told(of_channels(1.0, "Relu")) == []


def test_what_would_take_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outliers, "UNASKED_SECONDS", 0.0)
    assert told(lost()) == []
