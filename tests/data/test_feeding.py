"""Samples become feeds as the runtime takes them; the states of one are inputs of the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact.data.feeding import Carried, Feeding, arrange_feeds, takes_feeds
from intact.data.signature import InputSpec, input_specs, without_batch_axis
from intact.data.sources import open_samples
from intact.errors import DataError, UsageError
from intact.graph import Graph, normalize
from tests.models import ModelBuilder
from tests.recurrent import recurrent_graph

FLOAT = np.dtype(np.float32)
SPECS = {
    "x": InputSpec(FLOAT, (1, 3)),
    "state": InputSpec(FLOAT, (2, None, 4)),
    "rate": InputSpec(np.dtype(np.int64), ()),
}


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("x", "state", "rate", "count"),
    [
        ((1, 3), (2, 1, 4), (), 1),  # as the runtime takes it
        ((5, 1, 3), (5, 2, 1, 4), (5,), 5),  # such feeds, stacked
        ((5, 3), (5, 2, 4), (5,), 5),  # without the batch axes
        ((5, 3), (2, 1, 4), (), 5),  # the same state and rate for all
    ],
)
def test_arrays_give_feeds_of_the_models_shapes(
    x: tuple[int, ...], state: tuple[int, ...], rate: tuple[int, ...], count: int
) -> None:
    arrays = {"x": zeros(*x), "state": zeros(*state), "rate": zeros(*rate)}
    feeds = list(arrange_feeds("data", SPECS, arrays, Feeding()))
    assert len(feeds) == count
    for feed in feeds:
        assert {name: array.shape for name, array in feed.items()} == {
            "x": (1, 3),
            "state": (2, 1, 4),
            "rate": (),
        }


def test_arrays_of_a_graph_are_one_feed() -> None:
    """Atoms and bonds have a first axis each, and no axis of samples."""
    atoms, bonds = InputSpec(FLOAT, (None,)), InputSpec(np.dtype(np.int64), (2, None))
    specs = {"atoms": atoms, "lengths": atoms, "bonds": bonds}
    arrays = {"atoms": zeros(5), "lengths": zeros(12), "bonds": np.zeros((2, 12), np.int64)}
    (feed,) = arrange_feeds("data", specs, arrays, Feeding())
    assert {name: array.shape for name, array in feed.items()} == {
        "atoms": (5,),
        "lengths": (12,),
        "bonds": (2, 12),
    }


def test_an_input_without_batch_is_the_same_for_all_or_one_a_sample() -> None:
    specs = {"x": InputSpec(FLOAT, (None, 3)), "table": InputSpec(FLOAT, (None, 2))}
    unbatched = Feeding(no_batch=("table",))
    feeds = list(arrange_feeds("data", specs, {"x": zeros(6, 3), "table": zeros(4, 2)}, unbatched))
    assert [feed["table"].shape for feed in feeds] == [(4, 2)] * 6
    feeds = list(
        arrange_feeds("data", specs, {"x": zeros(6, 3), "table": zeros(6, 4, 2)}, unbatched)
    )
    assert [feed["table"].shape for feed in feeds] == [(4, 2)] * 6


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (5, 3), "state": (4, 2, 4), "rate": ()}, "different numbers of samples"),
        ({"x": (5, 2), "state": (5, 2, 4), "rate": ()}, r"'x' has shape \[5, 2\].*give \[N, 1, 3"),
        ({"x": (5, 3), "rate": ()}, "no array for input 'state'"),
        ({"x": (5, 3), "stat": (5, 2, 4), "rate": ()}, "no input 'stat'.*state"),
    ],
)
def test_what_gives_no_feeds_is_refused(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrange_feeds(
            "data", SPECS, {name: zeros(*shape) for name, shape in shapes.items()}, Feeding()
        )


def test_which_models_take_feeds() -> None:
    images = {"x": InputSpec(FLOAT, (None, 3)), "y": InputSpec(FLOAT, (1, 2))}
    assert takes_feeds(SPECS, Feeding())
    rows = {"x": InputSpec(FLOAT, (1, 3)), "state": InputSpec(FLOAT, (2, 1, 4))}
    assert takes_feeds(rows, Feeding())  # axes 0 of different lengths
    assert not takes_feeds(images, Feeding())
    assert takes_feeds(images, Feeding(no_batch=("y",)))
    assert takes_feeds(images, Feeding(states={"out": "y"}))


def test_stacked_feeds_of_other_models_lose_their_batch_axis() -> None:
    specs = {"x": InputSpec(FLOAT, (1, 3)), "y": InputSpec(FLOAT, (None, 2))}
    found = without_batch_axis(specs, {"x": zeros(5, 1, 3), "y": zeros(5, 2)})
    assert (found["x"].shape, found["y"].shape) == ((5, 3), (5, 2))


def test_stacked_feeds_of_other_models_are_read() -> None:
    b = ModelBuilder()
    b.node("Relu", b.input("x", [1, 3]), out="y")
    b.output("y")
    samples = open_samples({"x": zeros(5, 1, 3)}, normalize(b.build()))
    assert [feed["x"].shape for feed, _ in samples.batches(1)] == [(1, 3)] * 5


def test_states_follow_from_the_sample_before() -> None:
    graph = Graph(recurrent_graph())
    specs = input_specs(graph)
    seen: list[float] = []

    def step(feed: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        seen.append(float(feed["state"].max()))
        return {"next": feed["state"] + 1}

    x = np.ones((3, specs["x"].shape[1] or 1), np.float32)
    data: dict[str, Any] = {"x": x, "rate": np.int64(1)}
    states = Feeding(states={"next": "state"})
    samples = open_samples(data, graph, feeding=states, step=step)
    feeds = [feed for feed, _ in samples.batches(1)]
    assert [float(feed["state"].max()) for feed in feeds] == [0, 1, 2]
    assert samples.count == 3
    start: dict[str, Any] = {**data, "state": np.full((2, 1, 3), 7, np.float32)}
    samples = open_samples(start, graph, feeding=states, step=step)
    assert [float(feed["state"].max()) for feed, _ in samples.batches(1)] == [7, 8, 9]


def test_names_and_shapes_of_states_are_checked() -> None:
    graph = Graph(recurrent_graph())
    with pytest.raises(UsageError, match=r"no output 'nxt'.*next"):
        Feeding(states={"nxt": "state"}).of_graph(graph)
    with pytest.raises(UsageError, match=r"no input 'stat'.*state"):
        Feeding(no_batch=("stat",)).of_graph(graph)
    with pytest.raises(UsageError, match="two outputs to the input 'state'"):
        Feeding(states={"next": "state", "y": "state"}).of_graph(graph)
    carried = Carried({"y": "state"}, input_specs(graph))
    with pytest.raises(DataError, match=r"y=state: the output is float32 \[1, 3\]"):
        carried.keep({"y": zeros(1, 3)})
