"""Samples come as training code has them: pairs, datasets, loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from intact.data.feeding import Feeding
from intact.data.objects import KINDS
from intact.data.sources import open_samples
from intact.errors import DataError, UsageError
from intact.graph import normalize
from tests.data.objects import (
    BATCHES,
    GRAPH,
    LABELLED,
    PAIRS,
    TWO,
    UNLABELLED,
    Dataset,
    Loader,
    Model,
    Stream,
    Table,
    Tensor,
    X,
    Y,
    halved,
    read,
)
from tests.models import ModelBuilder


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
