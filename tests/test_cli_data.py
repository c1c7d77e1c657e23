"""What users bring, from the command line: images, scales, masks, metrics, quantized models."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from intact import api, demo
from intact.cli import run
from intact.data.images.steps import ImageSteps
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.flow import samples
from intact.plan import quantization_points
from tests.models import ModelBuilder

DOCS = Path(__file__).resolve().parent.parent / "docs"
METRIC = """
import numpy as np

def hits(outputs, references):
    return {"hits": float((outputs["logits"].argmax(1) == references["labels"]).mean())}

def text(outputs, references):
    return "good"

def talks(outputs, references):
    print("hello")
    return 1.0
"""

Print = Callable[..., str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's model and data, and its test images as files in sub-folders by class."""
    shutil.copy(demo.model_path(), tmp_path / "model.onnx")
    shutil.copy(demo.calibration_path(), tmp_path / "calib.npz")
    shutil.copy(demo.test_path(), tmp_path / "test.npz")
    with np.load(demo.test_path()) as test:
        for number, (image, label) in enumerate(zip(test["image"], test["labels"], strict=True)):
            folder = tmp_path / "photos" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0] * 15).save(folder / f"{number:03}.png")
    (tmp_path / "mine.py").write_text(METRIC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Print:
    """A function that runs a command line which succeeds, and returns what it prints."""

    def run_and_read(*arguments: str) -> str:
        assert run(arguments) == 0, capfd.readouterr().err
        return capfd.readouterr().out

    return run_and_read


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    """Run a command line that fails, and return the one line that says why."""
    assert run(arguments) == code
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def evaluated(printed: Print, *options: str) -> Any:
    return json.loads(printed("evaluate", "out", "--json", *options))


def test_a_folder_of_images_gives_the_same_as_its_pixels(here: Path, printed: Print) -> None:
    steps = ("--scale", repr(1 / 15))
    printed("quantize", "model.onnx", "-d", "photos", "-o", "out", *steps, "--samples", "1000")
    plan = (here / "out" / "plan.json").read_bytes()
    found = evaluated(printed, "-d", "photos")
    with np.load("test.npz") as test:
        order = np.argsort(test["labels"], kind="stable")
        np.savez("sorted.npz", image=test["image"][order] * 15, labels=test["labels"][order])
    printed("quantize", "model.onnx", "-d", "sorted.npz", "-o", "out", *steps, "--samples", "1000")
    assert (here / "out" / "plan.json").read_bytes() == plan
    assert evaluated(printed, "-d", "sorted.npz")["accuracy"] == found["accuracy"]


def test_the_steps_are_kept_for_evaluate_and_verify(here: Path, printed: Print) -> None:
    (here / "p.toml").write_text("format = 1\nscale = [2.0]\n\n[image]\nshorter_side = 8\n")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out")
    printed(*quantize, "--preprocess", "p.toml", "--scale", repr(1 / 15), "--resize", "box")
    assert (here / "out" / "preprocess.toml").read_text() == (
        f'format = 1\nscale = [{1 / 15!r}]\n\n[image]\nresize = "box"\nshorter_side = 8\n'
    )
    kept = evaluated(printed, "-d", "photos")
    assert kept["accuracy"]["top1"][0] > 90
    assert (
        evaluated(printed, "-d", "photos", "--preprocess", "p.toml")["accuracy"] != kept["accuracy"]
    )
    printed("verify", "out", "-d", "photos", "--samples", "8")


def test_verify_keeps_the_steps_that_are_not_given(
    here: Path, printed: Print, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Preprocess | None] = []

    def watched(*arguments: Any, **options: Any) -> Samples:
        seen.append(options["preprocess"])
        return open_samples(*arguments, **options)

    monkeypatch.setattr(samples, "open_samples", watched)
    steps = ("--scale", "0.1", "--resize", "box")
    printed("quantize", "model.onnx", "-d", "photos", "-o", "out", "--samples", "8", *steps)
    printed("verify", "out", "-d", "photos", "--samples", "2", "--mean", "3")
    kept = api.load_result("out").preprocess
    assert seen[-1] == Preprocess((3.0,), (0.1,), kept.image)


STRANGERS: dict[str, dict[str, Any]] = {
    "IMG_0001.JPG": {"size": (64, 48), "progressive": True},
    "portrait/my cat.jpeg": {"size": (30, 90)},
    "portrait/größe.jpg": {"size": (200, 20), "mode": "L"},
    "a/b/scan.jpg": {"size": (33, 35), "mode": "CMYK"},
    "a/turned.jpg": {"size": (40, 20), "orientation": 6},
    "a/tiny.jpg": {"size": (1, 1)},
}


def test_a_strangers_folder_of_jpegs_needs_one_command(here: Path, printed: Print) -> None:
    shutil.rmtree("photos")
    for seed, (name, options) in enumerate(STRANGERS.items()):
        (here / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 256, (*options.pop("size"), 3), np.uint8)
        exif = Image.Exif()
        exif[0x0112] = options.pop("orientation", 1)
        image = Image.fromarray(noise).convert(options.pop("mode", "RGB"))
        image.save(here / "photos" / name, exif=exif, **options)
    (here / "photos" / ".DS_Store").write_bytes(b"\0")
    (here / "photos" / "a" / "Thumbs.db").write_bytes(b"\0")
    builder = ModelBuilder(17)
    x = builder.node("Relu", builder.conv(builder.input("image", ["n", 3, 32, 32]), 3, 4))
    builder.node("GlobalAveragePool", x, out="pooled")
    builder.output("pooled", ["n", 4, 1, 1])
    onnx.save(builder.build(), "model.onnx")
    section = (DOCS.parent / "README.md").read_text().split("## Quantize a model")[1]
    command = re.search(r"```sh\nintact (.*)\n", section)
    assert command is not None
    printed(*command[1].split())
    found = evaluated(printed, "-d", "photos")
    assert found["samples"] == len(STRANGERS)
    assert found["sqnr_db"] > 25


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--size 8 --resize lanczos", {"size": (8, 8), "resize": "lanczos"}),
        ("--shorter-side 9 --center-crop", {"shorter_side": 9, "center_crop": True}),
        ("--letterbox 8,8 --pad 7 --focus", {"letterbox": (8, 8), "pad": (7,), "focus": True}),
        ("--order bgr --mean 1,2,3 --scale 0.1,0.2,0.3", {"order": "bgr"}),
    ],
)
def test_every_step_for_images_is_an_option(
    here: Path, printed: Print, options: str, expected: dict[str, Any]
) -> None:
    shape = (12, 4, 4) if "focus" in expected else (3, 8, 8)
    builder = ModelBuilder(17)
    builder.conv(builder.input("image", ["n", *shape]), shape[0], 4)
    builder.output(builder.nodes[-1].output[0])
    onnx.save(builder.build(), "model.onnx")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out", "--samples", "4")
    printed(*quantize, *options.split())
    mean, scale = ((1.0, 2.0, 3.0), (0.1, 0.2, 0.3)) if "--mean" in options else ((), ())
    kept = api.load_result("out").preprocess
    assert kept == Preprocess(mean, scale, ImageSteps(**expected))
    assert kept.image.given == ImageSteps(**expected).given


def test_labels_from_a_table(here: Path, printed: Print) -> None:
    rows = [(path, path.parent.name) for path in sorted((here / "photos").rglob("*.png"))]
    for path, _ in rows:
        path.rename(here / "photos" / path.name)
    with (here / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows((path.name, label) for path, label in rows)
    printed("quantize", "model.onnx", "-d", "photos", "-o", "out", "--scale", repr(1 / 15))
    assert evaluated(printed, "-d", "photos")["accuracy"] is None
    found = evaluated(printed, "-d", "photos", "--labels", "labels.csv")
    assert found["accuracy"]["top1"][0] > 90


def test_a_bad_image_is_named_or_skipped_on_request(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "photos" / "3" / "zz.jpg").write_bytes(b"no image")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out")
    line = refused(capfd, *quantize)
    assert "3/zz.jpg" in line
    assert "--skip-bad" in line
    assert not (here / "out").exists()
    assert "left out (first: 3/zz.jpg" in printed(*quantize, "--skip-bad", "--samples", "999")
    found = evaluated(printed, "-d", "photos", "--skip-bad")
    assert found["samples"] == 600
    assert len(found["skipped"]) == 1
    assert "skipped 3/zz.jpg" in printed("evaluate", "out", "-d", "photos", "--skip-bad")


def test_steps_for_images_need_images(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quantize = ("quantize", "model.onnx", "-o", "out", "-d")
    line = refused(capfd, *quantize, "calib.npz", "--shorter-side", "9", code=2)
    assert "--shorter-side is for a folder of images" in line
    assert "--order" in refused(capfd, *quantize, "photos", "--order", "gbr")
    assert "mean has 3 numbers" in refused(capfd, *quantize, "photos", "--mean", "1,2,3")
    assert "whole numbers" in refused(capfd, *quantize, "photos", "--size", "8,x", code=2)


def test_a_preprocessing_by_name_is_kept_and_made_again(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    quantize = ("quantize", "model.onnx", "-d", "photos")
    printed(*quantize, "-o", "named", "--normalize", "-1..1")
    assert 'normalize = "-1..1"' in (here / "named" / "recipe.toml").read_text()
    printed(*quantize, "-o", "told", "--mean", "127.5", "--std", "127.5")
    assert "std = [127.5]" in (here / "told" / "recipe.toml").read_text()
    printed("quantize", "--recipe", "named/recipe.toml", "-o", "again")
    for name in ("plan.json", "preprocess.toml", "model.int8.onnx"):
        written = (here / "named" / name).read_bytes()
        assert (here / "told" / name).read_bytes() == written
        assert (here / "again" / name).read_bytes() == written
    line = refused(capfd, *quantize, "-o", "x", "--std", "2", "--scale", "3")
    assert "--std and --scale are both given" in line
    assert "did you mean 'imagenet'" in refused(capfd, *quantize, "-o", "x", "--normalize", "imnet")
    line = refused(
        capfd, "quantize", "model.onnx", "-d", "calib.npz", "-o", "x", "--normalize",
        "imagenet-caffe", code=2,
    )  # fmt: skip
    assert "into the order bgr" in line
    assert "--mean 103.939,116.779,123.68" in line


def test_every_command_that_runs_samples_has_the_steps_of_images(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "photos", "-o", "out", "--scale", "0.0667")
    outputs = {}
    for name, steps in {"plain": (), "cropped": ("--shorter-side", "12")}.items():
        printed("run", "out", "-d", "photos", "-o", f"{name}.npz", "--samples", "9", *steps)
        outputs[name] = np.load(here / f"{name}.npz")["logits"]
        printed("evaluate", "out", "-d", "photos", "--samples", "9", *steps)
        printed("verify", "out", "-d", "photos", "--samples", "9", *steps)
    assert not np.array_equal(outputs["plain"], outputs["cropped"])
    printed(
        "import", "out/model.int8.onnx", "-o", "read", "--letterbox", "8", "--normalize", "0..1"
    )
    kept = (here / "read" / "preprocess.toml").read_text()
    assert "letterbox = [8, 8]" in kept
    for command in ("run", "evaluate", "verify"):
        more = ("-o", "x.npz") if command == "run" else ()
        line = refused(
            capfd, command, "out", "-d", "test.npz", *more, "--shorter-side", "9", code=2
        )
        assert "--shorter-side is for a folder of images" in line


def test_one_sample_without_an_axis_for_samples_is_said_to_be_that(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.save("one.npy", np.zeros((1, 8, 8), np.float32))
    line = refused(capfd, "quantize", "model.onnx", "-d", "one.npy", "-o", "out", "--mean", "1,2,3")
    assert "one sample of shape [1, 8, 8] without an axis for samples" in line
    assert "channels" not in line


def test_memory_is_bounded_with_the_same_result(here: Path, printed: Print) -> None:
    plans = []
    for bound in ((), ("--max-memory", "6M")):
        printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", *bound)
        plans.append((here / "out" / "plan.json").read_bytes())
    assert plans[0] == plans[1]


def test_a_memory_that_is_no_size(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quantize = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--max-memory")
    for text in ("much", "0", "-1G", "1.5G", "3T"):
        assert "500M or 4G" in refused(capfd, *quantize, text, code=2)
    assert "memory" in refused(capfd, *quantize, "1K")


@pytest.fixture
def padded(here: Path) -> Callable[..., list[float]]:
    """A function that quantizes a model of padded tokens and returns its activations' scales."""
    builder = ModelBuilder()
    tokens = builder.input("tokens", ["n", "length", 4])
    builder.node("MatMul", tokens, builder.weight(4, 4), out="y")
    builder.output("y")
    onnx.save(builder.build(), "text.onnx")
    real = np.arange(6) < np.arange(1, 7)[:, None]
    values = np.random.default_rng(0).uniform(-1, 1, (6, 6, 4))
    np.savez("masked.npz", tokens=np.where(real[..., None], values, 1000.0), real=real)
    np.savez("plain.npz", tokens=np.where(real[..., None], values, 1000.0))

    def scales(*options: str) -> list[float]:
        assert run(["quantize", "text.onnx", "-o", "out", "--method", "minmax", *options]) == 0
        points = quantization_points(api.load_result("out").plan)
        return [float(np.max(p.config.scale or 0)) for p in points if not p.is_constant]

    return scales


def test_padded_positions_are_left_out_with_a_mask(
    here: Path,
    padded: Callable[..., list[float]],
    printed: Print,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert padded("-d", "plain.npz")[0] > 1000 / 256
    capfd.readouterr()
    assert padded("-d", "masked.npz", "--mask", "real")[0] < 2 / 250
    capfd.readouterr()
    assert evaluated(printed, "-d", "masked.npz")["samples"] == 6  # which need no mask
    printed("verify", "out", "-d", "masked.npz")
    np.savez("wrong.npz", **(dict(np.load("plain.npz")) | {"real": np.ones((6, 5))}))
    quantize = ("quantize", "text.onnx", "-o", "new", "-d")
    assert "sequences of 5" in refused(capfd, *quantize, "wrong.npz", "--mask", "real")
    assert "no array 'rael'" in refused(capfd, *quantize, "masked.npz", "--mask", "rael")
    assert not (here / "new").exists()


def test_scales_that_a_model_carries_are_used_unless_told_otherwise(
    here: Path, printed: Print
) -> None:
    model = onnx.load("model.onnx")
    for key, value in (("SCALE_TENSOR", np.float32(0.5)), ("ZERO_POINT_TENSOR", np.uint8(7))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), key))
    annotation = model.graph.quantization_annotation.add(tensor_name="image")
    for key in ("SCALE_TENSOR", "ZERO_POINT_TENSOR"):
        annotation.quant_parameter_tensor_names.add(key=key, value=key)
    onnx.save(model, "carrying.onnx")

    def image_scale(*options: str) -> tuple[float, int]:
        printed("quantize", "carrying.onnx", "-d", "calib.npz", "-o", "out", *options)
        points = quantization_points(api.load_result("out").plan)
        (params,) = (p.config.params for p in points if p.value.name == "image")
        assert params is not None
        return float(params.scale), int(params.zero_point)

    assert image_scale() == (0.5, 7)
    assert image_scale("--scales", "none")[0] < 0.1


def test_a_tengine_table_wins_over_the_data(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    quantize = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--scales")
    (here / "other.scale").write_text("imagee 0.500000 7\n")
    line = refused(capfd, *quantize, "other.scale")
    assert "other.scale" in line
    assert "did you mean 'image'?" in line
    (here / "table_minmax.scale").write_text("image 0.500000 7\n")
    printed(*quantize, "table_minmax.scale")
    points = quantization_points(api.load_result("out").plan)
    (params,) = (p.config.params for p in points if p.value.name == "image")
    assert params is not None
    assert (float(params.scale), int(params.zero_point)) == (0.5, 7)


def test_given_scales_need_no_data(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    plan = api.load_result("out").plan
    rows: dict[str | None, dict[str, Any]] = {}
    for point in quantization_points(plan):
        if not point.is_constant and point.config.params is not None:
            params = point.config.params
            rows[point.value.name] = {
                "bitwidth": 8,
                "dtype": "int",
                "is_symmetric": "False",
                "scale": float(str(params.scale)),
                "offset": -int(params.zero_point),
                "min": 0.0,
                "max": 0.0,
            }
    table = {"version": "0.6.1", "activation_encodings": {n: [r] for n, r in rows.items()}}
    for row in rows.values():  # of SNPE: the range is that of the codes
        row["min"] = row["offset"] * row["scale"]
        row["max"] = (255 + row["offset"]) * row["scale"]
    (here / "t.json").write_text(json.dumps(table | {"param_encodings": {}}))
    text = printed("quantize", "model.onnx", "--scales", "t.json", "-o", "given")
    assert "scales of t.json" in text
    again = api.load_result("given").plan
    for end, config in plan.configs.items():
        assert str(again.configs[end].params) == str(config.params)
    line = refused(capfd, "quantize", "model.onnx", "-o", "none", code=2)
    assert "--data" in line
    assert "--scales" in line


def test_a_metric_of_the_users(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    found = evaluated(printed, "-d", "test.npz", "--metric", "mine:hits")
    assert found["metrics"]["hits"] == [share / 100 for share in found["accuracy"]["top1"]]
    assert "hits" in printed("evaluate", "out", "-d", "test.npz", "--metric", "mine:hits")
    evaluate = ("evaluate", "out", "-d", "test.npz", "--metric")
    assert "hits" in refused(capfd, *evaluate, "mine:hit")
    assert "mine:text" in refused(capfd, *evaluate, "mine:text")
    assert "top-1" in refused(capfd, *evaluate, "sqnr", code=2)


def test_a_quantized_model_is_imported_and_completed(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--keep-float", "Gemm")
    line = refused(capfd, "quantize", "out/model.int8.onnx", "-d", "calib.npz", "-o", "x", code=2)
    assert "intact import" in line
    assert "scales of the quantized model" in printed("import", "out/model.int8.onnx", "-o", "read")
    rows = json.loads(printed("inspect", "out/model.int8.onnx", "--json"))["nodes"]
    assert any(row["quantized"] for row in rows)
    assert "DequantizeLinear" not in {row["op_type"] for row in rows}
    inspect = ("inspect", "out/model.int8.onnx", "--weight-bits", "4")
    assert "quantized already" in refused(capfd, *inspect, code=2)
    read = api.load_result("read")
    assert read.statistics is None
    printed("verify", "read", "--samples", "4")
    assert json.loads(printed("evaluate", "read", "-d", "test.npz", "--json"))["samples"] == 600
    printed("import", "out/model.int8.onnx", "-d", "calib.npz", "-o", "whole")
    whole = api.load_result("whole")
    gemm = next(node for node in whole.plan.graph.nodes if node.op_type == "Gemm")
    assert not read.plan.is_quantized(gemm)
    assert whole.plan.is_quantized(gemm)
    for end, config in read.plan.configs.items():
        if read.plan.decisions[end.node].quantized:
            assert str(whole.plan.configs[end].params) == str(config.params)


def test_a_float_model_is_not_imported(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "quantize" in refused(capfd, "import", "model.onnx", "-o", "out")


def test_a_model_that_stays_float_is_accepted_on_request(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    builder = ModelBuilder()
    x = builder.input("x", ["n", 4])
    builder.node("Tanh", x, out="y")
    builder.output("y", ["n", 4])
    onnx.save(builder.build(), "tanh.onnx")
    np.save("x.npy", np.ones((3, 4), np.float32))
    quantize = ("quantize", "tanh.onnx", "-d", "x.npy", "-o", "out")
    assert "--allow-empty" in refused(capfd, *quantize)
    assert "0 of 1 nodes" in printed(*quantize, "--allow-empty")
    assert evaluated(printed, "-d", "x.npy")["sqnr_db"] is None  # identical
    printed("verify", "out")


def test_every_command_of_the_documents_runs(here: Path, printed: Print) -> None:
    builder = ModelBuilder(17)
    x = builder.node("Relu", builder.conv(builder.input("image", ["n", 3, 16, 16]), 3, 4))
    builder.node("GlobalAveragePool", x, out="pooled")
    builder.output("pooled", ["n", 4, 1, 1])
    onnx.save(builder.build(), "model.onnx")
    text = (DOCS / "data.md").read_text()
    block = re.search(r"```sh\n(.*?)\n```", text, re.DOTALL)
    assert block is not None
    printed(*block[1].split()[1:])


def test_names_that_are_not_the_models_classes_are_refused(
    here: Path, printed: Print, capfd: pytest.CaptureFixture[str]
) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    for folder in sorted((here / "photos").iterdir()):
        folder.rename(folder.with_name(f"digit {folder.name}"))
    (here / "photos" / "digit 9").rename(here / "more")
    line = refused(capfd, "evaluate", "out", "-d", "photos")
    assert "9 sub-folders are not the 10 classes" in line
    (here / "photos" / "digit 9").mkdir()
    assert evaluated(printed, "-d", "photos")["accuracy"] is not None
    image = next((here / "photos").rglob("*.png"))
    image.rename(here / "photos" / "astray.png")
    assert "'astray.png' is not in a sub-folder" in printed("evaluate", "out", "-d", "photos")


def test_what_a_function_prints_is_not_part_of_the_json(here: Path, printed: Print) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    assert evaluated(printed, "-d", "test.npz", "--metric", "mine:talks")["metrics"]["talks"]


def test_absurd_numbers_of_threads_are_refused(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantize = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    assert "threads is 100000" in refused(capfd, *quantize, "--threads", "100000", code=2)


def test_a_results_folder_is_inspected(here: Path, printed: Print) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--keep-float", "Gemm")
    rows = json.loads(printed("inspect", "out", "--json"))["nodes"]
    assert [row["quantized"] for row in rows if row["op_type"] == "Gemm"] == [False]
    assert any(row["quantized"] for row in rows)


def test_forgotten_preprocessing_is_suspected(here: Path, printed: Print) -> None:
    printed("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    wrong = printed("evaluate", "out", "-d", "test.npz", "--mean", "-3000")
    assert "is the data preprocessed as the model wants it" in wrong
    assert "preprocessed" not in printed("evaluate", "out", "-d", "test.npz")
