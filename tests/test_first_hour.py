"""Mistakes of a first hour: the line says what to do, and what it says works when it is pasted."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import intact
from intact._extras import _EXTRAS, explained, is_installed
from intact.analyze.verdict import Judgement, Verdict
from intact.cli import run, show
from intact.data.shapes import fits, sample_remedy, shape_remedy
from intact.errors import python_words
from intact.improve.passes import PASSES
from intact.recipe.commands import RECIPES
from intact.targets.load import load_target, target_names

FUNCTIONS = """
import numpy as np

def helper(x):
    return x / undefined

def samples():
    yield {'x': np.ones((2, 3, 8, 8), 'f')}
    helper(3)

def sorts():
    yield {'x': np.array(sorted([1, 'a']))}
"""


def saved(name: str, node: list[Any], shape: list[Any], out: list[Any], *weights: Any) -> None:
    graph = helper.make_graph(
        node,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(weight, "w") for weight in weights],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), name)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models and data as a newcomer has them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 3, 3, 3)).astype("f")
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    saved("net.onnx", [conv], ["N", 3, 8, 8], ["N", 4, 6, 6], weight)
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    saved("one.onnx", [product], [16], [4], rng.normal(size=(16, 4)).astype("f"))
    own = helper.make_node("MyConv", ["x"], ["y"], domain="own")
    saved("own.onnx", [own], ["N", 3, 8, 8], ["N", 4, 6, 6])
    np.save("good.npy", rng.normal(size=(9, 3, 8, 8)).astype("f"))
    np.save("one.npy", rng.normal(size=(9, 16)).astype("f"))
    Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype="uint8")).save("cat.jpg")
    for folder in ("photos", "out"):
        Path(folder).mkdir()
    shutil.copy("cat.jpg", "photos/cat.jpg")
    Path("own_data.py").write_text(FUNCTIONS)
    shutil.copy("net.onnx", "photos/net.onnx")
    np.save("gray.npy", rng.normal(size=(9, 1, 8, 8)).astype("f"))
    Path("ir.xml").write_text('<?xml version="1.0"?>\n<net name="net" version="11">')
    Path("weights").mkdir()
    Path("weights/config.json").write_text("{}")
    trees = helper.make_model(onnx.load("net.onnx").graph)
    kind = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    trees.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(kind))
    onnx.save(trees, "trees.onnx")
    tree = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    saved("tree.onnx", [tree], ["N", 5], ["N", 1])
    Path("labels.csv").write_text("cat.jpg;3\n")
    Path("data.zip").write_bytes(b"PK\3\4 and so on")
    Path("out/plan.json").write_text("{}")
    Path("out/model.int8.onnx").write_bytes(b"any")
    return tmp_path


def line_of(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that is wrong, and return its one line."""
    assert run(words) == (1 if "--format" in words else 2)
    captured = capfd.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.out == ""
    return captured.err


QUANTIZE = "quantize net.onnx --output made --data"
MISTAKES = {
    "csv": (f"{QUANTIZE} labels.csv", "if it lists labels, give the folder of the images"),
    "zip": (f"{QUANTIZE} data.zip", "unpack it, and give the folder of its images"),
    "text": (f"{QUANTIZE} own_data.py", "write its samples with numpy.savez, or give a function"),
    "typed": (f"{QUANTIZE} goood.npy", "did you mean 'good.npy'?"),
    "url": (f"{QUANTIZE} https://a.b/c.npz", "it is a URL: download it first"),
    "url-data": (f"{QUANTIZE} https://a.b/c.npz", "https://a.b/c.npz: no such file"),
    "url-slashes": (
        "quantize https://a.b/c.onnx --data good.npy --output made",
        "'https://a.b/c.onnx' does not exist",
    ),
    "command": ("frobnicate", ", ...; see `intact --help`"),
    "url-model": ("quantize https://a.b/c.onnx --data good.npy --output made", "it is a URL: down"),
    "model": ("inspect nett.onnx", "did you mean 'net.onnx'?"),
    "raises": (f"{QUANTIZE} own_data:samples", "(own_data.py:5, in helper)"),
    "raises-within": (f"{QUANTIZE} own_data:sorts", "(own_data.py:12, in sorts)"),
    "module": (f"{QUANTIZE} own_dat:samples", "did you mean 'own_data'?"),
    "no-module": (f"{QUANTIZE} zzz:samples", "run this in the folder of zzz.py, or name it in"),
    "method": (f"{QUANTIZE} good.npy --method entropy", "'kl' is what ONNX Runtime and TensorRT"),
    "format": (
        f"{QUANTIZE} good.npy --target tflite --format tensorrt",
        "give --target tensorrt, or leave out --format",
    ),
    "operator": (
        "quantize own.onnx --allow-empty --data good.npy --output made",
        "export the model without own:MyConv",
    ),
    "folder": (
        "evaluate nowhere --data good.npy",
        "make one: intact quantize MODEL --data DATA --output nowhere\n",
    ),
    "near-folder": ("evaluate ou --data good.npy", "did you mean 'out'?"),
    "file": (
        "evaluate net.onnx --data good.npy",
        "make one: intact quantize net.onnx --data DATA --output out\n",
    ),
    "targets": (f"{QUANTIZE} good.npy --target tflite,ncnn", "--target tflite --target ncnn"),
    "target": (f"{QUANTIZE} good.npy --target QNN", "'qualcomm-htp' is the target for it"),
    "ir": ("quantize ir.xml --data good.npy --output made", "the ONNX model that it was converted"),
    "transformers": (
        "quantize weights --data good.npy --output made",
        "export it; optimum-cli export onnx --model weights weights_onnx",
    ),
    "model-folder": ("quantize photos --data good.npy --output made", "such as photos/net.onnx"),
    "trees": ("quantize trees.onnx --data good.npy --output made", 'options={"zipmap": False}'),
    "argument": ("quantize net.onnx photos --output made", "; samples are given with --data"),
    "flag": ("quantize --model net.onnx --output made", "the model is given without a flag"),
    "other-flag": (f"{QUANTIZE} good.npy --nodes-to-exclude a", "here it is called --keep-float"),
    "other-search": ("search net.onnx --trials 5", "here it is called --budget"),
    "subcommand": ("targets tflite", "write `intact targets show tflite`"),
    "tree": ("quantize tree.onnx --data good.npy --output made", "there is nothing to quantize"),
    "channels": (f"{QUANTIZE} gray.npy --mean 1,2,3", "input 'x' has 1 channels in the data"),
    "deployed": ("evaluate out/model.int8.onnx --data good.npy", "; give out\n"),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("command", "says"), MISTAKES.values(), ids=MISTAKES)
def test_the_line_says_what_to_do(
    command: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert says in line_of(capfd, *command.split())
    assert not Path("made").exists()


@pytest.mark.usefixtures("here")
def test_remedies_work_when_they_are_pasted(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["quantize", "one.onnx", "--data", "one.npy", "--output", "made"]
    remedy = line_of(capfd, *command).rpartition(": ")[2].split()
    assert remedy == ["--no-batch", "x"]
    assert run([*command, *remedy]) == 0
    capfd.readouterr()
    assert run(f"{QUANTIZE} cat.jpg --output cat".split()) == 0
    assert "1 sample(s)" in capfd.readouterr().out
    labels = line_of(capfd, *["evaluate", "cat", "--data", "photos", "--labels", "labels.csv"])
    assert "columns are separated by ';'; write file,label, by commas" in labels


@pytest.mark.usefixtures("here")
def test_one_image_gives_the_likeliest_classes_of_both_models(
    capfd: pytest.CaptureFixture[str],
) -> None:
    product = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    saved("pool.onnx", [product], ["N", 3, 8, 8], ["N", 3, 1, 1])
    quantize = "quantize pool.onnx --normalize 0..1 --data photos --target tflite --output made"
    assert run(quantize.split()) == 0
    capfd.readouterr()
    found: Any = {}
    for data in ("cat.jpg", "photos"):
        assert run(["run", "made", "--data", data, "--json"]) == 0
        found[data] = json.loads(capfd.readouterr().out)["classes"]
    assert found["cat.jpg"] == found["photos"]  # with the steps of the result
    pixels = np.asarray(Image.open("cat.jpg").resize((8, 8), Image.Resampling.BILINEAR)) / 255
    (ranked,), (integer,) = found["cat.jpg"]["float"], found["cat.jpg"]["integer"]
    order = np.argsort(-pixels.mean((0, 1)))
    assert [each["class"] for each in ranked] == order.tolist()
    np.testing.assert_allclose([each["score"] for each in ranked], pixels.mean((0, 1))[order], 0.05)
    assert len(integer) == 3
    assert run(["run", "made", "--data", "cat.jpg"]) == 0
    assert "sample 0" in capfd.readouterr().out
    assert not list(Path().glob("*.npz"))


@pytest.mark.usefixtures("here")
def test_pixels_that_no_step_prepares_are_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    product = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    saved("pool.onnx", [product], ["N", 3, 8, 8], ["N", 3, 1, 1])
    prepared = np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32)
    np.savez("prepared.npz", x=prepared)
    made = ["--data", "prepared.npz", "--target", "tflite", "--output", "made"]
    assert run(["quantize", "pool.onnx", *made]) == 0
    capfd.readouterr()
    assert run(["run", "made", "--data", "cat.jpg"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "gets pixels of" in said
    assert "--normalize imagenet" in said
    assert run(["run", "made", "--data", "cat.jpg", "--normalize", "imagenet"]) == 0  # as it says
    assert run(["run", "made", "--data", "prepared.npz"]) == 0
    assert "pixels" not in capfd.readouterr().out


def test_a_result_that_loses_has_a_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    for judgement, wanted in ((Judgement.LOSES, True), (Judgement.GOOD, False)):
        judged = SimpleNamespace(verdict=Verdict(judgement, "told"))
        show.next_diagnosis(cast("Any", judged), "out", "my photos")
        said = capsys.readouterr().out
        assert ("next: intact diagnose out --data 'my photos'" in said) == wanted


def test_a_result_that_is_not_there_is_named_before_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("evaluate", "run", "diagnose"):
        assert run([command, str(tmp_path / "nope")]) == 2
        assert "nope does not exist" in capsys.readouterr().err


SHAPES: list[tuple[tuple[int, ...], tuple[int | None, ...]]] = [
    ((5, 1, 8, 8), (None, 3, 8, 8)),
    ((5, 8, 8, 1), (None, 8, 8, 3)),
    ((5, 3, 8, 8), (None, 1, 8, 8)),
    ((5, 8, 8, 3), (None, 3, 8, 8)),
    ((5, 64), (None, 1, 8, 8)),
    ((5, 1, 3, 8, 8), (None, 3, 8, 8)),
    ((5, 8, 8), (None, 1, 8, 8)),
    ((5, 6, 8, 1), (None, 3, 6, 8)),
]


@pytest.mark.parametrize(("shape", "expected"), SHAPES)
def test_a_remedy_for_a_shape_makes_it_fit(
    shape: tuple[int, ...], expected: tuple[int | None, ...]
) -> None:
    array: Any = np.zeros(shape)
    for _ in range(2):  # transposing, then channels
        if fits(array.shape[1:], expected[1:]):
            break
        for step in shape_remedy(array.shape, expected, "x").split(", then "):
            if step.startswith("transpose the axes to "):
                axes = step.removeprefix("transpose the axes to ")
                array = array.transpose([int(axis) for axis in axes[1:-1].split(",")])
            else:
                code = step.partition(": ")[2]
                array = eval(code, {"array": array, "numpy": np})
    assert fits(array.shape[1:], expected[1:])


def test_remedies_for_other_sizes() -> None:
    assert sample_remedy((3, 28, 28), (3, 32, None), 0).startswith("resize its images to 32 x any")
    assert sample_remedy((100,), (128,), 1) == "make axis 1 128 long instead of 100"
    assert "--no-batch 'a b'" in shape_remedy((7, 3, 4), (3, 4), "a b")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", [name for name, each in PASSES.items() if each.needs])
@pytest.mark.parametrize("broken", [False, True])
def test_a_pass_whose_package_is_missing_or_broken(
    name: str, broken: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken:  # its own libraries are not there, say

        def load(*_: object) -> None:
            raise ImportError("libcudart.so: cannot open", name="torch")

        monkeypatch.setattr("intact.improve.passes.is_installed", lambda _: True)
        monkeypatch.setattr("intact._extras.is_installed", lambda _: True)
        monkeypatch.setattr("intact.improve.passes._import", load)
    else:
        monkeypatch.setitem(sys.modules, "torch", None)
    line = line_of(capfd, *f"{QUANTIZE} good.npy --improve {name}".split())
    assert 'pip install "intact-quantizer[train]"' in line
    assert "internal" not in line


@pytest.mark.usefixtures("here")
def test_a_package_that_one_of_several_targets_lacks_is_named_before_samples_are_read(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    several = "--target onnxruntime --target tflite"
    # A function that raises where it is called.
    line = line_of(capfd, *f"{QUANTIZE} own_data:samples {several}".split())
    assert 'pip install "intact-quantizer[tflite]"' in line
    assert "or leave out --target tflite" in line
    assert not Path("made").exists()


@pytest.mark.usefixtures("here")
def test_the_file_that_is_named_is_the_one_whose_size_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("openvino")
    assert run(f"{QUANTIZE} good.npy --target openvino".split()) == 0
    assert str(Path("made/model.xml")) in capfd.readouterr().out.split()
    size = sum(Path(f"made/model.{each}").stat().st_size for each in ("xml", "bin"))
    assert intact.load_result("made").sizes()[1] == size


@pytest.mark.usefixtures("here")
def test_a_table_of_numbers_becomes_an_array_by_the_line_that_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    saved("rows.onnx", [product], ["N", 3], ["N", 2], np.eye(3, 2, dtype="f"))
    Path("t.csv").write_text("1,2,3\n4,5,6\n")
    line = line_of(capfd, *["quantize", "rows.onnx", "--data", "t.csv", "--output", "made"])
    exec(line.strip().partition("as an array with numpy.save: ")[2], {"numpy": np})
    assert run(["quantize", "rows.onnx", "--data", "t.npy", "--output", "made"]) == 0


@pytest.mark.usefixtures("here")
def test_a_target_that_is_wrong_is_told_before_a_module_is_exported() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(intact.IntactError, match="did you mean 'tflite-micro'"):
        # Its export would fail.
        intact.quantize(torch.nn.Linear(3, 4), torch.zeros(2, 7), target="tflite_micro")


@pytest.mark.usefixtures("here")
def test_pixels_that_go_in_as_they_are_are_named_where_much_is_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (16, 3, 8, 8)).astype("f")
    np.save("pixels.npy", pixels)
    said = {}
    for steps in ("", " --mean 127 --std 70"):
        line = f"{QUANTIZE} pixels.npy --weight-bits 2 --preset fast{steps}"
        assert run(line.split()) == 0
        said[steps] = " ".join(capfd.readouterr().out.split())
    told = "neither --normalize nor --mean was given"
    assert [told in each for each in said.values()] == [True, False]


def test_names_of_others_and_calls_that_are_wrong_in_python() -> None:
    with pytest.raises(TypeError, match="here it is called 'budget'"):
        cast("Any", intact.search_strategy)("net.onnx", "d", n_trials=3)
    with pytest.raises(TypeError, match="did you mean 'method'"):
        cast("Any", intact.quantize)("net.onnx", "d", my_method="kl")
    with pytest.raises(TypeError, match="; its arguments are results, data, then by name"):
        cast("Any", intact.compare)("a", "b", data="d")
    with pytest.raises(intact.IntactError, match="make one: intact quantize MODEL --data DATA --o"):
        intact.evaluate("nowhere", "d")


def test_what_others_call_a_target_is_a_target() -> None:
    called = [name for each in target_names() for name in load_target(each).also_called]
    assert called
    assert len(set(called)) == len(called)  # a variant has not those of its base
    assert not set(called) & set(target_names())


def test_commands_in_messages_keep_their_flags_in_python() -> None:
    for command in RECIPES:
        line = f"make one: intact {command} MODEL --max-memory 1G"
        assert python_words(line) == line


def test_every_extra_that_is_named_exists() -> None:
    tomllib = importlib.import_module("tomllib")
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    assert set(_EXTRAS.values()) <= set(project["project"]["optional-dependencies"])
    assert explained(ImportError("x", name="mine.torch")) is None
    assert not is_installed("torch.no.such.module")
