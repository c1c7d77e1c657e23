"""The first batch of every kind of data, which a module is exported with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import intact
from intact.data.images.steps import ImageSteps
from intact.errors import DataError, ModelError, UsageError
from intact.improve.learn.example import Preparation, as_example, example_of
from intact.improve.learn.export import argument_names, export_module, optional_names

X, Y = torch.rand(6, 3, 8, 8), torch.arange(6)
PIXELS = (X.permute(0, 2, 3, 1).numpy() * 255).astype(np.uint8)


def classifier(channels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 2, 3), nn.Flatten(), nn.Linear(72, 4))


class Streamed(IterableDataset[Any]):
    """Samples with labels, in an order of its own."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


class Rows:
    """A dataset as Hugging Face's."""

    column_names = ("image", "label")

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"label": int(Y[index]), "image": Image.fromarray(PIXELS[index])}


def function() -> Iterator[Tensor]:
    yield X[:4]


@pytest.mark.parametrize(
    "data",
    [
        X,
        (X, Y),
        [X, Y],
        {"input": X, "labels": Y},
        DataLoader(TensorDataset(X, Y), 4),
        TensorDataset(X, Y),
        list(X),
        [X[:2], X[2:]],
        [(x, int(y)) for x, y in zip(X, Y, strict=True)],
        Streamed(),
        DataLoader(Streamed(), 4),
        function,
    ],
    ids=lambda data: type(data).__name__,
)
def test_the_example_is_a_batch(data: object) -> None:
    example, _ = example_of(classifier(), data)
    assert example["input"].shape[1:] == X.shape[1:]


def test_files_give_an_example(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input=X.numpy())
    example, _ = example_of(classifier(), str(tmp_path / "x.npz"))
    assert example["input"].shape == X.shape


@pytest.mark.parametrize("kind", ["picture", "pictures", "pairs", "paths", "folder", "rows"])
def test_images_have_the_size_of_the_steps_or_of_the_transform(kind: str, tmp_path: Path) -> None:
    for index, each in enumerate(PIXELS):
        Image.fromarray(each).save(tmp_path / f"{index}.png")
    pictures = [Image.fromarray(each) for each in PIXELS]
    data: object = {
        "picture": pictures[0],
        "pictures": pictures,
        "pairs": [(each, 1) for each in pictures],
        "paths": [str(tmp_path / "0.png")],
        "folder": tmp_path,
        "rows": Rows(),
    }[kind]

    def transform(image: Any) -> Tensor:
        assert isinstance(image, Image.Image)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()

    example, _ = example_of(classifier(), data, Preparation(transform))
    assert example["input"].shape == (1, 3, 8, 8)
    example, _ = example_of(classifier(1), data, Preparation(image=ImageSteps(size=(8, 8))))
    assert example["input"].shape == (1, 1, 8, 8)
    with pytest.raises(DataError, match=r"size=\(ROWS, COLUMNS\), transform= or example="):
        example_of(classifier(), data)


def test_the_transform_of_a_batch_gets_its_samples() -> None:
    def transform(sample: Tensor) -> Tensor:
        assert sample.shape == (3, 8, 8)
        return sample[:1]

    for data in (X, (X, Y), DataLoader(TensorDataset(X, Y), 4), list(X)):
        example, _ = example_of(classifier(1), data, Preparation(transform))
        assert example["input"].shape == (1, 1, 8, 8)


class Masked(nn.Module):
    """Inputs that need not be given, as transformers have them."""

    def forward(
        self, ids: Tensor | None = None, mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        assert ids is not None
        assert mask is not None
        assert labels is None
        return ids * mask


def test_a_dict_gives_inputs_with_defaults_too_but_no_labels() -> None:
    batch = {"mask": X, "ids": X, "labels": Y}
    for data in (batch, [batch], iter([batch])):
        example, _ = example_of(Masked(), data)
        assert set(example) == {"ids", "mask"}
    names, others = argument_names(Masked()), optional_names(Masked())
    assert set(as_example(names, batch, others)) == set(batch)  # as an example, all that is given


def test_no_samples_are_said_to_be_none() -> None:
    nothing: list[Any] = [[], iter([]), DataLoader(TensorDataset(X[:0]), 4)]
    for data in nothing:
        with pytest.raises(DataError, match=r"no samples: the .* gives none"):
            example_of(classifier(), data)


def test_double_modules_are_exported_as_float() -> None:
    module = nn.Linear(3, 2).double()
    model = export_module(module, (torch.rand(2, 3),))
    assert {value.dtype.name for value in model.graph.inputs if value.dtype} == {"FLOAT"}
    assert module.weight.dtype is torch.float64


class Pooled(nn.Module):
    """A convolution and a pool, for batches of three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)).mean((2, 3))


@pytest.mark.parametrize("shape", [(4, 8, 8, 3), (3, 8, 8)], ids=["channels-last", "one-sample"])
def test_a_batch_that_the_module_refuses_is_no_fault_of_the_export(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"Pooled refuses a batch of shape \[.*channels first"):
        intact.quantize(Pooled(), torch.zeros(shape))


def test_modules_in_wrappers_and_of_torchscript() -> None:
    data = torch.randn(8, 3, 8, 8)
    for wrapped in (torch.nn.DataParallel(Pooled()), torch.compile(Pooled())):
        assert intact.quantize(wrapped, data, preset="fast").plan.graph.outputs
    with pytest.raises(ModelError, match="give the module that it was made of"):
        intact.quantize(torch.jit.trace(Pooled(), data), data)
    with pytest.raises(UsageError, match=r"a Pooled is a torch\.nn\.Module, and this takes"):
        intact.inspect(Pooled())
