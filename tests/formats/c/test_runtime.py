"""Compiling and running: what goes wrong is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from intact.errors import DataError, ExportError, MissingExtraError
from intact.formats.c.run import CRuntime
from intact.formats.c.write import write_c
from intact.program import operations as ops
from tests.formats.c import cases
from tests.program.one_step import int8, one_step

PAIR = one_step(
    ops.Elementwise(ops.Binary.MAXIMUM),
    cases.DOUBLE,
    [((None, 2, 3), int8(0.1)), ((None, 2, 3), int8(0.1))],
    [((None, 2, 3), int8(0.1))],
)
FOLDED = one_step(ops.Reshape((-1, 2)), cases.DOUBLE, [((3, 4), int8(1))], [((6, 2), int8(1))])


@pytest.fixture(scope="module")
def pair() -> CRuntime:
    return CRuntime(write_c(PAIR))


def test_batches_of_any_size(pair: CRuntime) -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 7):
        first, second = rng.integers(-128, 128, (2, count, 2, 3)).astype(np.int8)
        found = pair.run({"in0": first, "in1": second})["out0"]
        assert np.array_equal(found, np.maximum(first, second))
        assert found.shape == (count, 2, 3)


def test_fixed_batches_are_parts_of_larger_ones() -> None:
    codes = np.arange(24, dtype=np.int8).reshape(6, 4)
    with CRuntime(write_c(FOLDED)) as runtime:
        assert np.array_equal(runtime.run({"in0": codes})["out0"], codes.reshape(12, 2))
        with pytest.raises(DataError, match="shape"):
            runtime.run({"in0": codes[:4]})


@pytest.mark.parametrize(
    ("feeds", "reason"),
    [
        ({"in0": np.zeros((1, 2, 3), np.int8)}, "'in1' is missing"),
        ({"in0": np.zeros((1, 2, 3), np.int8), "in1": np.zeros((1, 2, 3))}, "float64"),
        ({"in0": np.zeros((1, 2, 3), np.int8), "in1": np.zeros((1, 3, 2), np.int8)}, "shape"),
        ({"in0": np.zeros((1, 2, 3), np.int8), "in1": np.zeros((2, 2, 3), np.int8)}, "samples"),
    ],
)
def test_wrong_feeds(pair: CRuntime, feeds: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        pair.run(feeds)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"no C compiler \(cc, gcc, clang\)"):
        CRuntime(write_c(PAIR))
    with pytest.raises(MissingExtraError, match="'no-such-cc' cannot be run"):
        CRuntime(write_c(PAIR), compiler="no-such-cc")


def test_what_does_not_compile_or_crashes() -> None:
    written = write_c(PAIR)
    source = written.files["model.c"]
    broken = replace(written, files={**written.files, "model.c": f"{source} oops"})
    with pytest.raises(ExportError, match="compiler rejects"):
        CRuntime(broken)
    crashing = source.replace("{\n    /*", "{\n    *(volatile int *)4 = 1;\n    /*")
    assert crashing != source
    with CRuntime(replace(written, files={**written.files, "model.c": crashing})) as runtime:
        zeros = np.zeros((1, 2, 3), np.int8)
        with pytest.raises(ExportError, match="failed with status"):
            runtime.run({"in0": zeros, "in1": zeros})


def test_the_folder_goes_with_the_runtime() -> None:
    with CRuntime(write_c(PAIR)) as runtime:
        folder = Path(runtime._folder.name)
        assert folder.is_dir()
    assert not folder.exists()
