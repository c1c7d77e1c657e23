"""Tensors, datasets and loaders of PyTorch itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intact
from intact.data.sources import open_samples
from intact.errors import DataError
from tests.data.objects import CLASSES, GRAPH, PHOTOS, SOME, TWO, X, Y, classifier, read

# Any, so that types are checked alike with and without it.
torch: Any = pytest.importorskip("torch")
torch_data: Any = pytest.importorskip("torch.utils.data")
DataLoader, TensorDataset = torch_data.DataLoader, torch_data.TensorDataset

TENSOR, LABELS = torch.from_numpy(X), torch.from_numpy(Y)


class Named:
    """Samples by input name."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x0": TENSOR[index], "label": int(Y[index])}


Streamed = type("Streamed", (torch_data.IterableDataset,), {"__iter__": lambda _: iter(TENSOR)})
"""Samples in an order of its own."""


class Broken(Named):
    """A dataset with a damaged sample."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 4:
            raise ValueError("sample 4 is damaged")
        return super().__getitem__(index)


SOURCES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: TENSOR,
    "with a gradient": lambda: TENSOR.clone().requires_grad_(),
    "bfloat16": lambda: TENSOR.to(torch.bfloat16),
    "half": TENSOR.half,
    "double": TENSOR.double,
    "other strides": lambda: TENSOR.transpose(1, 2).contiguous().transpose(1, 2),
    "dict": lambda: {"x0": TENSOR, "labels": LABELS},
    "tuple": lambda: (TENSOR, LABELS),
    "list of samples": lambda: list(TENSOR.unbind()),
    "dataset": lambda: TensorDataset(TENSOR, LABELS),
    "named dataset": Named,
    "streamed dataset": Streamed,
    "loader": lambda: DataLoader(TensorDataset(TENSOR, LABELS), batch_size=3),
    "loader of tensors": lambda: DataLoader(TENSOR, batch_size=3),
    "loader of dicts": lambda: DataLoader(Named(), batch_size=2),
    "loader without batches": lambda: DataLoader(Named(), batch_size=None),
    "loader of a stream": lambda: DataLoader(Streamed(), batch_size=4),
    "generator": lambda: ((x, y) for x, y in zip(TENSOR, LABELS, strict=True)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_samples_are_the_same_by_every_route(name: str) -> None:
    source = SOURCES[name]()
    samples = open_samples(source, GRAPH)
    np.testing.assert_array_equal(read(samples)["x0"], X)
    labels = samples.labels()
    assert labels is None or labels.tolist() == Y.tolist()
    is_unknown = name in ("streamed dataset", "loader of a stream", "generator")
    assert samples.count == (None if is_unknown else 7)


def test_channels_last_is_a_layout_of_memory_alone() -> None:
    from tests.data.images.pictures import graph_of

    image = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).float()
    samples = open_samples(image.to(memory_format=torch.channels_last), graph_of("n", 3, 4, 4))
    np.testing.assert_array_equal(read(samples)["x"], image.numpy())


def test_two_inputs_and_labels() -> None:
    loader = DataLoader(TensorDataset(TENSOR, -TENSOR, LABELS), batch_size=3)
    samples = open_samples(loader, TWO)
    np.testing.assert_array_equal(read(samples)["x1"], -X)
    assert samples.labels().tolist() == Y.tolist()  # type: ignore[union-attr]
    with pytest.raises(DataError, match="batch 0 has 3 parts, the model has 1 input"):
        read(open_samples(loader, GRAPH))


def test_dropped_samples_are_not_counted() -> None:
    loader = DataLoader(TENSOR, batch_size=3, drop_last=True)
    samples = open_samples(loader, GRAPH)
    assert samples.count == 6
    assert len(read(samples)["x0"]) == 6
    with pytest.raises(DataError, match="DataLoader gives no batch; leave out drop_last"):
        read(open_samples(DataLoader(TENSOR, batch_size=8, drop_last=True), GRAPH))


def test_what_a_worker_raises_is_one_line_with_the_batch() -> None:
    for workers in (0, 1):
        loader = DataLoader(Broken(), batch_size=2, num_workers=workers)
        with pytest.raises(DataError) as caught:
            read(open_samples(loader, GRAPH))
        said = "data: batch 2: raises ValueError: sample 4 is damaged"
        assert re.fullmatch(
            rf"{said} \(\S+test_torch_sources.py:\d+, in __getitem__\)", str(caught.value)
        )


def test_a_transform_gets_tensors_as_the_dataset_has_them() -> None:
    def transform(sample: Any) -> Any:
        assert isinstance(sample, torch.Tensor)
        return (sample * 2).requires_grad_()

    for source in (TENSOR, list(TENSOR), DataLoader(TensorDataset(TENSOR, LABELS), batch_size=3)):
        samples = open_samples(source, GRAPH, transform=transform)
        np.testing.assert_array_equal(read(samples)["x0"], 2 * X)


def test_a_loader_is_enough_to_quantize_and_run() -> None:
    images, labels = torch.from_numpy(PHOTOS), torch.from_numpy(CLASSES)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    result = intact.quantize(classifier(), loader, threads=1)
    found = intact.execute(result, loader, executor="float", threads=1).outputs["y"]
    wanted = intact.execute(result, SOME, executor="float", threads=1).outputs["y"]
    np.testing.assert_array_equal(found, wanted)


def test_the_code_that_reads_tensors_does_not_import_torch() -> None:
    folder = Path(intact.__file__).parent / "data"
    for path in folder.rglob("*.py"):
        assert "import torch" not in path.read_text()
        assert "from torch" not in path.read_text()
