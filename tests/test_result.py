"""A result's folder is written whole or not at all, and read back as it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact import api, demo
from intact.errors import OutputError, PlanError
from intact.plan import plan_to_json
from intact.result import FILES, PLAN, Result, check_output
from intact.samples.preprocess import Preprocess


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
    assert loaded.statistics.hash() == result.statistics.hash()
    assert loaded.preprocess == result.preprocess == Preprocess((1.5,), (1 / 3,))
    assert loaded.plan.provenance["method_options"] == "percentile=99.9"
    assert loaded.sizes() == tuple(
        (tmp_path / "deep" / "out" / name).stat().st_size
        for name in ("model.onnx", "model.int8.onnx")
    )


@pytest.mark.parametrize("fails_at", range(8))
def test_an_exchange_that_fails_is_undone(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    folder = tmp_path / "out"
    result.save(folder)
    for name in FILES:
        (folder / name).write_bytes(b'{"intact-plan" old' + name.encode())
    moves = iter(range(100))
    move = shutil.move

    def failing(source: Any, goal: Any) -> Any:
        if next(moves) == fails_at:
            raise KeyboardInterrupt
        return move(source, goal)

    monkeypatch.setattr(shutil, "move", failing)
    with pytest.raises(KeyboardInterrupt):
        result.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert all(b"old" in (folder / name).read_bytes() for name in FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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


def test_checking_leaves_nothing(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_a_model_of_the_users_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"precious")
    with pytest.raises(OutputError, match=r"did not write \('model.onnx'\)"):
        check_output(tmp_path)


def test_preprocessing_that_is_no_numbers_is_an_error(result: Result) -> None:
    changed = Result(result.plan.copy(), result.statistics, result.exported)
    changed.plan.provenance["mean"] = "a,b"
    with pytest.raises(PlanError, match="'mean'"):
        _ = changed.preprocess


def test_a_folder_without_a_plan_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=f"no {PLAN} in it"):
        Result.load(tmp_path)
    np.savez(tmp_path / "statistics.npz")
    with pytest.raises(PlanError, match=f"no {PLAN} in it"):
        Result.load(tmp_path)
