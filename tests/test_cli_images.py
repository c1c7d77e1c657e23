"""Folders of images, from the command line: steps, labels, bad files."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from intact import api, demo
from intact.data.images.steps import ImageSteps
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.results import recipes
from tests.command_lines import Say, evaluated, refused
from tests.models import ModelBuilder


@pytest.fixture
def here(here: Path) -> Path:
    """With the demo's test images as files too, in sub-folders by class."""
    with np.load(demo.test_path()) as test:
        for number, (image, label) in enumerate(zip(test["image"], test["labels"], strict=True)):
            folder = here / "photos" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0] * 15).save(folder / f"{number:03}.png")
    return here


def test_a_folder_of_images_gives_the_same_as_its_pixels(here: Path, say: Say) -> None:
    steps = ("--scale", repr(1 / 15))
    say("quantize", "model.onnx", "-d", "photos", "-o", "out", *steps, "--samples", "1000")
    plan = (here / "out" / "plan.json").read_bytes()
    found = evaluated(say, "-d", "photos")
    with np.load("test.npz") as test:
        order = np.argsort(test["labels"], kind="stable")
        np.savez("sorted.npz", image=test["image"][order] * 15, labels=test["labels"][order])
    say("quantize", "model.onnx", "-d", "sorted.npz", "-o", "out", *steps, "--samples", "1000")
    assert (here / "out" / "plan.json").read_bytes() == plan
    assert evaluated(say, "-d", "sorted.npz")["accuracy"] == found["accuracy"]


def test_the_steps_are_kept_for_evaluate_and_verify(here: Path, say: Say) -> None:
    (here / "p.toml").write_text("format = 1\nscale = [2.0]\n\n[image]\nshorter_side = 8\n")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out")
    say(*quantize, "--preprocess", "p.toml", "--scale", repr(1 / 15), "--resize", "box")
    assert (here / "out" / "preprocess.toml").read_text() == (
        f'format = 1\nscale = [{1 / 15!r}]\n\n[image]\nresize = "box"\nshorter_side = 8\n'
    )
    kept = evaluated(say, "-d", "photos")
    assert kept["accuracy"]["top1"][0] > 90
    assert evaluated(say, "-d", "photos", "--preprocess", "p.toml")["accuracy"] != kept["accuracy"]
    say("verify", "out", "-d", "photos", "--samples", "8")


def test_verify_keeps_the_steps_that_are_not_given(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Preprocess | None] = []

    def watched(*arguments: Any, **options: Any) -> Samples:
        seen.append(options["preprocess"])
        return open_samples(*arguments, **options)

    monkeypatch.setattr(recipes, "open_samples", watched)
    steps = ("--scale", "0.1", "--resize", "box")
    say("quantize", "model.onnx", "-d", "photos", "-o", "out", "--samples", "8", *steps)
    say("verify", "out", "-d", "photos", "--samples", "2", "--mean", "3")
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


def test_a_strangers_folder_of_jpegs_needs_one_command(here: Path, say: Say) -> None:
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
    say("quantize", "model.onnx", "-d", "photos/", "--normalize", "imagenet", "-o", "out/")
    found = evaluated(say, "-d", "photos")
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
    here: Path, say: Say, options: str, expected: dict[str, Any]
) -> None:
    shape = (12, 4, 4) if "focus" in expected else (3, 8, 8)
    builder = ModelBuilder(17)
    builder.conv(builder.input("image", ["n", *shape]), shape[0], 4)
    builder.output(builder.nodes[-1].output[0])
    onnx.save(builder.build(), "model.onnx")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out", "--samples", "4")
    say(*quantize, *options.split())
    mean, scale = ((1.0, 2.0, 3.0), (0.1, 0.2, 0.3)) if "--mean" in options else ((), ())
    kept = api.load_result("out").preprocess
    assert kept == Preprocess(mean, scale, ImageSteps(**expected))
    assert kept.image.given == ImageSteps(**expected).given


def test_labels_from_a_table(here: Path, say: Say) -> None:
    rows = [(path, path.parent.name) for path in sorted((here / "photos").rglob("*.png"))]
    for path, _ in rows:
        path.rename(here / "photos" / path.name)
    with (here / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows((path.name, label) for path, label in rows)
    say("quantize", "model.onnx", "-d", "photos", "-o", "out", "--scale", repr(1 / 15))
    assert evaluated(say, "-d", "photos")["accuracy"] is None
    found = evaluated(say, "-d", "photos", "--labels", "labels.csv")
    assert found["accuracy"]["top1"][0] > 90


def test_a_bad_image_is_named_or_skipped_on_request(
    here: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "photos" / "3" / "zz.jpg").write_bytes(b"no image")
    quantize = ("quantize", "model.onnx", "-d", "photos", "-o", "out")
    line = refused(capfd, *quantize)
    assert "3/zz.jpg" in line
    assert "--skip-bad" in line
    assert not (here / "out").exists()
    assert "left out (first: 3/zz.jpg" in say(*quantize, "--skip-bad", "--samples", "999")
    found = evaluated(say, "-d", "photos", "--skip-bad")
    assert found["samples"] == 600
    assert len(found["skipped"]) == 1
    assert "skipped 3/zz.jpg" in say("evaluate", "out", "-d", "photos", "--skip-bad")


def test_steps_for_images_need_images(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quantize = ("quantize", "model.onnx", "-o", "out", "-d")
    line = refused(capfd, *quantize, "calib.npz", "--shorter-side", "9", code=2)
    assert "--shorter-side is for a folder of images" in line
    assert "--order" in refused(capfd, *quantize, "photos", "--order", "gbr")
    assert "mean has 3 numbers" in refused(capfd, *quantize, "photos", "--mean", "1,2,3")
    assert "whole numbers" in refused(capfd, *quantize, "photos", "--size", "8,x", code=2)


def test_a_preprocessing_by_name_is_kept_and_made_again(
    here: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    quantize = ("quantize", "model.onnx", "-d", "photos")
    say(*quantize, "-o", "named", "--normalize", "-1..1")
    assert 'normalize = "-1..1"' in (here / "named" / "recipe.toml").read_text()
    say(*quantize, "-o", "told", "--mean", "127.5", "--std", "127.5")
    assert "std = [127.5]" in (here / "told" / "recipe.toml").read_text()
    say("quantize", "--recipe", "named/recipe.toml", "-o", "again")
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
    here: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    say("quantize", "model.onnx", "-d", "photos", "-o", "out", "--scale", "0.0667")
    outputs = {}
    for name, steps in {"plain": (), "cropped": ("--shorter-side", "12")}.items():
        say("run", "out", "-d", "photos", "-o", f"{name}.npz", "--samples", "9", *steps)
        outputs[name] = np.load(here / f"{name}.npz")["logits"]
        say("evaluate", "out", "-d", "photos", "--samples", "9", *steps)
        say("verify", "out", "-d", "photos", "--samples", "9", *steps)
    assert not np.array_equal(outputs["plain"], outputs["cropped"])
    say("import", "out/model.int8.onnx", "-o", "read", "--letterbox", "8", "--normalize", "0..1")
    kept = (here / "read" / "preprocess.toml").read_text()
    assert "letterbox = [8, 8]" in kept
    for command in ("run", "evaluate", "verify"):
        more = ("-o", "x.npz") if command == "run" else ()
        line = refused(
            capfd, command, "out", "-d", "test.npz", *more, "--shorter-side", "9", code=2
        )
        assert "--shorter-side is for a folder of images" in line


def test_names_that_are_not_the_models_classes_are_refused(
    here: Path, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    say("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    for folder in sorted((here / "photos").iterdir()):
        folder.rename(folder.with_name(f"digit {folder.name}"))
    (here / "photos" / "digit 9").rename(here / "more")
    line = refused(capfd, "evaluate", "out", "-d", "photos")
    assert "9 sub-folders are not the 10 classes" in line
    (here / "photos" / "digit 9").mkdir()
    assert evaluated(say, "-d", "photos")["accuracy"] is not None
    image = next((here / "photos").rglob("*.png"))
    image.rename(here / "photos" / "astray.png")
    assert "'astray.png' is not in a sub-folder" in say("evaluate", "out", "-d", "photos")
