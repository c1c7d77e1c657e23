"""Samples come as training code has them: pairs, datasets, loaders, images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from PIL import Image

import intact
from intact.data.feeding import Feeding
from intact.data.objects import KINDS
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import DataError, UsageError
from intact.graph import Graph, normalize
from tests.data.images.pictures import graph_of as image_graph
from tests.data.images.pictures import pixels, save
from tests.models import ModelBuilder


def graph_of(*shapes: tuple[int | str, ...]) -> Graph:
    b = ModelBuilder()
    names = [b.input(f"x{index}", shape) for index, shape in enumerate(shapes)]
    b.node("Sum", *names, out="y")
    b.output("y")
    return normalize(b.build())


GRAPH = graph_of(("n", 2, 3))
TWO = graph_of(("n", 2, 3), ("n", 2, 3))
X = np.arange(42, dtype=np.float32).reshape(7, 2, 3)
Y = np.arange(7) % 3


class Tensor:
    """An array of another library, which NumPy cannot read until it is brought here."""

    def __init__(self, array: npt.ArrayLike, *, ready: bool = False) -> None:
        self.array, self.ready = np.asarray(array), ready

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return Tensor(self.array, ready=True)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self.array[index])

    def __array__(self, *_: object, **__: object) -> npt.NDArray[Any]:
        if not self.ready:
            raise RuntimeError("the tensor is on a device")
        return self.array


class Foreign:
    """An array that has no other way out than DLPack."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Dataset:
    """A map-style dataset: any item by its number, and no order of its own."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self.items):
            raise RuntimeError("no such item")
        return self.items[index]


class Loader:
    """Batches of a dataset."""

    def __init__(self, batches: list[Any], *, drop_last: bool = False) -> None:
        self.batches, self.dataset = batches, object()
        self.batch_size: int | None = 3
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch


class Table:
    """Rows as Hugging Face's datasets give them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0]) if rows else []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


class Stream:
    """The same without a length."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


class Model:
    """What is called with samples, and has none."""

    def __call__(self, x: Any) -> Any:
        return x


def cut(array: Any) -> list[Any]:
    """The array in batches of 3, the last one ragged."""
    return [array[start : start + 3] for start in range(0, 7, 3)]


PAIRS = list(zip(X, Y, strict=True))
BATCHES = list(zip(cut(X), cut(Y), strict=True))

LABELLED: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"x0": X, "labels": Y},
    "dict of tensors": lambda: {"x0": Tensor(X), "label": Tensor(Y)},
    "arrays in a tuple": lambda: (X, Y),
    "arrays in a list": lambda: [Tensor(X), Tensor(Y)],
    "pairs": lambda: PAIRS,
    "pairs of tensors": lambda: [(Tensor(x), Tensor(y)) for x, y in PAIRS],
    "pairs with lists": lambda: [(x.tolist(), int(y)) for x, y in PAIRS],
    "pairs of batches": lambda: BATCHES,
    "dicts of samples": lambda: [{"x0": x, "target": y} for x, y in PAIRS],
    "nested": lambda: [({"x0": x}, y) for x, y in PAIRS],
    "dataset": lambda: Dataset(PAIRS),
    "generator": lambda: (pair for pair in PAIRS),
    "iterator of batches": lambda: iter(BATCHES),
    "function": lambda: lambda: iter(PAIRS),
    "loader of tuples": lambda: Loader(BATCHES),
    "loader of lists": lambda: Loader([[Tensor(x), Tensor(y)] for x, y in BATCHES]),
    "loader of dicts": lambda: Loader([{"x0": x, "y": y} for x, y in BATCHES]),
    "rows": lambda: Table([{"id": "a", "pixels": x.tolist(), "label": int(y)} for x, y in PAIRS]),
    "rows by name": lambda: Table([{"x0": x, "other": x, "labels": y} for x, y in PAIRS]),
    "stream of rows": lambda: Stream([{"pixels": Tensor(x), "label": y} for x, y in PAIRS]),
}
UNLABELLED: dict[str, Callable[[], Any]] = {
    "array": lambda: X,
    "tensor": lambda: Tensor(X),
    "DLPack": lambda: Foreign(X),
    "other strides": lambda: np.asfortranarray(X),
    "list of samples": lambda: list(X),
    "tuple of batches": lambda: tuple(cut(X)),
    "loader": lambda: Loader([Tensor(x) for x in cut(X)]),
    "loader with None": lambda: Loader([(x, None) for x in cut(X)]),
    "loader with objects": lambda: Loader([(x, object()) for x in cut(X)]),
    "dataset": lambda: Dataset(list(X)),
    "boxes": lambda: Loader([(x, [{"boxes": np.ones((len(x), 4))}] * len(x)) for x in cut(X)]),
}


def read(samples: Samples, size: int = 4) -> dict[str, npt.NDArray[Any]]:
    found = [{n: a[:count] for n, a in rows.items()} for rows, count in samples.batches(size)]
    return {name: np.concatenate([rows[name] for rows in found]) for name in found[0]}


@pytest.mark.parametrize("name", LABELLED)
def test_samples_and_labels_are_the_same_by_every_route(name: str) -> None:
    samples = open_samples(LABELLED[name](), GRAPH)
    np.testing.assert_array_equal(read(samples)["x0"], X)
    np.testing.assert_array_equal(samples.labels(), Y)


@pytest.mark.parametrize("name", UNLABELLED)
def test_samples_without_labels_are_the_same_by_every_route(name: str) -> None:
    samples = open_samples(UNLABELLED[name](), GRAPH)
    np.testing.assert_array_equal(read(samples)["x0"], X)
    assert samples.labels() is None


@pytest.mark.parametrize("name", LABELLED)
def test_every_route_stops_at_the_limit(name: str) -> None:
    samples = open_samples(LABELLED[name](), GRAPH, limit=2)
    chosen = [0, 3] if name in ("dataset", "rows", "rows by name") else [0, 1]  # evenly spread
    np.testing.assert_array_equal(read(samples)["x0"], X[chosen])
    np.testing.assert_array_equal(samples.labels(), Y[chosen])


@pytest.mark.parametrize("name", [*LABELLED, *UNLABELLED])
def test_how_many_there_are_is_known_where_that_costs_nothing(name: str) -> None:
    source = {**LABELLED, **UNLABELLED}[name]()
    unknown = isinstance(source, Iterator | Stream | Loader) or callable(source)
    assert open_samples(source, GRAPH).count == (None if unknown else 7)


SEVERAL: dict[str, Callable[[], Any]] = {
    "tuple of arrays": lambda: (X, -X),
    "with labels": lambda: (X, -X, Y),
    "triples": lambda: [(x, -x, y) for x, y in PAIRS],
    "nested": lambda: [((x, -x), y) for x, y in PAIRS],
    "nested dicts": lambda: Loader([({"x0": x, "x1": -x}, y) for x, y in BATCHES]),
    "loader": lambda: Loader([[x, -x, y] for x, y in BATCHES]),
    "loader without labels": lambda: Loader([(x, -x) for x, _ in BATCHES]),
    "rows": lambda: Table([{"x1": -x, "x0": x, "id": 3, "label": y} for x, y in PAIRS]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_inputs_stand_in_order_or_by_name(name: str) -> None:
    samples = open_samples(SEVERAL[name](), TWO)
    found = read(samples)
    np.testing.assert_array_equal(found["x0"], X)
    np.testing.assert_array_equal(found["x1"], -X)
    labels = samples.labels()
    assert (labels is None) == (name in ("tuple of arrays", "loader without labels"))
    assert labels is None or labels.tolist() == Y.tolist()


def test_labels_that_are_dicts_are_references_by_key() -> None:
    boxes = [{"boxes": np.full((k, 4), k), "image_id": k} for k in range(3)]
    samples = open_samples([(X[:3], boxes)], GRAPH)
    object.__setattr__(samples, "keep_references", True)
    read(samples)
    found = samples.references()
    assert [len(each) for each in found["labels.boxes"]] == [0, 1, 2]
    assert list(found["labels.image_id"]) == [0, 1, 2]
    assert samples.labels() is None


BAD: dict[str, tuple[Any, str]] = {
    "another rank": (
        [X[0, 0]],
        r"input 'x0': samples of shape \[N\], the model takes \[N, 2, 3\]",
    ),
    "unlike samples": (
        [X[0], X[0, :, :2]],
        r"item 1: input 'x0': a sample of shape \[2, 2\], the model takes \[N, 2, 3\]",
    ),
    "transposed": (Dataset([X[0].T]), r"transpose the axes to \(1, 0\)"),
    "three parts": (
        Loader([(X, Y, Y)]),
        r"batch 0 has 3 parts, the model has 1 input \('x0'\); give x, or \(x, labels\)",
    ),
    "no array": ([object()], "item 0 is of type object; give arrays, tensors or images"),
    "text": (["a.txt"], "item 0 is of type str"),
    "NaN": ([(X[0] * np.nan, 1)], "input 'x0': sample 0 holds NaN"),
    "unknown object": (
        object(),
        "of type object holds no samples; give a dict of arrays by input name, an array or tensor,",
    ),
    "a class": (Loader, "of type type holds no samples"),
    "a model": (Model(), "of type Model holds no samples"),
    "empty loader": (Loader([]), "the Loader gives no batch; give one of a dataset that has some"),
    "dropped": (Loader([], drop_last=True), "leave out drop_last: .* fewer than 3 samples"),
    "empty generator": (iter(()), "the tuple_iterator gives no item; .*make it anew"),
    "worker": (
        Loader([X, RuntimeError("Caught\nTraceback (most recent call last):\n x\nKeyError: 'k'")]),
        "^data: batch 1: raises KeyError: 'k'$",
    ),
    "dataset": (Dataset([X[0], KeyError]), "item 1 is of type type"),
    "splits": ({"train": Table([{"x0": X[0]}])}, r"the splits train; give one .*data\['train'\]"),
    "two columns": (
        Table([{"a": X[0], "b": X[0]}]),
        r"row 0 has the columns 'a', 'b', of which several .*rename_column\('a', 'x0'\)",
    ),
    "no column": (Table([{"a": "text"}]), "of which none is like input 'x0'"),
    "device": ([Tensor(np.array(["x"] * 6).reshape(2, 3))], "dtype <U1, the model takes float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_told_in_one_line(name: str) -> None:
    source, message = BAD[name]
    with pytest.raises(DataError, match=message) as caught:
        read(open_samples(source, GRAPH))
    assert "\n" not in str(caught.value)


def test_labels_of_another_length_are_refused_where_they_are_needed() -> None:
    samples = open_samples(Loader([(X[:3], Y[:3]), (X[3:], Y[:3])]), GRAPH)
    assert len(read(samples)["x0"]) == 7  # calibration does not need them
    with pytest.raises(DataError, match="3 labels for 4 samples"):
        samples.labels()


def test_what_an_item_raises_names_its_number_in_the_dataset() -> None:
    class Broken(Dataset):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                raise OSError("gone")
            return X[index]

    with pytest.raises(DataError, match="data: item 4: raises OSError: gone"):
        read(open_samples(Broken(list(X) + [X[0]] * 5), GRAPH, limit=3))


def test_an_iterator_is_not_read_twice_in_silence() -> None:
    source = iter(PAIRS)
    samples = open_samples(source, GRAPH)
    assert len(read(samples)["x0"]) == 7
    assert samples.labels() is not None  # of the pass that was made
    with pytest.raises(DataError, match=r"read a second time, .*; give a list of its items"):
        read(samples)
    with pytest.raises(DataError, match=r"gives no item; .* is read once"):
        read(open_samples(source, GRAPH))


def test_no_batch_is_kept() -> None:
    alive = 0

    class Counted(np.ndarray):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def batches() -> Iterator[Any]:
        nonlocal alive
        for _ in range(20):
            alive += 1
            yield np.ones((8, 2, 3), np.float32).view(Counted)
            assert alive < 5

    assert sum(count for _, count in open_samples(batches(), GRAPH).batches(8)) == 160


def test_the_kinds_are_told_apart_in_order() -> None:
    sources = {
        "a dict of arrays by input name": {"x0": X},
        "an array or tensor": Tensor(X),
        "a DataLoader": Loader([]),
        "a dataset with columns": Table([]),
        "a dataset with a length": Dataset([]),
        "an iterator": iter(X),
        "an iterable of such": {1},
    }
    for what, source in sources.items():
        assert next(kind.what for kind in KINDS if kind.recognise(source)) == what


def test_rows_of_other_lengths_come_with_their_mask() -> None:
    b = ModelBuilder()
    b.node("Cast", b.input("ids", ["n", "s"], onnx.TensorProto.INT64), to=1, out="y")
    b.output("y")
    rows = [{"ids": [1] * k, "real": [1] * (k - 1) + [0], "text": "a", "label": 1} for k in (3, 5)]
    for source in (Table(rows), Stream(rows), [{n: r[n] for n in ("ids", "real")} for r in rows]):
        samples = open_samples(source, normalize(b.build()), mask="real")
        found = list(samples.masked_batches(1))
        assert [batch["ids"].shape for batch, _, _ in found] == [(1, 3), (1, 5)]
        assert [int(real.sum()) for _, _, real in found if real is not None] == [2, 4]


def test_feeds_may_be_tuples_without_states() -> None:
    b = ModelBuilder()
    b.node("Add", b.input("x", [1, 3]), b.input("state", [2, 3]), out="new")
    b.output("new", [2, 3])
    graph, states = normalize(b.build()), Feeding(states={"new": "state"})
    x = np.ones((4, 1, 3), np.float32)
    for source in ([(each, 1) for each in x], Loader([(x, np.ones(4, int))])):
        samples = open_samples(source, graph, feeding=states)
        assert sum(1 for _ in samples.batches(1)) == 4
        assert samples.labels().tolist() == [1] * 4  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="transform is for inputs that all have samples"):
        open_samples(x, graph, feeding=states, transform=halved)


# Images


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Images of other sizes than the model's, in two folders."""
    paths = []
    for number in range(6):
        path = tmp_path / str(number % 2) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        save(path, pixels(9 + number, 7, 3, seed=number))
        paths.append(path)
    return sorted(paths)


IMAGES = image_graph("n", 3, 4, 4)
OPEN = image_graph("n", 3, "h", "w")
STEPS = Preprocess((10, 20, 30), (0.5, 2, 1))


def opened(path: Path) -> Image.Image:
    return Image.open(path)


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


# Transforms


def halved(sample: Any) -> Tensor:
    return Tensor(np.asarray(getattr(sample, "array", sample)) / 2)


@pytest.mark.parametrize("name", [*LABELLED, *UNLABELLED])
def test_a_transform_is_applied_to_each_sample(name: str) -> None:
    source: Any = {**UNLABELLED, **LABELLED}[name]()
    if name == "DLPack":
        pytest.skip("has no rows")
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


# Through the public functions


def classifier() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("Relu", b.node("Conv", b.input("x", ["n", 3, 4, 4]), b.weight(2, 3, 3, 3)))
    x = b.node("Reshape", x, b.ints(-1, 8))
    b.node("MatMul", x, b.weight(8, 3), out="y")
    b.output("y", ["n", 3])
    return b.build()


RANDOM = np.random.default_rng(0)
PHOTOS = RANDOM.normal(size=(40, 3, 4, 4)).astype(np.float32)
CLASSES = RANDOM.integers(0, 3, 40)
SOME = {"x": PHOTOS, "labels": CLASSES}


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
