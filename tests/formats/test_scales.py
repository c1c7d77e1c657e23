"""A table is read by what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.errors import DataError
from intact.formats import scales
from intact.formats.scales import read_scales
from intact.plan import given_scales


def test_the_first_character_tells_json_from_text(tmp_path: Path) -> None:
    text, document = tmp_path / "a.json", tmp_path / "b.scale"
    text.write_text("image 0.100000 0\n")
    document.write_text(
        ' \n{"activation_encodings": {"image": [{"bitwidth": 8, "scale": 0.1, "offset": -128}]}}'
    )
    first, second = read_scales(text)["image"], read_scales(str(document))["image"]
    assert first.scale == second.scale
    assert (first.kind, second.kind) == ("int8", "uint8")
    assert read_scales(text).source == str(text)


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="nowhere: no such file; check scales"):
        read_scales(tmp_path / "nowhere")
    with pytest.raises(DataError, match="cannot be read"):
        read_scales(tmp_path)
    monkeypatch.setattr(scales, "_MOST_BYTES", 10)
    large = tmp_path / "large"
    large.write_text("image 0.100000 0\n")
    with pytest.raises(DataError, match="larger than"):
        read_scales(large)


@pytest.mark.parametrize("data", [b"a 0.100000 0\n" * 4, b'{"encodings": [1, 2, 3, 4]}'])
def test_more_entries_than_a_model_has_tensors_are_not_read(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_scales, "_MOST_ENTRIES", 3)
    path = tmp_path / "many"
    path.write_bytes(data)
    with pytest.raises(DataError, match="many: 4 entries, at most 3 can be read"):
        read_scales(path)


@pytest.mark.parametrize(
    "text",
    ["image 0.100000 0\n", '{"version": "0.6.1", "param_encodings": {"image": []}}'],
)
def test_a_mark_of_utf_8_before_the_table_is_passed_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table"
    path.write_text(text, encoding="utf-8-sig")
    table = read_scales(path)
    assert list(table.scales) == ["image"] or table.ignored
