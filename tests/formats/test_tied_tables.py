"""Tables that are looked up and multiplied with: a note says where a file has them twice."""

from __future__ import annotations

from pathlib import Path

import pytest

import intact
from intact.graph import normalize
from intact.graph.tied_tables import tied_tables
from tests.formats.onnx_qdq import test_shared_codes
from tests.formats.onnx_qdq.test_shared_codes import IDS, WIDTH, tied

WORDS = 2000


def stored(folder: Path) -> int:
    """Return the bytes that weights may take in a result's file."""
    names = ("model.bin", "model.int8.tflite")
    return sum((folder / name).stat().st_size for name in names if (folder / name).is_file())


@pytest.mark.parametrize(("target", "package"), [("tflite", "ai_edge_litert"), ("openvino",) * 2])
@pytest.mark.parametrize("form", ["transpose", "gemm"])
def test_a_table_that_a_file_has_twice_is_named(
    form: str, target: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.setattr(test_shared_codes, "WORDS", WORDS)
    folder = tmp_path / "out"
    result = intact.quantize(tied(form), IDS, target=target, preset="fast", output=folder)
    named = [note.node for note in result.plan.notes if "is stored twice" in note.message]
    others = WIDTH * WIDTH + 4 * (2 * WORDS + WIDTH) + 5000  # other weights, scales, structure
    assert (named == ["logits"]) == (stored(folder) > WORDS * WIDTH + others)


def test_ties_are_found_by_numbers_and_only_there() -> None:
    for form in ("transpose", "gemm"):
        pairs = [(str(a.name), str(b.name)) for a, b, _ in tied_tables(normalize(tied(form)))]
        assert pairs == [("look", "logits")]
