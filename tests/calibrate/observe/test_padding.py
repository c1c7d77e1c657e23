"""With a mask, statistics are those of the real positions alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.observe.observer import Observer
from intact.calibrate.observe.padding import Padding, SequenceAxes
from intact.calibrate.statistics import TensorStatistics
from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import DataError
from intact.graph import Graph, normalize
from intact.numerics.histogram import accumulate, new_workspace
from intact.numerics.metrics import sqnr_db
from intact.targets import Target
from tests.calibrate.scales.test_masked import (
    ALL_INTEGER,
    LENGTH,
    WIDTH,
    attention_block,
    quality,
    samples,
)
from tests.models import ModelBuilder, run_model
from tests.plans import calibrate, own_target, planned

COUNT = 37
RANDOM = np.random.default_rng(4)
TOKENS = RANDOM.normal(size=(COUNT, 6, 4)).astype(np.float32)
LENGTHS = RANDOM.integers(1, 7, COUNT)
REAL = np.arange(6) < LENGTHS[:, None]
REAL[3] = False  # a sample of nothing
REAL[5] = [True, False, True, True, False, False]  # a hole
REAL[6] = True


def counted(rows: list[np.ndarray]) -> TensorStatistics:
    """The statistics of samples that hold just these values."""
    found = TensorStatistics()
    for row in rows:
        flat = np.ascontiguousarray(row, np.float32).reshape(1, -1)
        found.add(accumulate(flat, found.counts, new_workspace()))
    return found


def assert_same(found: TensorStatistics, expected: TensorStatistics) -> None:
    np.testing.assert_array_equal(found.counts, expected.counts)
    for name in ("zeros", "samples", "minimum", "maximum", "total", "squares", "minima", "maxima"):
        assert getattr(found, name) == getattr(expected, name), name


def tokens_net(length: int | str = 6, batch: int | str = "n") -> Graph:
    """Tensors with the samples and the positions on several axes."""
    b = ModelBuilder()
    x = b.input("tokens", [batch, length, 4])
    b.node("Neg", x, out="negative")
    b.node("Transpose", "negative", perm=[2, 1, 0], out="turned")
    b.node("Reshape", "negative", b.ints(-1, 4), out="flat")
    b.node("ReduceMean", "negative", axes=[1, 2], keepdims=0, out="pooled")
    b.node("MatMul", "flat", b.weight(4, 5), out="product")
    for name in ("turned", "pooled", "product"):
        b.output(name)
    return normalize(b.build())


NAMES = ("tokens", "negative", "turned", "flat", "pooled")


@pytest.mark.parametrize(("length", "batch"), [(6, "n"), (6, 1), (6, 4), ("length", "n")])
def test_only_real_positions_are_counted(length: int | str, batch: int | str) -> None:
    graph = tokens_net(length, batch)
    if length == 6:
        source = [{"tokens": TOKENS, "real": REAL}]
        rows, real = list(TOKENS), list(REAL)
    else:  # every sample of a length of its own, some padded nonetheless
        cuts = [max(int(n) + k % 2, 1) for k, n in enumerate(np.minimum(LENGTHS, 5))]
        rows = [t[:n] for t, n in zip(TOKENS, cuts, strict=True)]
        real = [r[:n] for r, n in zip(REAL, cuts, strict=True)]
        source = [{"tokens": t[None], "real": r[None]} for t, r in zip(rows, real, strict=True)]
    names = [n for n in NAMES if n != "pooled" and (n != "turned" or batch == "n")]
    found = collect(graph, open_samples(source, graph, mask="real"), names, threads=2)
    kept = [row[r] for row, r in zip(rows, real, strict=True) if r.any()]
    negative = [-row for row in kept]
    assert_same(found["tokens"], counted(kept))
    assert_same(found["negative"], counted(negative))
    assert_same(found["flat"], counted(negative))
    if "turned" in names:
        assert_same(found["turned"], counted([row.T for row in negative]))


def test_a_second_pass_counts_real_positions_only() -> None:
    graph = tokens_net(6, "n")
    source = [{"tokens": TOKENS, "real": REAL}]
    found = collect(graph, open_samples(source, graph, mask="real"), ["tokens"], bins=64)
    kept = np.abs(TOKENS[REAL]).reshape(-1)
    kept = kept[(kept > 0) & np.isfinite(kept)]
    bins = np.floor(kept / (kept.max() / np.float32(63))).astype(int)
    magnitudes = found["tokens"].magnitudes
    assert magnitudes is not None
    assert magnitudes.tolist() == np.bincount(bins, minlength=64).tolist()
    assert kept.size < np.count_nonzero(TOKENS)


def test_what_has_no_positions_is_counted_whole() -> None:
    graph = tokens_net()
    source = {"tokens": TOKENS, "real": REAL}
    found = collect(graph, open_samples(source, graph, mask="real"), ["pooled"], threads=1)
    assert found["pooled"].counts.sum() == found["pooled"].samples == REAL.any(1).sum()


def test_order_batches_and_threads_leave_no_trace() -> None:
    graph = tokens_net()
    order = np.random.default_rng(1).permutation(COUNT)

    def hashed(rows: np.ndarray, threads: int, *cuts: int) -> str:
        pairs = zip(np.split(TOKENS[rows], cuts), np.split(REAL[rows], cuts), strict=True)
        source = [{"tokens": tokens, "real": real} for tokens, real in pairs]
        opened = open_samples(source, graph, mask="real")
        return collect(graph, opened, NAMES, threads=threads).hash()

    reference = hashed(np.arange(COUNT), 1)
    assert hashed(order, 3, 5, 30) == reference
    assert hashed(order[:-1], 1) != reference


def test_a_mask_of_ones_changes_nothing() -> None:
    graph = tokens_net()
    plain = collect(graph, open_samples({"tokens": TOKENS}, graph), NAMES, threads=1)
    source = {"tokens": TOKENS, "real": np.ones_like(REAL)}
    masked = collect(graph, open_samples(source, graph, mask="real"), NAMES, threads=1)
    assert plain.to_bytes() == masked.to_bytes()


@pytest.mark.parametrize("kind", ["product", "where"])
def test_scores_are_left_out_where_query_or_key_is_padded(kind: str) -> None:
    model = attention_block(kind)
    graph = normalize(model)
    feeds = samples(kind)
    real = feeds["mask"] != 0
    names = ["raw", "sum", "probabilities", "y"]
    opened = open_samples(feeds, graph, mask="mask")
    found = collect(graph, opened, names, threads=1)
    arrays = run_model(model, feeds, names)
    heads = arrays["sum"].shape[1]
    squares = int((real.sum(1) ** 2).sum()) * heads
    constants = int((~real).sum()) * LENGTH * heads
    assert found["probabilities"].counts.sum() == squares
    assert found["raw"].counts.sum() == squares
    assert found["sum"].counts.sum() == squares + constants  # assign has to know of them
    inside = (real[:, None, :, None] & real[:, None, None, :]).repeat(heads, 1)
    for name in ("raw", "probabilities"):
        assert found[name].minimum == pytest.approx(arrays[name][inside].min(), rel=1e-3)
        assert found[name].maximum == pytest.approx(arrays[name][inside].max(), rel=1e-3)
    assert found["y"].counts.sum() == real.sum() * WIDTH
    assert found["y"].maximum == pytest.approx(arrays["y"][real].max(), rel=1e-3)
    assert LENGTH != WIDTH


@pytest.mark.parametrize("kind", ["product", "where", "subtracted"])
@pytest.mark.parametrize("rules_of", ["all integer", "integer-pow2"])
def test_what_masks_still_masks(tmp_path: Path, kind: str, rules_of: str) -> None:
    target: Target | str = rules_of
    if rules_of == "all integer":
        target = own_target(tmp_path, ALL_INTEGER)
    feeds, plan = samples(kind), planned(attention_block(kind), target)
    plain = quality(calibrate(plan, feeds), feeds)
    opened = open_samples(feeds, plan.graph, mask="mask")
    statistics = collect(plan.graph, opened, required_tensors(plan), threads=1)
    masked = assign(plan, statistics, Method.of(plan.target, "minmax", "minmax"))
    real = feeds["mask"] != 0
    expected = FloatModel(plan.graph, threads=1).run(feeds)["y"][real]
    found = Simulator(masked, threads=1).run(feeds)[0]["y"][real]
    assert sqnr_db(expected, found) > plain - 2


def rules(
    graph: Graph, mask: str, names: Mapping[str, tuple[int, ...]], length: int
) -> dict[str, SequenceAxes]:
    observer = Observer(graph, list(names))
    padding = Padding(graph, list(names), mask, observer.layout)
    return {name: padding.axes(name, shape, length) for name, shape in names.items()}


def width_as_length(length: int | str) -> onnx.ModelProto:
    """A model whose width is 4, with sequences of as many."""
    b = ModelBuilder()
    x = b.input("x", ["n", length, 4])
    b.input("mask", ["n", length], TensorProto.INT64)
    b.node("Cast", "mask", to=TensorProto.FLOAT, out="real")
    y = b.node("MatMul", b.node("Mul", x, b.node("Unsqueeze", "real", b.ints(2))), b.weight(4, 4))
    b.node("Relu", y, out="hidden")
    b.node("ReduceMean", "hidden", axes=[1], keepdims=0, out="pooled")
    b.node("MatMul", "hidden", b.weight(4, 8), out="wide")
    b.output("pooled")
    b.output("wide")
    return b.build()


def test_in_doubt_nothing_real_is_lost() -> None:
    names = {"hidden": (4, 4), "pooled": (4,), "wide": (4, 8)}
    found = rules(normalize(width_as_length(4)), "mask", names, 4)
    assert found["hidden"] == SequenceAxes((0, 1), is_padded_once=False)
    assert found["pooled"] == found["wide"] == SequenceAxes(())
    graph = normalize(width_as_length(4))
    data = RANDOM.normal(size=(9, 4, 4)).astype(np.float32)
    real = np.array([[1, 1, 0, 0]] * 9)
    source = {"x": data, "mask": real}
    observed = collect(graph, open_samples(source, graph, mask="mask"), list(names), threads=1)
    assert observed["hidden"].counts.sum() == 9 * (16 - 4)


def test_names_of_free_dimensions_leave_no_doubt() -> None:
    names = {"hidden": (4, 4), "pooled": (4,), "wide": (4, 8)}
    found = rules(normalize(width_as_length("length")), "mask", names, 4)
    assert found["hidden"] == found["wide"] == SequenceAxes((0,))
    assert found["pooled"] == SequenceAxes((), is_padded_once=False)


def test_scores_have_both_axes_where_only_one_is_named() -> None:
    b = ModelBuilder()
    x = b.input("x", ["n", "length", 4])
    keys = b.node("Reshape", b.node("Neg", x), b.ints(0, -1, 4), out="keys")
    scores = b.node("MatMul", x, b.node("Transpose", keys, perm=[0, 2, 1]), out="scores")
    b.node("MatMul", b.node("Softmax", scores, out="probabilities"), x, out="y")
    b.output("y")
    names = {"scores": (4, 4), "probabilities": (4, 4), "keys": (4, 4), "y": (4, 4)}
    found = rules(normalize(b.build()), "real", names, 4)
    assert found["scores"] == found["probabilities"] == SequenceAxes((0, 1))
    assert found["keys"] == found["y"] == SequenceAxes((0,))


def test_nothing_real_at_all_is_an_error() -> None:
    graph = tokens_net()
    source = {"tokens": TOKENS, "real": np.zeros_like(REAL)}
    with pytest.raises(DataError, match="'real' is 0 everywhere"):
        collect(graph, open_samples(source, graph, mask="real"), NAMES, threads=2)
