"""What functions of the user's give: several inputs, odd batches, odd arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import DataError
from intact.graph import Graph, normalize
from tests.models import ModelBuilder

NUMBERS = itertools.count()

Opened = Callable[..., Samples]


def two_inputs() -> Graph:
    b = ModelBuilder()
    b.node("Sum", b.input("a", ["n", 3]), b.input("b", ["n", 3]), out="y")
    b.output("y")
    return normalize(b.build())


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A function that opens ``f`` of a module of this text."""

    def write(text: str, **options: Any) -> Samples:
        name = f"samples_of_a_user_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(f"import numpy as np\n{text}")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        return open_samples(f"{name}:f", two_inputs(), **options)

    return write


def read(samples: Samples) -> np.ndarray:
    """Input ``a`` and input ``b`` of every sample, side by side."""
    found = [
        np.concatenate([batch["a"][:count], batch["b"][:count]], axis=1)
        for batch, count in list(samples.batches(2))  # all read before the first is looked at
    ]
    return np.concatenate(found)


def test_several_inputs_in_ragged_batches(opened: Opened) -> None:
    samples = opened("""
def f():
    for first, last in ((0, 1), (1, 1), (1, 6), (6, 7)):
        rows = np.arange(first, last)[:, None] * np.ones(3)
        yield {"b": -rows, "a": rows.astype(np.uint8), "labels": rows[:, 0].astype(int)}
""")
    expected = np.arange(7)[:, None] * np.array([1, 1, 1, -1, -1, -1])
    np.testing.assert_array_equal(read(samples), expected)
    np.testing.assert_array_equal(samples.labels(), np.arange(7))
    np.testing.assert_array_equal(read(samples), expected)  # the function is called again


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return {'a': np.ones((2, 3)), 'b': np.ones((2, 3))}",
        "def f(): return [{'a': np.ones((1, 3)), 'b': np.ones((1, 3))}] * 2",
        "def f(): return iter([{'a': [[1, 1, 1]] * 2, 'b': ((1, 1, 1), (1, 1, 1))}])",
        "f = type('Loader', (), {'__iter__': lambda s: iter([{'a': np.ones((2, 3), np.float16),"
        " 'b': np.ones((2, 3), bool)}])})",
    ],
    ids=["a dict", "a list", "nested lists", "a class"],
)
def test_whatever_gives_batches_will_do(opened: Opened, text: str) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(read(opened(text)), np.ones((2, 6)))


def test_arrays_may_be_filled_again(opened: Opened) -> None:
    samples = opened("""
def f():
    a, b, labels = np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32), np.zeros(1, int)
    for k in range(5):
        a[:], b[:], labels[:] = k, -k, k
        yield {"a": a, "b": b, "labels": labels}
    a[:], b[:], labels[:] = 99, 99, 99
""")
    expected = np.arange(5)[:, None] * np.array([1, 1, 1, -1, -1, -1])
    np.testing.assert_array_equal(read(samples), expected)
    np.testing.assert_array_equal(samples.labels(), np.arange(5))


def test_an_endless_function_is_read_as_far_as_it_is_asked(opened: Opened) -> None:
    samples = opened(
        """
def f():
    for k in range(10**9):
        assert k < 4, "read on"
        yield {"a": np.full((3, 3), k), "b": np.full((3, 3), k)}
""",
        limit=10,
    )
    assert len(read(samples)) == 10


ONES = "np.ones((2, 3))"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{{'a': {ONES}}}", "no array for input 'b'"),
        (f"{{'a': {ONES}, 'b': {ONES}, 'c': {ONES}}}", "no input 'c'"),
        (f"{{'a': {ONES}, 'b': np.ones((5, 3))}}", "numbers of samples from 2 on.*'b': 5"),
        (f"{{'a': {ONES}, 'b': {ONES} * np.nan}}", "'b': sample 2 holds NaN or infinity"),
        (f"{{'a': {ONES}, 'b': np.ones((2, 4))}}", r"'b': samples of shape \[N, 4\]"),
        ("{'a': np.float32(1), 'b': np.float32(1)}", r"samples of shape \[\]"),
        (f"{{'a': {ONES}, 'b': np.array([['x'] * 3] * 2)}}", "'b': dtype <U1"),
        (f"{{'a': {ONES}, 'b': np.array([[None] * 3] * 2)}}", "'b': dtype object"),
        (f"{{'a': {ONES}, 'b': {ONES} * 1j}}", "'b': dtype complex128"),
        (f"{{'a': {ONES}, 'b': np.ma.masked_array({ONES}, {ONES})}}", "'b' is a masked array"),
        (f"{{'a': {ONES}, 'b': Unwilling()}}", "'b' is not an array.*requires grad"),
        (f"Broken(a={ONES}, b={ONES})", "cannot be read .KeyError: 'gone'"),
        ("{}", "no array for input 'a'"),
        ("None", "item 1 is of type NoneType"),
        (f"({ONES},) * 4", "item 1 has 4 parts, the model has 2 inputs .'a', 'b'."),
    ],
)
def test_a_batch_that_does_not_fit_is_named(opened: Opened, body: str, message: str) -> None:
    samples = opened(f"""
class Unwilling:
    def __array__(self, *_, **__): raise RuntimeError("requires grad")
class Broken(dict):
    def __getitem__(self, name): raise KeyError("gone")
def f():
    yield {{"a": {ONES}, "b": {ONES}}}
    yield {body}
""")
    with pytest.raises(DataError, match=message):
        read(samples)


def test_an_iterable_that_refills_its_arrays_is_read_right() -> None:
    class Loader:
        def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
            buffer = np.zeros((3, 3), np.float32)
            for k in range(4):
                buffer[:] = k
                yield {"a": buffer, "b": buffer}

    found = read(open_samples(Loader(), two_inputs()))
    np.testing.assert_array_equal(found[:, 0], np.repeat(np.arange(4), 3))
