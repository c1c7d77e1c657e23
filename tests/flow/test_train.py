"""`intact train` on the command line: what it leaves, how it goes on, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  what this command needs

from intact import demo
from intact.api import load_result, quantize, train
from intact.errors import OutputError, UsageError
from intact.improve.learn import training
from intact.plan import quantization_points
from intact.results.result import Result
from tests.command_lines import Say
from tests.command_lines import refused as refused_with
from tests.images import load_images

QUICK = ("--epochs", "2", "--batch", "8", "--samples", "48", "--threads", "1", "--rate", "0.005")
BESIDE = ("trained.train.pt", "trained.train.jsonl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, quantized to weights of three bits: there is something to gain."""
    folder = tmp_path_factory.mktemp("made") / "narrow"
    data = {"image": load_images(demo.calibration_path()).image}
    quantize(demo.model_path(), data, output=folder, weight_bits=3, threads=1)
    return folder


@pytest.fixture
def out(here: Path, made: Path) -> Path:
    """The working directory, with this result."""
    shutil.copytree(made, here / "narrow")
    return here


def trained(say: Say, *options: str, output: str = "trained", result: str = "narrow") -> str:
    return say("train", result, "-d", "calib.npz", "-o", output, *QUICK, *options)


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Of an option; data and files are refused with 1."""
    return refused_with(capfd, *arguments, code=code)


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_trained_result_is_one_like_any_other(out: Path, say: Say) -> None:
    before = json.loads(say("evaluate", "narrow", "-d", "test.npz", "--json"))
    told = json.loads(trained(say, "--epochs", "4", "--json"))
    epochs = told["training"]["epochs"]
    assert [each["number"] for each in epochs] == [0, 1, 2, 3, 4]
    best = told["training"]["best"]
    assert best > 0
    assert epochs[best]["held_out"] < epochs[0]["held_out"]
    after = json.loads(say("evaluate", "trained", "-d", "test.npz", "--json"))
    assert after.keys() == before.keys()
    say("verify", "trained", "-d", "test.npz", "--samples", "16")
    say("export", "trained", "--format", "onnx_qdq", "-o", "exported")
    plan = load_result("trained").plan
    assert any(point.config.dominator.observer == "trained" for point in quantization_points(plan))
    assert not Path("trained.train.pt").exists()
    lines = Path("trained.train.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2, 3, 4]


def test_a_trained_result_is_compared_with_the_model_before(out: Path, say: Say) -> None:
    trained(say)
    evaluate = ("evaluate", "trained", "-d", "test.npz")
    assert "the trained network without its quantizers" in say(*evaluate)
    before = json.loads(say("evaluate", "narrow", "-d", "test.npz", "--json"))
    for model in ("narrow", str(demo.model_path())):
        after = json.loads(say(*evaluate, "--float-model", model, "--json"))
        assert not after["float_is_trained"]
        assert after["accuracy"]["top1"][0] == before["accuracy"]["top1"][0]


def test_its_recipe_gives_the_same_bytes(out: Path, say: Say) -> None:
    trained(say, "--augment", "shift", "--quantizers", "lsq+", "--batch-norm", "frozen")
    say("train", "--recipe", "trained/recipe.toml", "-o", "again", "--threads", "1")
    mine, theirs = files(Path("trained")), files(Path("again"))
    assert mine.keys() == theirs.keys()
    differ = {name for name in mine if mine[name] != theirs[name]}
    assert not {name for name in differ if not name.startswith(("recipe", "result", "summary"))}


def test_python_gets_the_same(out: Path, say: Say) -> None:
    trained(say)
    options: dict[str, Any] = {"epochs": 2, "batch": 8, "samples": 48, "threads": 1, "rate": 0.005}
    result = train(load_result("narrow"), "calib.npz", **options)
    assert result.folder is None
    assert result.trained is not None
    stored = load_result("trained").plan
    for one, two in zip(quantization_points(result.plan), quantization_points(stored), strict=True):
        np.testing.assert_array_equal(one.config.scale, two.config.scale)


class Killed(BaseException):
    """In the place of a kill."""


def test_a_training_that_was_killed_is_resumed(
    out: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(say, output="whole")
    monkeypatch.setattr(training, "_EVERY", 0.0)
    step, count = training.Trainer._step, 0

    def killed(self: training.Trainer, *arguments: Any) -> float:
        nonlocal count
        count += 1
        if count == 7:
            raise Killed
        return step(self, *arguments)

    monkeypatch.setattr(training.Trainer, "_step", killed)
    with pytest.raises(Killed):
        trained(say)
    assert all(Path(name).exists() for name in BESIDE)
    assert not Path("trained").exists()
    # What was told behind the last checkpoint is told again, and a line may be cut.
    log = Path("trained.train.jsonl")
    log.write_text(log.read_text(encoding="utf-8") + '{"number": 2, "lo', encoding="utf-8")
    trained(say, "--resume")
    assert files(Path("trained")).keys() == files(Path("whole")).keys()
    for name in ("model.onnx", "plan.json"):
        if name in files(Path("whole")):
            assert files(Path("trained"))[name] == files(Path("whole"))[name], name
    numbers = [json.loads(line)["number"] for line in log.read_text("utf-8").splitlines()]
    assert numbers == [0, 1, 2]
    assert not Path("trained.train.pt").exists()


def test_resuming_with_other_options_is_refused(
    out: Path, say: Say, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        trained(say)
    Path("trained").rename("elsewhere")
    command = ("train", "narrow", "-d", "calib.npz", "-o", "trained", *QUICK, "--resume")
    line = refused(capfd, *command, "--seed", "4")
    assert "other options" in line
    assert "trained.train.pt" in line
    say(*command)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--quantizers", "lqs"), "did you mean 'lsq'"),
        (("--batch-norm", "life"), "did you mean 'live'"),
        (("--augment", "flop"), "did you mean 'flip'"),
        (("--epochs", "0"), "--epochs"),
        (("--batch", "0"), "--batch"),
        (("--label-weight", "2"), "--label-weight 2"),
        (("--rate", "x"), "--rate"),
    ],
)
def test_wrong_options_are_one_line(
    options: tuple[str, ...], text: str, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("train", "narrow", "-d", "calib.npz", "-o", "trained", *QUICK)
    assert text in refused(capfd, *command, *options)
    assert not [path for path in Path().iterdir() if path.name.startswith("trained")]


def test_too_few_samples_are_one_line(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ("train", "narrow", "-d", "calib.npz", "-o", "trained", "--samples", "1")
    assert "1 sample(s)" in refused(capfd, *command, code=2)


def test_what_is_missing_is_named(
    out: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = dict(np.load("calib.npz"))
    arrays.pop("labels", None)
    np.savez("plain.npz", **arrays)
    command = ("train", "narrow", "-d", "plain.npz", "-o", "trained", *QUICK)
    line = refused(capfd, *command, "--label-weight", "0.5")
    assert "there are no labels" in line
    assert "leave out --label-weight" in line
    assert "nowhere" in refused(
        capfd, "train", "nowhere", "-d", "calib.npz", "-o", "trained", code=2
    )
    other = ("train", "narrow", "-d", "none.npz", "-o", "trained")
    assert "none.npz" in refused(capfd, *other, code=2)
    (out / "full").mkdir()
    (out / "full" / "file").touch()
    line = refused(capfd, "train", "narrow", "-d", "calib.npz", "-o", "full", code=2)
    assert "full" in line
    with pytest.raises(UsageError, match="resume without"):
        train("narrow", "calib.npz", resume=True)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    line = refused(capfd, *command, code=2)
    assert "torch" in line
    assert 'pip install "intact-quantizer[train]"' in line
    assert not [path for path in Path().iterdir() if path.name.startswith("trained")]


def test_labels_that_are_no_classes_are_one_line(
    out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arrays = dict(np.load("calib.npz"))
    arrays["labels"] = np.arange(len(next(iter(arrays.values()))))
    np.savez("wrong.npz", **arrays)
    line = refused(capfd, "train", "narrow", "-d", "wrong.npz", "-o", "trained", code=2)
    assert "labels 0..199 for 10 classes" in line
    assert not [path for path in Path().iterdir() if path.name.startswith("trained")]


def test_a_result_that_cannot_be_written_leaves_what_it_takes_to_resume(
    out: Path, say: Say, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutputError("trained: no room", remedy="make room")

    with monkeypatch.context() as patched:
        patched.setattr(Result, "save", full)
        command = ("train", "narrow", "-d", "calib.npz", "-o", "trained", *QUICK, "--json")
        assert "no room" in refused(capfd, *command, code=2)
    assert not Path("trained").exists()
    assert Path("trained.train.pt").exists()
    trained(say, "--resume")
    assert Path("trained").is_dir()
    assert not Path("trained.train.pt").exists()


def test_what_is_kept_is_said(out: Path, say: Say) -> None:
    text = trained(say)
    assert re.search(r"\d, kept", text)
    assert "held out" in text
    assert "intact evaluate trained --data FILE" in text
