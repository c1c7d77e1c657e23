"""A result's folder is written whole or not at all, and read back as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intact import api, demo
from intact.data.preprocess import Preprocess, preprocess_to_toml
from intact.errors import OutputError, PlanError
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import plan_to_json
from intact.results import exchange as replacement
from intact.results.folder import COMPANIONS, FILES, PREPROCESS, check_output, is_own
from intact.results.result import CONFIG, Companions, Result, companions_of
from tests.formats.onnx_qdq.pairs import PairBuilder, read


@pytest.fixture(scope="module")
def result() -> Result:
    """A result in memory."""
    return api.quantize(
        demo.model_path(),
        demo.calibration_path(),
        samples=20,
        preprocess=Preprocess((1.5,), (1 / 3,)),
        method="percentile",
        method_options={"percentile": 99.9},
    )


def test_it_reads_back_as_it_was(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "deep" / "out")
    loaded = Result.load(tmp_path / "deep" / "out")
    assert plan_to_json(loaded.plan) == plan_to_json(result.plan)
    assert loaded.statistics is not None
    assert result.statistics is not None
    assert loaded.statistics.hash() == result.statistics.hash()
    assert loaded.preprocess == result.preprocess == Preprocess((1.5,), (1 / 3,))
    assert loaded.plan.provenance.method_options == {"percentile": 99.9}
    given, deployed = loaded.sizes()
    assert given == result.sizes()[0] <= (tmp_path / "deep" / "out" / "model.onnx").stat().st_size
    assert deployed == (tmp_path / "deep" / "out" / "model.int8.onnx").stat().st_size


@pytest.mark.parametrize("fails_at", range(13))
def test_an_exchange_that_fails_is_undone(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    folder = tmp_path / "out"
    result.save(folder)
    for name in FILES:
        (folder / name).write_bytes(b'{"intact-plan" old' + name.encode())
    moves = iter(range(100))
    rename = Path.rename

    def failing(source: Path, goal: Path) -> Path:
        if next(moves) == fails_at:
            raise KeyboardInterrupt
        return rename(source, goal)

    monkeypatch.setattr(replacement, "_swap", lambda *_: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        result.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert all(b"old" in (folder / name).read_bytes() for name in FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
@pytest.mark.parametrize("kind", ["one", "several"])
def test_a_result_that_is_killed_while_it_is_saved_is_the_old_or_the_new(
    result: Result, tmp_path: Path, kind: str
) -> None:
    result.save(tmp_path / "old")
    read_result().save(tmp_path / "new")
    folder = tmp_path / "place" / "out"
    line = [sys.executable, "-m", "tests.results.killing_results", kind]
    line += [str(tmp_path / "old"), str(tmp_path / "new"), str(folder)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 3


def test_a_folder_whose_parent_cannot_be_written_is_filled_inside(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    folder = tmp_path / "mounted"
    folder.mkdir()
    make = tempfile.mkdtemp

    def refused(*, prefix: str, dir: Path) -> str:
        if dir == tmp_path:
            raise PermissionError(13, "Permission denied")
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    result.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    with pytest.raises(OutputError, match="cannot be written"):
        check_output(tmp_path / "new")


def read_result() -> Result:
    """A result without statistics: a quantized model that was read."""
    b = PairBuilder()
    x = b.pair(b.input("x", ["n", 4, 6, 6]), 0.03, np.uint8(100))
    x = b.node("Conv", x, b.stored((5, 4, 1, 1)), b.bias(5), name="conv")
    b.pair(x, 0.05, np.uint8(90), out="y")
    b.output("y")
    plan = replace(read(b.build()), preprocessing=preprocess_to_toml(Preprocess()).decode())
    return Result(plan, None, {"onnx_qdq": write_qdq(plan)})


def test_a_model_that_was_read_leaves_its_integers_and_no_statistics(tmp_path: Path) -> None:
    result = read_result()
    result.save(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {*FILES, "weights.npz"} - {"statistics.npz", "recipe.toml"}
    loaded = Result.load(tmp_path / "out")
    assert loaded.statistics is None
    assert list(loaded.plan.baked) == list(result.plan.baked)
    for end, codes in result.plan.baked.items():
        np.testing.assert_array_equal(loaded.plan.baked[end], codes)
    written = [ir.to_proto(each) for each in (result.exported.model, write_qdq(loaded.plan).model)]
    assert written[0] == written[1]
    layers = verify_qdq(
        loaded.plan, loaded.exported, [b for b, _ in loaded.draw_samples(8).batches(8)]
    ).layers
    assert [layer.mismatches for layer in layers] == [0, 0]


def test_a_result_replaces_one_with_other_files(result: Result, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    read_result().save(folder)
    result.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    read_result().save(folder)
    assert not (folder / "statistics.npz").exists()


def test_statistics_that_the_plan_names_must_be_there(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    (tmp_path / "out" / "statistics.npz").unlink()
    with pytest.raises(PlanError, match=r"no statistics\.npz in it"):
        Result.load(tmp_path / "out")


def test_samples_are_drawn_from_what_calibration_saw(result: Result) -> None:
    batch, count = next(result.draw_samples(50).batches(50))
    (drawn,) = batch.values()
    assert count == 50
    assert drawn.std() > 0


def test_checking_leaves_nothing(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_a_model_of_the_users_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"precious")
    with pytest.raises(OutputError, match=r"did not write \('model.onnx'\)"):
        check_output(tmp_path)


def test_other_preprocessing_than_the_plans_is_an_error(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    (tmp_path / "out" / PREPROCESS).write_text("format = 1\nmean = [3.0]\n")
    with pytest.raises(PlanError, match="not the preprocessing of this plan"):
        Result.load(tmp_path / "out")


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
