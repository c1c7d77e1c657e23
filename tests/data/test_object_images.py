"""Images of Pillow and paths of images go through the steps of a folder; transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.errors import DataError
from tests.data.objects import (
    GRAPH,
    IMAGES,
    LABELLED,
    OPEN,
    PAIRS,
    STEPS,
    TWO,
    UNLABELLED,
    Dataset,
    Loader,
    Table,
    X,
    Y,
    cut,
    halved,
    opened,
    read,
    save_images,
)


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    return save_images(tmp_path)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("list of paths", lambda paths: paths),
        ("list of texts", lambda paths: [str(path) for path in paths]),
        ("list of images", lambda paths: [opened(path) for path in paths]),
        ("dataset", lambda paths: Dataset([opened(path) for path in paths])),
        ("generator", lambda paths: (opened(path) for path in paths)),
        ("dicts", lambda paths: [{"x": opened(path)} for path in paths]),
        ("loader of lists", lambda paths: Loader([{"x": [opened(path) for path in paths]}])),
    ],
)
def test_images_go_through_the_steps_of_a_folder(
    images: list[Path], name: str, of: Callable[[list[Path]], Any]
) -> None:
    folder = open_samples(images[0].parent.parent, IMAGES, preprocess=STEPS)
    samples = open_samples(of(images), IMAGES, preprocess=STEPS)
    np.testing.assert_array_equal(read(samples)["x"], read(folder)["x"])
    assert samples.labels() is None, name


@pytest.mark.parametrize(
    "of",
    [
        lambda paths, labels: list(zip(paths, labels, strict=True)),
        lambda paths, labels: [(opened(p), n) for p, n in zip(paths, labels, strict=True)],
        lambda paths, labels: Dataset([(opened(p), n) for p, n in zip(paths, labels, strict=True)]),
        lambda paths, labels: Table(
            [{"image": opened(p), "label": n} for p, n in zip(paths, labels, strict=True)]
        ),
    ],
)
@pytest.mark.parametrize("limit", [None, 3])
def test_labels_of_images_come_along(
    images: list[Path], of: Callable[[list[Path], list[int]], Any], limit: int | None
) -> None:
    folder = open_samples(images[0].parent.parent, IMAGES, preprocess=STEPS, limit=limit)
    labels = [int(path.parent.name) for path in images]
    samples = open_samples(of(images, labels), IMAGES, preprocess=STEPS, limit=limit)
    np.testing.assert_array_equal(read(samples)["x"], read(folder)["x"])
    np.testing.assert_array_equal(samples.labels(), folder.labels())
    assert samples.count == (limit or 6)


def test_one_image_is_one_sample(images: list[Path]) -> None:
    assert read(open_samples(opened(images[0]), IMAGES))["x"].shape == (1, 3, 4, 4)


def test_images_have_one_size_where_the_model_leaves_it_open(images: list[Path]) -> None:
    from intact.data.images.steps import ImageSteps, Size

    steps = Preprocess(image=ImageSteps(size=Size(5, 6)))
    for source in (images, Dataset([opened(path) for path in images])):
        samples = open_samples(source, OPEN, preprocess=steps)
        assert samples.batch_size(4) == 4
        assert read(samples)["x"].shape == (6, 3, 5, 6)


def test_damaged_images_are_named_or_skipped(images: list[Path]) -> None:
    images[2].write_bytes(b"no image")
    with pytest.raises(DataError, match=f"{images[2]}: not an image"):
        read(open_samples(images, IMAGES))
    with pytest.raises(DataError, match=f"item 2: {images[2]}: not an image"):
        read(open_samples(iter(images), IMAGES))
    samples = open_samples(images, IMAGES, skip_bad=True)
    assert len(read(samples)["x"]) == 5
    assert len(samples.skipped) == 1


# DLPack alone gives no rows for a transform.
@pytest.mark.parametrize("name", [*LABELLED, *(each for each in UNLABELLED if each != "DLPack")])
def test_a_transform_is_applied_to_each_sample(name: str) -> None:
    source: Any = {**UNLABELLED, **LABELLED}[name]()
    samples = open_samples(source, GRAPH, transform=halved)
    np.testing.assert_array_equal(read(samples)["x0"], X / 2)
    labels = samples.labels()
    assert labels is None or labels.tolist() == Y.tolist()


def test_a_transform_makes_samples_of_what_does_not_fit_the_model() -> None:
    raw = np.arange(28).reshape(7, 4)

    def transform(sample: npt.NDArray[Any]) -> npt.NDArray[Any]:
        assert sample.shape == (4,)
        return np.resize(sample, (2, 3)).astype(np.float32)

    wanted = np.stack([transform(each) for each in raw])
    for source in (raw, list(raw), Dataset(list(raw)), Loader(cut(raw)), {"x0": raw}):
        samples = open_samples(source, GRAPH, transform=transform)
        np.testing.assert_array_equal(read(samples)["x0"], wanted)


def test_a_transform_gets_several_inputs_as_a_dict() -> None:
    def transform(sample: Mapping[str, Any]) -> tuple[Any, Any]:
        return sample["x1"], sample["x0"]

    found = read(open_samples([(x, -x, y) for x, y in PAIRS], TWO, transform=transform))
    np.testing.assert_array_equal(found["x0"], -X)


def test_a_transform_gets_images_of_a_folder(images: list[Path]) -> None:
    def transform(image: Image.Image) -> npt.NDArray[Any]:
        assert image.mode == "RGB"
        return np.asarray(image.resize((4, 4)), np.float32).transpose(2, 0, 1) / 255

    folder = images[0].parent.parent
    wanted = np.stack([transform(opened(path)) for path in images])
    for source in (folder, images, Dataset([opened(path) for path in images])):
        samples = open_samples(source, IMAGES, transform=transform)
        np.testing.assert_array_equal(read(samples)["x"], wanted)
    assert open_samples(folder, IMAGES, transform=transform).labels() is not None
    images[1].write_bytes(b"no image")
    skipping = open_samples(folder, IMAGES, transform=transform, skip_bad=True)
    assert len(read(skipping)["x"]) == 5
    assert len(skipping.skipped) == 1


def test_what_a_transform_raises_is_told() -> None:
    def transform(sample: Any) -> Any:
        raise ValueError("too small")

    with pytest.raises(DataError, match="data: item 0: transform raises ValueError: too small"):
        read(open_samples(list(X), GRAPH, transform=transform))
