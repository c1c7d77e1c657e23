"""Recipe files: what is written is read again, and makes the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact import Preprocess, api
from intact.cli import run
from intact.errors import UsageError
from intact.recipe.file import read_recipe
from intact.recipe.options import QuantizeCommand, QuantizeOptions
from intact.results.recipes import recipe_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
LOWER = TEXTS.map(str.lower)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
RECIPES = st.fixed_dictionaries(
    {"model": TEXTS},
    optional={
        "data": TEXTS,
        "target": TEXTS | st.lists(TEXTS, min_size=2, max_size=3),
        "formats": st.lists(st.sampled_from(["c", "tflite"]), min_size=1).map(tuple),
        "io": st.sampled_from(["int8", "float"]),
        "samples": st.none() | st.integers(1, 1 << 40),
        "max_memory": st.integers(1, 1 << 60),
        "method_options": st.dictionaries(TEXTS, NUMBERS, min_size=1, max_size=3),
        "bits": st.dictionaries(TEXTS, st.integers(2, 16), min_size=1, max_size=3),
        "keep_float": st.lists(TEXTS, min_size=1, max_size=3).map(tuple),
        "mean": st.lists(NUMBERS, min_size=1, max_size=3).map(tuple),
        "size": st.tuples(st.integers(1, 99), st.integers(1, 99)),
        "center_crop": st.just(True),
        "in_place": st.just(False),
        "scales": st.lists(TEXTS, max_size=2),
    },
)


@given(RECIPES)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_bytes(recipe_of("quantize", QuantizeCommand(output="out", **values)).encode())
    found = read_recipe(path, "quantize", QuantizeCommand)
    for name, value in values.items():
        default = {"io": "int8", "samples": 512}.get(name)
        assert found.get(name, default) == value


def files(folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "KL", "--samples", "50"],
        ["-t", "tflite", "-t", "onnxruntime", "--samples", "20"],
        ["-t", "tengine", "--no-in-place", "--samples", "all", "--mean", "2"],
        ["--keep-float", "Gemm", "--bits", "stem/Conv=4", "--weight-bits", "7"],
        ["--method", "percentile", "--method-option", "percentile=99.5"],
    ],
)
def test_recipe_of_a_result_writes_the_same_bytes(here: Path, options: list[str]) -> None:
    assert run(["quantize", "model.onnx", "-d", "calib.npz", "-o", "out", *options]) == 0
    assert run(["quantize", "--recipe", "out/recipe.toml", "-o", "again"]) == 0
    assert files("again") == files("out")


def test_recipe_of_a_call_from_python_writes_the_same_bytes(here: Path) -> None:
    steps = Preprocess((3.0,), (0.5,))
    api.quantize("model.onnx", "calib.npz", preprocess=steps, samples=9, output="out")
    assert run(["quantize", "--recipe", "out/recipe.toml", "-o", "again"]) == 0
    assert files("again") == files("out")


def test_recipe_says_what_python_gave_as_an_object(here: Path) -> None:
    images = np.load("calib.npz")["image"][:9]
    result = api.quantize("model.onnx", images)
    assert "# Given as an object in Python, so not written here: data." in result.recipe
    assert "data =" not in result.recipe


def test_options_beside_a_recipe_win(here: Path) -> None:
    Path("r.toml").write_text(
        'model = "model.onnx"\ndata = "calib.npz"\nmethod = "KL"\nsamples = 9\noutput = "a"\n'
    )
    assert run(["quantize", "--recipe", "r.toml"]) == 0
    assert run(["quantize", "--recipe", "r.toml", "--method", "minmax", "-o", "b"]) == 0
    assert 'method = "kl"' in Path("a/recipe.toml").read_text()
    assert 'method = "minmax"' in Path("b/recipe.toml").read_text()
    assert "samples = 9" in Path("b/recipe.toml").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('methd = "kl"', "r.toml: unknown key 'methd'; did you mean 'method'?"),
        ('samples = "ten"', "r.toml: samples is 'ten'; give a whole number, 1 or more"),
        ("keep_float = 3", "r.toml: keep_float is 3; give a list of nodes"),
        ("skip_bad = 1", "r.toml: skip_bad is 1; give true or false"),
        ("model = 1", "r.toml: model is 1; give the path of a model"),
        ('command = "search"', "r.toml: command is 'search'; this is `intact quantize`"),
        ("method = ", "r.toml: not TOML"),
        ("recipe = 'other.toml'", "r.toml: unknown key 'recipe'"),
    ],
)
def test_mistake_in_a_recipe_is_one_line(
    here: Path, capfd: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    Path("r.toml").write_text(text)
    assert run(["quantize", "model.onnx", "-o", "out", "--recipe", "r.toml"]) == 2
    line = capfd.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_recipe_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"nowhere.toml: no such file"):
        read_recipe("nowhere.toml", "quantize", QuantizeCommand)
    with pytest.raises(UsageError, match=r"/dev/zero: .*it is a device, not a file"):
        read_recipe("/dev/zero", "quantize", QuantizeCommand)


def test_import_export_search_and_evaluate_take_recipes(here: Path) -> None:
    Path("q.toml").write_text('model = "model.onnx"\ndata = "calib.npz"\nsamples = 20\n')
    assert run(["quantize", "--recipe", "q.toml", "-o", "out"]) == 0
    Path("e.toml").write_text('result = "out"\ndata = "test.npz"\nsamples = 20\n')
    assert run(["evaluate", "--recipe", "e.toml"]) == 0
    assert run(["import", "out/model.int8.onnx", "-o", "read"]) == 0
    assert run(["import", "--recipe", "read/recipe.toml", "-o", "read2"]) == 0
    assert files("read2") == files("read")
    assert run(["export", "out", "-o", "other", "--format", "ENCODINGS"]) == 0
    assert run(["export", "--recipe", "other/recipe.toml", "-o", "other2"]) == 0
    assert files("other2") == files("other")
    search = ["--budget", "3trials", "--samples", "20", "--max-drop", "50"]
    assert run(["search", "model.onnx", "-d", "calib.npz", "-o", "found", *search]) == 0
    assert run(["search", "--recipe", "found/recipe.toml", "-o", "found2"]) == 0
    assert files("found2") == files("found")
    replay = ["--replay", "found.search.jsonl", "-o", "replayed"]
    assert run(["search", "model.onnx", *replay]) == 0
    assert run(["search", "--recipe", "replayed/recipe.toml", "-o", "replayed2"]) == 0
    assert files("replayed2") == files("replayed")


def test_a_result_keeps_its_recipe_when_it_is_loaded_and_saved(here: Path) -> None:
    api.quantize("model.onnx", "calib.npz", samples=9, output="out")
    api.load_result("out").save("copy")
    assert files("copy") == files("out")


def test_options_are_checked_when_they_are_made() -> None:
    assert QuantizeOptions("m", samples=np.int64(3)).samples == 3  # type: ignore[arg-type]
    assert QuantizeOptions("m", max_memory="2K").max_memory == 2048  # type: ignore[arg-type]
