"""The public functions take samples as training code has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import intact
from intact.errors import UsageError
from tests.data.objects import (
    CLASSES,
    PHOTOS,
    SOME,
    Dataset,
    Loader,
    classifier,
    halved,
    save_images,
)
from tests.models import ModelBuilder


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    return save_images(tmp_path)


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    def plan_of(data: Any, **options: Any) -> dict[str, bytes]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        intact.quantize(classifier(), data, output=folder, threads=1, **options)
        files = [path for path in folder.iterdir() if path.name != "recipe.toml"]
        return {path.name: path.read_bytes() for path in files}

    wanted = plan_of(SOME)
    assert plan_of(zip(PHOTOS, CLASSES, strict=True)) == wanted
    loader = Loader([(PHOTOS[:25], CLASSES[:25]), (PHOTOS[25:], CLASSES[25:])])
    assert plan_of(loader) == wanted
    assert plan_of(Dataset([each * 2 for each in PHOTOS]), transform=halved) == wanted


def test_labels_of_pairs_are_evaluated() -> None:
    result = intact.quantize(classifier(), (PHOTOS, CLASSES), target="tflite", threads=1)
    found = intact.evaluate(result, zip(PHOTOS, CLASSES, strict=True)).accuracy
    assert found is not None
    assert found == intact.evaluate(result, SOME).accuracy


def test_iterators_are_refused_where_samples_are_read_twice(tmp_path: Path) -> None:
    arrays = iter([PHOTOS])
    with pytest.raises(UsageError, match=r"read twice, .*give a list of its items"):
        intact.search_strategy(classifier(), arrays)
    result = intact.quantize(classifier(), SOME, threads=1)
    result.save(tmp_path / "one")
    result.save(tmp_path / "two")
    with pytest.raises(UsageError, match="samples are read 2 times"):
        intact.verify_all(tmp_path, arrays)


def test_steps_of_images_need_images(images: list[Path]) -> None:
    steps: dict[str, Any] = {"normalize": "imagenet", "shorter_side": 6, "threads": 1}
    intact.quantize(classifier(), images, **steps)
    with pytest.raises(UsageError, match="shorter_side is for a folder of images"):
        intact.quantize(classifier(), iter(images), **steps)
    with pytest.raises(UsageError, match="shorter_side is for a folder of images"):
        intact.quantize(classifier(), images, transform=halved, **steps)


def test_the_recipe_says_that_a_transform_was_given(tmp_path: Path) -> None:
    intact.quantize(classifier(), SOME, transform=halved, output=tmp_path / "out", threads=1)
    text = (tmp_path / "out" / "recipe.toml").read_text()
    assert "as an object in Python, so not written here: model, data, transform.\n" in text
    with pytest.raises(UsageError, match="transform is 3; give a function of a sample"):
        intact.quantize(classifier(), SOME, transform=3)  # type: ignore[arg-type]


def test_targets_that_change_the_graph_need_samples_twice() -> None:
    b = ModelBuilder()
    b.node("Conv", b.input("x", ["n", 3, "h", "w"]), b.weight(2, 3, 3, 3), out="y")
    b.output("y", ["n", 2, "i", "j"])
    targets = ["tflite", "onnxruntime"]
    assert len(intact.quantize_for(b.build(), PHOTOS, targets=targets, threads=1)) == 2
    with pytest.raises(UsageError, match=r"samples are read 2 times: .*; give a list"):
        intact.quantize_for(b.build(), iter(PHOTOS), targets=targets, threads=1)
