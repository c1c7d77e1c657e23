"""Weights in blocks in OpenVINO: compressed in its own files, and compared layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

import intact
from intact.errors import UsageError
from intact.formats.openvino.write import OpenVinoModel
from tests.block_nets import WIDTH, WORDS, decoder, dense_net

pytest.importorskip("openvino")

IDS = {"ids": np.random.default_rng(0).integers(0, WORDS, (3, 7))}


@pytest.mark.parametrize(
    ("bits", "size", "zero_points"), [(4, 32, False), (4, 64, True), (8, 32, False), (3, 32, True)]
)
def test_each_layer_computes_what_the_plan_says(bits: int, size: int, zero_points: bool) -> None:
    result = intact.quantize(
        decoder(), target="openvino", block=size, weight_bits=bits, zero_points=zero_points
    )
    found = intact.verify(result, IDS)
    assert len(found.float_layers) == 3
    assert max(each.relative for each in found.float_layers) < 2e-6
    assert not any(each.differs for each in found.float_layers)
    assert not found.executed_otherwise()


def test_files_hold_one_table_of_half_bytes_and_ask_for_floats() -> None:
    result = intact.quantize(decoder(), target="openvino", block=32)
    written = result.exports["openvino"]
    assert isinstance(written, OpenVinoModel)
    codes, scales = (WORDS + WIDTH) * WIDTH // 2, (WORDS + WIDTH) * WIDTH // 32 * 2
    assert len(written.ir_files["model.bin"]) < codes + scales + 200
    text = written.ir_files["model.xml"].decode()
    assert "<DYNAMIC_QUANTIZATION_GROUP_SIZE" in text
    assert not [note for note in result.plan.notes if "stored twice" in note.message]


def test_rows_that_groups_do_not_part_stay_float() -> None:
    plan = intact.quantize(dense_net(), target="openvino", block=32).plan
    assert plan.decisions["second"].reason.startswith("weights only: ")
    assert "no multiple of a block of 32" in plan.decisions["first"].reason


def test_activations_that_openvino_would_quantize_are_refused() -> None:
    with pytest.raises(UsageError, match="computes with floats beside blocks"):
        intact.quantize(decoder(), target="openvino", block=32, activations="dynamic")
