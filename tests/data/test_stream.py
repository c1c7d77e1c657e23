"""Samples arrive as the model takes them, whatever batches they come in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.data.batching import Batch
from intact.data.signature import check_batch
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import DataError
from intact.graph import Graph, normalize
from tests.models import ModelBuilder


def graph_of(*shapes: tuple[int | str, ...]) -> Graph:
    b = ModelBuilder()
    names = [b.input(f"x{index}", shape) for index, shape in enumerate(shapes)]
    b.node("Sum", *names, out="y")
    b.output("y")
    return normalize(b.build())


GRAPH = graph_of(("n", 3))


def rows(count: int) -> np.ndarray:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def read(samples: Samples, size: int) -> np.ndarray:
    return np.concatenate([batch["x0"][:count] for batch, count in samples.batches(size)])


@given(
    st.lists(st.integers(0, 150), min_size=1, max_size=6).filter(any),
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(1, 300)),
)
def test_batches_are_full_and_hold_every_sample_once(
    lengths: list[int], size: int, limit: int | None
) -> None:
    whole = rows(sum(lengths))
    cuts = np.cumsum(lengths)[:-1]
    source = [{"x0": part} for part in np.split(whole, cuts)]
    found = list(open_samples(source, GRAPH, limit=limit).batches(size))
    assert all(len(batch["x0"]) == size for batch, _ in found)
    assert all(count == size for _, count in found[:-1])
    real = np.concatenate([batch["x0"][:count] for batch, count in found])
    np.testing.assert_array_equal(real, whole[:limit])
    last, count = found[-1]
    assert (last["x0"][count:] == last["x0"][count - 1]).all()


def test_labels_are_those_of_the_pass_that_was_made() -> None:
    class Shuffled:
        """Gives the samples in another order each time, as training code does."""

        def __init__(self) -> None:
            self.random = np.random.default_rng(0)

        def __iter__(self) -> Iterator[Batch]:
            order = self.random.permutation(100)
            yield {"x0": rows(100)[order], "labels": order}

    samples = open_samples(Shuffled(), GRAPH)
    first = read(samples, 7)[:, 0] / 3
    np.testing.assert_array_equal(first, samples.labels())
    again = read(samples, 7)[:, 0] / 3
    assert not np.array_equal(first, again)
    np.testing.assert_array_equal(again, samples.labels())


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_labels_are_cut_like_the_samples(shape: tuple[int, ...]) -> None:
    data = {"x0": rows(5), "labels": np.arange(5).reshape(shape)}
    assert np.array_equal(open_samples(data, GRAPH, limit=3).labels(), [0, 1, 2])  # type: ignore[arg-type]
    assert open_samples({"x0": rows(5)}, GRAPH).labels() is None


def test_labels_for_some_samples_are_refused_by_number() -> None:
    labelled: Batch = {"x0": rows(2), "labels": np.zeros(2, np.int64)}
    for source, number in (([labelled, {"x0": rows(3)}], 2), ([{"x0": rows(3)}, labelled], 0)):
        samples = open_samples(source, GRAPH)
        assert len(read(samples, 2)) == 5  # calibration does not need them
        with pytest.raises(DataError, match=f"sample {number} has no label"):
            samples.labels()


def test_an_input_may_be_called_labels() -> None:
    b = ModelBuilder()
    b.node("Add", b.input("x0", ["n", 3]), b.input("labels", ["n", 3]), out="y")
    b.output("y")
    samples = open_samples({"x0": rows(2), "labels": rows(2)}, normalize(b.build()))
    assert next(iter(samples.batches(2)))[0].keys() == {"x0", "labels"}
    assert samples.labels() is None


def test_samples_of_different_shapes_come_one_by_one() -> None:
    graph = graph_of(("n", "length"))
    source = [{"x0": np.ones((2, length))} for length in (3, 5)]
    samples = open_samples(source, graph)
    assert [batch["x0"].shape for batch, _ in samples.batches(1)] == [(1, 3)] * 2 + [(1, 5)] * 2
    assert samples.labels() is None
    assert open_samples(source, graph).labels() is None


def test_samples_of_different_shapes_fill_the_batch_that_a_model_fixes() -> None:
    graph = graph_of((4, "length"))
    lengths = (3, 3, 5, 3)
    source = [{"x0": np.full((2, n), k, np.float32)} for k, n in enumerate(lengths)]
    source[2:2] = [{"x0": np.ones((0, 7), np.float32)}]
    found = list(open_samples(source, graph).batches(4))
    assert [(batch["x0"].shape, count) for batch, count in found] == [
        *(((4, 3), 4), ((4, 5), 2), ((4, 3), 2)),
    ]
    real = [row for batch, count in found for row in batch["x0"][:count, 0]]
    assert real == [0, 0, 1, 1, 2, 2, 3, 3]


def test_large_samples_become_floats_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(("n", 3, 512, 1024))
    seen: list[int] = []
    original = check_batch

    def watch(*arguments: Any, **options: Any) -> Batch:
        found = original(*arguments, **options)
        seen.append(sum(array.nbytes for array in found.values()))
        return found

    monkeypatch.setattr("intact.data.stream.check_batch", watch)
    source = {"x0": np.zeros((9, 3, 512, 1024), np.uint8)}
    assert sum(count for _, count in open_samples(source, graph).batches(1)) == 9
    assert max(seen) <= 16 << 20


def test_how_many_there_are_is_known_of_lists() -> None:
    source = [{"x0": rows(2)}, {"x0": rows(5)}]
    assert open_samples(source, GRAPH).count == 7
    assert open_samples(source, GRAPH, limit=3).count == 3
    assert open_samples(iter(source), GRAPH).count is None


def test_progress_is_told_after_every_batch() -> None:
    told: list[tuple[int, int | None]] = []
    opened = open_samples({"x0": rows(5)}, GRAPH)
    counting = Samples(
        opened.source,
        opened.specs,
        opened.reader,
        count=opened.count,
        progress=lambda done, total: told.append((done, total)),
    )
    read(counting, 2)
    assert told == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "of type NoneType holds no samples; give a dict of arrays .*, a DataLoader"),
        (3, "of type int holds no samples"),
        ([None], "item 0 is of type NoneType"),
        ({"x0": [[1, 2], [3]]}, "'x0' is not an array"),
        ([], "no samples"),
        ([{"x0": np.ones((0, 3))}], "no samples"),
    ],
)
def test_what_is_no_data_is_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(open_samples(source, GRAPH), 2)


def test_an_array_is_enough_for_one_input() -> None:
    np.testing.assert_array_equal(read(open_samples(rows(4), GRAPH), 3), rows(4))
    with pytest.raises(DataError, match="has 2 inputs"):
        open_samples(rows(4), graph_of(("n", 3), ("n", 3)))


@pytest.mark.parametrize(("batch", "sizes"), [("batch", [4, 3]), (4, [4, 4])])
def test_the_first_samples_come_without_padding_where_the_model_leaves_them_so(
    batch: str | int, sizes: list[int]
) -> None:
    b = ModelBuilder()
    b.node("Relu", b.input("x", [batch, 2]), out="y")
    b.output("y", [batch, 2])
    told: list[int] = []
    samples = open_samples(np.zeros((20, 2), np.float32), normalize(b.build()), limit=9)
    samples = replace(samples, progress=lambda done, _: told.append(done))
    few = samples.first(7)
    assert (few.limit, few.count, few.batch_size(16)) == (7, 7, 7 if batch == "batch" else 4)
    found = [(len(feeds["x"]), count) for feeds, count in few.real_batches(4)]
    assert found == list(zip(sizes, [4, 3], strict=True))
    assert told == []
    assert samples.first(50).limit == 9
