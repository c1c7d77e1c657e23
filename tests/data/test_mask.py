"""A mask tells where sequences are real, or is refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from intact.data.batching import Batch
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import DataError
from intact.graph import Graph, normalize
from tests.models import ModelBuilder

MASK = np.array([[1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]])
TOKENS = np.arange(40, dtype=np.float32).reshape(5, 4, 2)


def graph_of(
    length: int | str = 4, mask: str | None = None, dtype: int = TensorProto.INT64
) -> Graph:
    """Tokens ``[n, length, 2]``, and a mask ``[n, length]`` if it is named."""
    b = ModelBuilder()
    x = b.node("Relu", b.input("tokens", ["n", length, 2]))
    if mask is not None:
        real = b.node("Cast", b.input(mask, ["n", length], dtype), to=TensorProto.FLOAT)
        x = b.node("Mul", x, b.node("Unsqueeze", real, b.ints(2)))
    b.node("Neg", x, out="y")
    b.output("y")
    return normalize(b.build())


def read(samples: Samples, size: int) -> tuple[list[Batch], np.ndarray]:
    batches, masks = [], []
    for batch, count, real in samples.masked_batches(size):
        assert real is not None
        assert real.dtype == np.bool_
        assert len(real) == size
        batches.append(batch)
        masks.append(real[:count])
    return batches, np.concatenate(masks)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float32", "float16"])
def test_a_mask_beside_the_inputs_is_not_given_to_the_model(dtype: str) -> None:
    data = {"tokens": TOKENS, "real": (MASK * 1.0).astype(dtype)}
    batches, real = read(open_samples(data, graph_of(), mask="real"), 2)
    np.testing.assert_array_equal(real, MASK)
    assert all(batch.keys() == {"tokens"} for batch in batches)
    samples = open_samples(data, graph_of(), mask="real")
    assert all(batch.keys() == {"tokens"} for batch, _ in samples.batches(3))


def test_a_mask_that_is_an_input_is_given_to_the_model() -> None:
    data = {"tokens": TOKENS, "mask": MASK}
    batches, real = read(open_samples(data, graph_of(mask="mask"), mask="mask"), 2)
    np.testing.assert_array_equal(real, MASK)
    np.testing.assert_array_equal(batches[0]["mask"], MASK[:2])


def test_preprocessing_leaves_the_mask_alone() -> None:
    b = ModelBuilder()
    b.node("Mul", b.input("x", ["n", 4]), b.input("mask", ["n", 4]), out="y")
    b.output("y")
    data = {"x": TOKENS[:, :, 0], "mask": MASK}
    changed = Preprocess(mean=(1.0,), scale=(0.5,))
    samples = open_samples(data, normalize(b.build()), preprocess=changed, mask="mask")
    batches, real = read(samples, 5)
    np.testing.assert_array_equal(real, MASK)
    np.testing.assert_array_equal(batches[0]["mask"], MASK)
    np.testing.assert_array_equal(batches[0]["x"], (TOKENS[:, :, 0] - 1) * 0.5)


def test_sequences_of_any_length_have_masks_of_theirs() -> None:
    source = [{"tokens": np.ones((2, n, 2)), "real": np.ones((2, n))} for n in (3, 5)]
    samples = open_samples(source, graph_of("length"), mask="real")
    found = [real for _, _, real in samples.masked_batches(1)]
    assert [each.shape for each in found if each is not None] == [(1, 3)] * 2 + [(1, 5)] * 2


def test_without_a_mask_there_is_none() -> None:
    samples = open_samples({"tokens": TOKENS}, graph_of())
    assert all(real is None for _, _, real in samples.masked_batches(2))


@pytest.mark.parametrize(
    ("arrays", "mask", "message"),
    [
        ({}, "real", "no array 'real' for the mask"),
        ({"real": MASK}, "rael", "'rael' for the mask; did you mean 'real'"),
        ({"real": MASK[0]}, "real", r"'real' has shape \[4\]; give \[N, S\]"),
        ({"real": MASK[:, :, None]}, "real", r"shape \[5, 4, 1\]"),
        ({"real": MASK[:, :3]}, "real", r"sequences of 3, no input has.*: tokens \[5, 4, 2\]"),
        ({"real": MASK[:3]}, "real", "has 3 samples"),
        ({"real": MASK * np.nan}, "real", "negative numbers or NaN in sample 0"),
        ({"real": (MASK - 1) * 1e4}, "real", "negative numbers or NaN in sample 0"),
        ({"real": MASK * 1j}, "real", "dtype complex128"),
        ({"real": MASK * 0}, "real", "is 0 everywhere"),
        ({"real": MASK, "other": MASK}, "real", "no input 'other'"),
    ],
)
def test_what_is_no_mask_is_refused(arrays: dict[str, Any], mask: str, message: str) -> None:
    samples = open_samples({"tokens": TOKENS, **arrays}, graph_of(), mask=mask)
    with pytest.raises(DataError, match=message):
        read(samples, 2)


def test_the_sample_is_named_by_its_number() -> None:
    source = [{"tokens": TOKENS, "real": MASK}, {"tokens": TOKENS, "real": MASK * -1}]
    with pytest.raises(DataError, match="sample 5"):
        read(open_samples(source, graph_of(), mask="real"), 2)


def test_an_input_of_another_rank_is_no_mask() -> None:
    with pytest.raises(DataError, match="input of rank 3"):
        open_samples({"tokens": TOKENS}, graph_of(), mask="tokens")
