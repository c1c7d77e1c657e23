"""What lies beside a decoder goes with its result, as far as it can be trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from intact.results.companions import CONFIG, Companions
from intact.results.folder import COMPANIONS, is_own
from intact.results.result import companions_of

GOOD = {"model": {"type": "llama", "decoder": {"filename": "model.onnx", "head_size": 32}}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "decoder"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"model")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "secret.txt").write_text("secret")
    return folder / "model.onnx"


def written(model: Path) -> tuple[Path, tuple[str, ...]]:
    found = companions_of(model)
    assert found is not None
    out = model.parent / "out"
    out.mkdir()
    found.write(out, "model.int8.onnx")
    return out, found.left


def test_the_configuration_names_what_was_written(model: Path) -> None:
    config = {**GOOD, "search": {"max_length": 2**70, "name": "Grüße"}}
    model.with_name(CONFIG).write_text(json.dumps(config), encoding="utf-8")
    out, left = written(model)
    kept = json.loads((out / CONFIG).read_text("utf-8"))
    assert kept["model"]["decoder"] == {"filename": "model.int8.onnx", "head_size": 32}
    assert (kept["search"], kept["model"]["type"], left) == (config["search"], "llama", ())
    assert sorted(path.name for path in out.iterdir()) == [CONFIG, "tokenizer.json"]
    assert all(is_own(path) for path in out.iterdir())  # the folder may be replaced
    again = Companions.read(out, COMPANIONS, None)
    assert again.config == kept
    assert again.files == {"tokenizer.json": b"{}"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 100_000, "is not what"),
        (b"\xff\xfe", "is not what"),
        (b"[]", "is not what"),
        (b'{"model": {"decoder": "../../etc"}}', "is not what"),
        (b'{"model": null}', "is not what"),
        (b'{"model": {"decoder": {"filename": "../model.onnx"}}}', "it is about '../model.onnx'"),
        (b'{"model": {"decoder": {"filename": ["x"]}}}', "it is about ['x']"),
        (b'{"model": {"decoder": {"filename": "model.onnx", "pipeline": []}}}', "a pipeline"),
        (b" " * (1 << 21), "larger than 1 MiB"),
    ],
)
def test_what_is_no_such_configuration_is_left_out(model: Path, content: bytes, why: str) -> None:
    model.with_name(CONFIG).write_bytes(content)
    out, left = written(model)
    assert [path.name for path in out.iterdir()] == ["tokenizer.json"]
    assert len(left) == 1
    assert why in left[0]
    assert len(left[0]) < 400


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="no such flag")
def test_no_link_is_followed(model: Path) -> None:
    for name in (CONFIG, "vocab.json"):
        model.with_name(name).symlink_to(model.with_name("secret.txt"))
    os.mkfifo(model.with_name("merges.txt"))
    out, left = written(model)
    assert [path.name for path in out.iterdir()] == ["tokenizer.json"]
    assert [each.partition(" ")[0] for each in left] == [CONFIG, "vocab.json", "merges.txt"]
    assert "which is not followed" in left[0]


def test_a_model_that_is_no_file_has_none() -> None:
    assert companions_of(object()) is companions_of("missing/model.onnx") is None
    assert all(Path(name).name == name for name in COMPANIONS)
