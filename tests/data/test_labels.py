"""What comes along with samples stays beside its sample, whatever is cut, filled up or left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.data.batching import Batch
from intact.data.labels import Reference
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import DataError
from intact.graph import normalize
from tests.models import ModelBuilder

BUILDER = ModelBuilder()
BUILDER.node("Relu", BUILDER.input("x0", ["n", 1]), out="y")
BUILDER.output("y")
GRAPH = normalize(BUILDER.build())


def opened(source: Any, **options: Any) -> Samples:
    return replace(open_samples(source, GRAPH, **options), keep_references=True)


def boxes(number: float) -> np.ndarray:
    """As many boxes as the number says, each of that number."""
    return np.full((int(number), 4), number)


def joined(samples: Samples) -> dict[str, Reference]:
    """What came along in a pass."""
    list(samples.batches(2))
    return samples.references()


def batch_of(numbers: np.ndarray) -> dict[str, Any]:
    return {
        "x0": numbers.reshape(-1, 1).astype(np.float32),
        "labels.boxes": [boxes(number) for number in numbers],
        "labels_text": np.array([f"text {int(number)}" for number in numbers]),
    }


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=70), min_size=1, max_size=5),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(1, 100)),
)
def test_every_sample_keeps_what_came_along_with_it(
    batches: list[list[int]], size: int, limit: int | None
) -> None:
    samples = opened([batch_of(np.array(numbers)) for numbers in batches], limit=limit)
    seen = np.concatenate([rows["x0"][:count, 0] for rows, count in samples.batches(size)])
    along = samples.references()
    assert len(along["labels.boxes"]) == len(seen)
    for number, its_boxes in zip(seen, along["labels.boxes"], strict=True):
        np.testing.assert_array_equal(its_boxes, boxes(number))
    assert [str(text) for text in along["labels_text"]] == [f"text {int(n)}" for n in seen]


def test_equal_shapes_make_one_array() -> None:
    samples = opened({"x0": np.ones((3, 1)), "labels": np.arange(6.0).reshape(3, 2)})
    np.testing.assert_array_equal(joined(samples)["labels"], [[0, 1], [2, 3], [4, 5]])


def test_they_follow_a_source_that_changes_its_order() -> None:
    class Shuffled:
        def __init__(self) -> None:
            self.random = np.random.default_rng(0)

        def __iter__(self) -> Iterator[Batch]:
            yield batch_of(self.random.permutation(9))

    samples = opened(Shuffled())
    for _ in range(2):
        seen = np.concatenate([rows["x0"][:count, 0] for rows, count in samples.batches(4)])
        assert [len(each) for each in samples.references()["labels.boxes"]] == seen.tolist()


def test_only_labels_are_kept_where_nobody_asks_for_more() -> None:
    source: Any = batch_of(np.arange(3)) | {"labels": np.arange(3)}
    samples = open_samples(source, GRAPH)
    assert list(joined(samples)) == ["labels"]


def test_an_input_or_a_mask_of_such_a_name_is_none_of_them() -> None:
    b = ModelBuilder()
    b.node("Add", b.input("x0", ["n", 3]), b.input("labels_in", ["n", 3]), out="y")
    b.output("y")
    source: Any = {
        "x0": np.ones((2, 3)),
        "labels_in": np.ones((2, 3)),
        "labels_mask": [[1, 1, 0]] * 2,
    }
    samples = replace(
        open_samples(source, normalize(b.build()), mask="labels_mask"), keep_references=True
    )
    assert next(iter(samples.batches(2)))[0].keys() == {"x0", "labels_in"}
    assert samples.references() == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([boxes(1), boxes(2)], "2 labels.boxes for 3 samples"),
        (np.float32(3), "0 labels.boxes for 3 samples"),
        ([None, 1, 2], "holds Python objects"),
        ([{}, {}, {}], "holds Python objects"),
        ([[1, 2], [3], [[4], [5, 6]]], "'labels.boxes' holds no arrays"),
    ],
)
def test_what_does_not_fit_the_samples_is_refused(values: Any, message: str) -> None:
    samples = opened({"x0": np.ones((3, 1)), "labels.boxes": values})
    with pytest.raises(DataError, match=message):
        joined(samples)


def test_a_batch_without_is_named_by_its_first_sample() -> None:
    samples = opened([batch_of(np.arange(3)), {"x0": np.ones((2, 1))}])
    with pytest.raises(DataError, match=r"sample 3 has no 'labels.boxes', others have"):
        joined(samples)


def test_labels_of_different_shapes_are_no_class_numbers() -> None:
    samples = opened({"x0": np.ones((2, 1)), "labels": [[1, 2], [3]]})
    with pytest.raises(DataError, match="labels have different shapes; give one class number"):
        samples.labels()
