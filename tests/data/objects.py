"""Stand-ins for the objects of training code: tensors, datasets, loaders; with the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from PIL import Image

from intact.data.preprocess import Preprocess
from intact.data.stream import Samples
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


def halved(sample: Any) -> Tensor:
    return Tensor(np.asarray(getattr(sample, "array", sample)) / 2)


def save_images(folder: Path) -> list[Path]:
    """Images of other sizes than the model's, in two folders."""
    paths = []
    for number in range(6):
        path = folder / str(number % 2) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        save(path, pixels(9 + number, 7, 3, seed=number))
        paths.append(path)
    return sorted(paths)


IMAGES = image_graph("n", 3, 4, 4)
OPEN = image_graph("n", 3, "h", "w")
STEPS = Preprocess((10, 20, 30), (0.5, 2, 1))


def opened(path: Path) -> Image.Image:
    return Image.open(path)


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
