"""Mistakes at the command line: one clear line, an exit code, nothing left behind."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from intact import api
from intact.cli import run
from intact.recipe.file import RECIPE
from intact.results.folder import FILES
from tests.models import ModelBuilder

Arrays = dict[str, Any]

RANGE = ("--low", "-1", "--high", "1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits_model: Path) -> Path:
    """The working directory, with a model of the demo's."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(digits_model, tmp_path / "model.onnx")
    return tmp_path


@pytest.fixture
def fails(here: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command line which must fail, and returns its line on stderr."""

    def call(*arguments: str, code: int = 2) -> str:
        before = sorted(path.name for path in here.rglob("*"))
        assert run(arguments) == code
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("intact: ")
        assert captured.err.count("\n") == 1
        assert "Traceback" not in captured.err
        left = {path.name for path in here.rglob("*")} - {"__pycache__"}
        assert {name for name in left if not name.endswith(".pyc")} <= set(before)
        return captured.err

    return call


def images(count: int = 10) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 17, (count, 1, 8, 8))


def with_value(value: float, at: int, dtype: str = "float32") -> np.ndarray:
    array = images(80).astype(dtype)
    array[at, 0, 3, 3] = value
    return array


def truncated(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello world, this is no model", "not an ONNX file, or is truncated"),
        (b"", "is empty (0 bytes)"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_is_no_model(
    here: Path, fails: Callable[..., str], content: bytes | None, says: str
) -> None:
    np.savez("calib.npz", image=images())
    if content is not None:
        (here / "other.onnx").write_bytes(content)
    line = fails("quantize", "other.onnx", "-d", "calib.npz", "-o", "out")
    assert "other.onnx" in line
    assert says in line


def test_a_truncated_model_and_a_folder(here: Path, fails: Callable[..., str]) -> None:
    (here / "half.onnx").write_bytes(truncated(here / "model.onnx"))
    assert "truncated" in fails("inspect", "half.onnx")
    assert "is a folder" in fails("inspect", str(here))


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["-t", "onnxruntme"], 2, "did you mean 'onnxruntime'?"),
        (["--method", "percentil"], 2, "did you mean 'percentile'?"),
        (["--weight-method", "mss"], 2, "did you mean 'mse'?"),
        (["--keep-float", "Cov"], 2, "did you mean 'Conv'?"),
        (["--keep-float", "stem/Con"], 2, "did you mean 'stem/Conv'?"),
        (["--bits", "stem/Cnv=4"], 2, "did you mean 'stem/Conv'?"),
        (["--bits", "stem/Conv"], 2, "write NODE=N"),
        (["--weight-bits", "99"], 2, "from 2 to 16"),
        (["--method", "percentile", "--method-option", "percentil=1"], 2, "'percentile'?"),
        (["--method", "percentile", "--method-option", "percentile=200"], 2, "at most 100"),
        (["--method", "mse", "--method-option", "percentile=99"], 2, "no option 'percentile'"),
        (["--method-option", "percentile=99"], 2, "; give --method percentile, which has it"),
        (["--method-option", "bins=99"], 2, "; give --method kl or kl_stepwise, which have it"),
        (["--method-option", "percentil=99"], 2, "known: percentile of --method percentile, bins"),
        (["--method-option", "percentile"], 2, "write NAME=NUMBER"),
        (["--mean", "1,2"], 2, "2 numbers, input 'image' has 1 channels"),
        (["--mean", "a"], 2, "numbers separated by commas"),
        (["--mean", "1,,2"], 2, "numbers separated by commas"),
        (["--mean", "nan"], 2, "not finite"),
        (["--scale", "0"], 2, "--scale contains 0"),
        (["--samples", "0"], 2, "--samples"),
        (["--samples", "ten"], 2, "--samples"),
        (["--smaples", "3"], 2, "--samples"),
    ],
)
def test_wrong_options(fails: Callable[..., str], options: list[str], code: int, says: str) -> None:
    np.savez("calib.npz", image=images())
    arguments = ["quantize", "model.onnx", "-d", "calib.npz", "-o", "out", *options]
    assert says in fails(*arguments, code=code)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["quantise"], "'quantize'"),
        (["quantize"], "see `intact quantize --help`"),
        (["quantize", "model.onnx", "-o", "out"], "--data"),
        (["quantize", "model.onnx", "calib.npz", "-o", "out"], "see `intact quantize --help`"),
        (["evaluate", "out", "-d", "x.npz", "--no-such"], "see `intact evaluate --help`"),
        (["targets", "shw"], "'show'"),
    ],
)
def test_a_command_line_that_cannot_be_read(
    fails: Callable[..., str], arguments: list[str], says: str
) -> None:
    assert says in fails(*arguments, code=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('format=1\nname="x"\nextends="onnxruntime"\ndescripton="d"\n', "'description'"),
        ('format=1\nname="x"\nextends="onnxruntime"\n[activation]\nbit=8\n', "'bits'"),
        ("format=1\nname=\n", "not TOML"),
    ],
)
def test_a_target_file_with_a_mistake(
    here: Path, fails: Callable[..., str], text: str, says: str
) -> None:
    (here / "own.toml").write_text(text)
    line = fails("inspect", "model.onnx", "-t", "own.toml")
    assert "own.toml" in line
    assert says in line


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": images()}, "no input 'images'; did you mean 'image'?"),
        ({"image": images(), "labls": np.zeros(10)}, "did you mean 'labels'?"),
        ({"labels": np.zeros(10)}, "no array for input 'image'"),
        ({}, "no array for input 'image'"),
        ({"image": images()[:, :, :4]}, "[N, 1, 4, 8], the model takes [N, 1, 8, 8]"),
        ({"image": images()[0]}, "one sample of shape [1, 8, 8] without an axis for samples"),
        ({"image": images().transpose(0, 2, 3, 1)}, "transpose the axes to (0, 3, 1, 2)"),
        ({"image": np.float32(3)}, "samples of shape []"),
        ({"image": images()[:0]}, "no samples"),
        ({"image": np.array(["a", "b"])}, "the model takes float32"),
        ({"image": images().astype(complex)}, "complex128"),
        ({"image": with_value(np.nan, 71)}, "sample 71 holds NaN or infinity"),
        ({"image": with_value(-np.inf, 2)}, "sample 2 holds NaN or infinity"),
        ({"image": with_value(1e300, 5, "float64")}, "sample 5 holds a number that is too large"),
        ({"image": np.array([{"a": 1}], dtype=object)}, "pickled Python objects"),
    ],
)
def test_wrong_samples(fails: Callable[..., str], arrays: Arrays, says: str) -> None:
    np.savez("calib.npz", **arrays)
    line = fails("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    assert "calib.npz" in line
    assert says in line


def test_files_that_hold_no_samples(here: Path, fails: Callable[..., str]) -> None:
    def line(name: str) -> str:
        return fails("quantize", "model.onnx", "-d", name, "-o", "out")

    np.save("pickled.npy", np.array([{"a": 1}], dtype=object))
    (here / "text.npz").write_text("hello")
    (here / "image.png").write_bytes(b"\x89PNG")
    np.savez("whole.npz", image=images())
    (here / "half.npz").write_bytes(truncated(here / "whole.npz"))
    assert "pickled Python objects" in line("pickled.npy")
    assert "not an .npz or .npy" in line("text.npz")
    assert "image.png: not an image that can be read" in line("image.png")
    assert "damaged or truncated" in line("half.npz")
    assert "no such file" in line("nothing.npz")
    assert "module:function" in line("nothing")
    assert "image.png: not an image" in line(".")


FUNCTIONS = """
import numpy as np
def raises():
    yield {'image': np.ones((2, 1, 8, 8))}
    raise OSError('first line\\nsecond line')
def nothing(): yield from ()
def none(): pass
def others(): yield object()
def exits(): raise SystemExit(0)
def ragged(): yield {'image': [[1, 2], [3]]}
def late():
    yield {'image': np.ones((70, 1, 8, 8))}
    yield {'image': np.full((3, 1, 8, 8), np.nan)}
value = 3
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "raises OSError: first line second line"),
        ("nothing", "no samples"),
        ("none", "returns None"),
        ("others", "item 0 is of type object; give arrays"),
        ("exits", "raises SystemExit"),
        ("ragged", "'image' is not an array"),
        ("late", "sample 70 holds NaN"),
        ("value", "no function 'value'"),
        ("nothin", "did you mean 'nothing'?"),
        ("", "no function ''"),
    ],
)
def test_wrong_functions(here: Path, fails: Callable[..., str], name: str, says: str) -> None:
    (here / "functions_with_mistakes.py").write_text(FUNCTIONS)
    data = f"functions_with_mistakes:{name}"
    assert says in fails("quantize", "model.onnx", "-d", data, "-o", "out")


@pytest.mark.parametrize(
    ("text", "says"),
    [("1 / 0", "ZeroDivisionError"), ("def f(:", "SyntaxError"), ("import no_such_module", "no_")],
)
def test_modules_that_cannot_be_imported(
    here: Path, fails: Callable[..., str], text: str, says: str
) -> None:
    module = f"broken_{abs(hash(text))}"
    (here / f"{module}.py").write_text(text)
    assert says in fails("quantize", "model.onnx", "-d", f"{module}:f", "-o", "out")
    assert f"write {module}:f" in fails(
        "quantize", "model.onnx", "-d", f"./{module}.py:f", "-o", "out"
    )
    assert "not a module name" in fails("quantize", "model.onnx", "-d", ":f", "-o", "out")


def test_a_foreign_output_folder_is_left_alone(here: Path, fails: Callable[..., str]) -> None:
    np.savez("calib.npz", image=images())
    foreign = here / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    arguments = ["quantize", "model.onnx", "-d", "calib.npz", "-o"]
    assert "'thesis.txt'" in fails(*arguments, "foreign")
    assert "is a file" in fails(*arguments, "model.onnx")
    assert "cannot be written" in fails(*arguments, "model.onnx/below")
    (foreign / "thesis.txt").rename(foreign / "plan.json")  # someone else's plan
    assert "'plan.json'" in fails(*arguments, "foreign")
    assert (foreign / "plan.json").read_text() == "years of work"


@pytest.mark.parametrize(
    ("output", "says"),
    [("o" * 300, "File name too long"), ("o/" * 2100 + "out", "File name too long")],
)
def test_an_output_with_a_name_that_is_too_long(
    fails: Callable[..., str], output: str, says: str
) -> None:
    np.savez("calib.npz", image=images())
    line = fails("quantize", "model.onnx", "-d", "calib.npz", "-o", output)
    assert line.startswith("intact: ooo" if "/" not in output else "intact: o/o")
    assert says in line
    assert len(line) < 1000


@pytest.mark.parametrize("simulated", [True, False])
def test_an_output_in_a_folder_that_is_read_only(
    here: Path, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch, simulated: bool
) -> None:
    np.savez("calib.npz", image=images())
    (here / "below").mkdir(mode=0o555)
    if simulated:  # a file system that nobody may write

        def refuse(*_: Any, **__: Any) -> str:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr("tempfile.mkdtemp", refuse)
    elif os.access("below", os.W_OK):
        pytest.skip("root may write everywhere")
    line = fails("quantize", "model.onnx", "-d", "calib.npz", "-o", "below/out")
    assert line.startswith("intact: below/out: cannot be written (")
    assert line.endswith("; name a folder that you may write\n")


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", LONG],
        ["inspect", "model.onnx", "-t", f"{LONG}.toml"],
        ["quantize", "model.onnx", "-d", LONG, "-o", "out"],
        ["quantize", "model.onnx", "-d", f"{LONG}.npz", "-o", "out"],
        ["verify", LONG],
        ["evaluate", LONG, "-d", "calib.npz"],
    ],
)
def test_an_input_with_a_name_that_is_too_long(
    fails: Callable[..., str], arguments: list[str]
) -> None:
    line = fails(*arguments)
    assert LONG in line
    assert ";" in line or "File name too long" in line


def test_what_libraries_log_of_a_broken_model_is_not_shown(
    here: Path, fails: Callable[..., str]
) -> None:
    model = onnx.load("model.onnx")
    model.graph.node[3].input[0] = "nobody"
    onnx.save(model, "broken.onnx")
    assert "reads tensor 'nobody', which no node produces" in fails("inspect", "broken.onnx")


@pytest.fixture
def result(here: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    """The folder of a result."""
    np.savez("calib.npz", image=images())
    assert run(["quantize", "model.onnx", "-d", "calib.npz", "-o", "out"]) == 0
    capfd.readouterr()
    return here / "out"


@pytest.mark.parametrize("name", [name for name in FILES if name != RECIPE])
def test_a_result_with_a_damaged_file(result: Path, fails: Callable[..., str], name: str) -> None:
    whole = (result / name).read_bytes()
    (result / name).write_bytes(whole[: min(700, len(whole) // 2)])
    assert name in fails("verify", "out")
    (result / name).unlink()
    assert f"no {name} in it" in fails("evaluate", "out", "-d", "calib.npz")


def test_files_of_another_plan(
    result: Path, here: Path, fails: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    other = ["quantize", "model.onnx", "-d", "calib.npz", "-o", "other", "--samples", "3"]
    assert run([*other, "--method", "minmax"]) == 0
    capfd.readouterr()
    kept = (result / "statistics.npz").read_bytes()
    shutil.copy(here / "other" / "statistics.npz", result)
    assert "not the statistics of this plan" in fails("verify", "out")
    (result / "statistics.npz").write_bytes(kept)
    shutil.copy(here / "model.onnx", result / "model.int8.onnx")
    assert "not the model of this plan" in fails("verify", "out")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.zeros(5, np.int64), "5 labels for 10 samples"),
        (np.zeros(10, np.float32), "labels have dtype float32"),
        (np.eye(10, dtype=np.int64), "argmax"),
        (np.full(10, 10), "10 classes"),
        (np.full(10, -1), "10 classes"),
        (np.array(["a"] * 10), "class numbers"),
    ],
)
def test_wrong_labels(
    result: Path, fails: Callable[..., str], labels: np.ndarray, says: str
) -> None:
    np.savez("test.npz", image=images(), labels=labels)
    assert says in fails("evaluate", "out", "-d", "test.npz")


def test_inputs_that_take_no_samples(fails: Callable[..., str]) -> None:
    np.savez("calib.npz", image=images())
    for has_shape in (True, False):
        b = ModelBuilder()
        x = b.conv(b.input("image", ["n", 1, 8, 8]), 1, 2)
        b.node("Mul", x, b.input("factor", []), out="y")
        b.output("y")
        model = b.build()
        if not has_shape:
            model.graph.input[1].type.tensor_type.ClearField("shape")
        onnx.save(model, "two.onnx")
        line = fails("quantize", "two.onnx", "-d", "calib.npz", "-o", "out")
        assert "'factor'" in line
        assert ("no array for input" if has_shape else "no shape") in line


def test_a_shorter_side_of_no_pixels_is_not_ignored(here: Path, fails: Callable[..., str]) -> None:
    (here / "photos").mkdir()
    arguments = ["quantize", "model.onnx", "-d", "photos", "-o", "out", "--shorter-side", "0"]
    assert "--shorter-side is not a number of pixels" in fails(*arguments)


def test_memory_that_runs_out_is_said_in_one_line(
    result: Path, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_arguments: object, **_options: object) -> None:
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(api, "evaluate", run_out)
    says = fails("evaluate", str(result), "-d", "calib.npz", code=1)
    assert "out of memory (Unable to allocate 9 TiB); give a smaller --batch" in says


def test_outputs_are_not_written_over_the_data(result: Path, fails: Callable[..., str]) -> None:
    before = Path("calib.npz").read_bytes()
    line = fails("run", str(result), "-d", "calib.npz", "-o", "./calib.npz")
    assert "is the data of this run; name another file" in line
    assert Path("calib.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["quantize", "model.onnx", "-d", "calib.npz", "-o", ""], "--output is ''; give "),
        (
            ["quantize", "model.onnx", "-d", "", "-o", "out"],
            "--data is ''; give a folder of images or sounds, a text, an .npz or .npy file, or "
            "MODULE:FUNCTION\n",
        ),
        (
            ["quantize", "", "-d", "calib.npz", "-o", "out"],
            "intact: MODEL is ''; give the path of a model\n",
        ),
        (
            ["evaluate", "", "-d", "calib.npz"],
            "intact: FOLDER is ''; give the folder of a result\n",
        ),
        (["convert-ranges", "--scale", "1", "--low", "0", "--high", "1"], "are both given"),
        (["convert-ranges", *RANGE, "--unsigned", "--symmetric"], "nothing below 0, and the low"),
        (["convert-ranges", *RANGE, "--unsigned", "--narrow"], "--narrow is for signed codes, and"),
        (["convert-ranges", *RANGE, "--zero-point", "3"], "a zero point of 3 without a scale; "),
        (["convert-ranges", "--scale", "1", "--zero-point", "1.5"], "'1.5'; give a whole number\n"),
    ],
)
def test_what_is_said_of_values(fails: Callable[..., str], arguments: list[str], says: str) -> None:
    assert says in fails(*arguments, code=2)


def test_the_next_command_takes_a_folder_that_begins_with_a_dash(
    result: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["quantize", "model.onnx", "-d", "calib.npz", "-o", "./-out"]) == 0
    command = capfd.readouterr().out.splitlines()[-1].split()[1:]
    assert command == ["verify", "./-out"]
    assert run([*command, "--samples", "2"]) == 0


@pytest.mark.parametrize("closed", [1, 2])
def test_a_stream_that_is_closed_is_no_mistake_of_ours(here: Path, closed: int) -> None:
    command = f'"{sys.executable}" -m intact targets --json {closed}>&-'
    done = subprocess.run(command, shell=True, cwd=here, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stderr == b""
    assert bool(done.stdout) == (closed == 2)
