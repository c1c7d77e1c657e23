from __future__ import annotations

from pathlib import Path

import pytest

from intact.graph import normalize
from intact.plan import NoteKind, Overrides, build_plan
from intact.targets import DType, load_target
from tests.models import residual_net
from tests.plans import own_target


def notes(overrides: Overrides, target: str = "onnxruntime") -> list[str]:
    plan = build_plan(normalize(residual_net()), load_target(target), overrides)
    return [str(note) for note in plan.notes if note.kind is NoteKind.WIDTH]


@pytest.mark.parametrize(
    "overrides", [Overrides(), Overrides(weight_bits=7), Overrides(activation_bits=6)]
)
def test_what_fits_the_types_of_the_target_needs_no_note(overrides: Overrides) -> None:
    assert notes(overrides) == []


def test_narrower_and_wider_types_are_said_once_a_width() -> None:
    (weights,) = notes(Overrides(weight_bits=4))
    assert "4-bit weights are held in int8, the type that target onnxruntime computes" in weights
    assert "(4 node(s))" in weights
    (activations,) = notes(Overrides(activation_bits=16))
    assert "16-bit activations are uint16" in activations
    assert "no integer operator for (10 node(s)): they may be computed in float" in activations
    both = notes(Overrides(weight_bits=2, activation_bits=12))
    assert len(both) == 2


@pytest.mark.parametrize("target", ["tvm", "tflite", "x86", "tengine-u8"])
def test_narrow_codes_in_a_wider_container_are_called_so(target: str) -> None:
    """Integer formats hold them in 8 bits and compute with integers, as with 6 bits in [tvm]."""
    (weights,) = notes(Overrides(weight_bits=4), target)
    dtype = load_target(target).weight.dtype
    assert f"4-bit weights are held in {dtype}, the type that target {target} computes" in weights
    assert "float" not in weights


def test_a_type_that_the_rule_declares_is_no_surprise(tmp_path: Path) -> None:
    rule = '[[op]]\nops = ["Conv"]\ninputs = ["uint8", "int4"]\noutputs = ["uint8"]\n'
    plan = build_plan(
        normalize(residual_net()), own_target(tmp_path, rule), Overrides(weight_bits=4)
    )
    assert [note for note in plan.notes if note.kind is NoteKind.WIDTH] == []


@pytest.mark.parametrize(
    ("bits", "signed", "dtype"),
    [
        (2, True, "int4"),
        (5, False, "uint8"),
        (8, True, "int8"),
        (9, False, "uint16"),
        (17, True, "int32"),
    ],
)
def test_the_smallest_type_that_holds_a_width(bits: int, signed: bool, dtype: str) -> None:
    assert DType.holding(bits, signed=signed) == dtype
