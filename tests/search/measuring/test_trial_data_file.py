"""Benches in folders: what is read measures as what was written; damage is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from intact.data.metric import Metric
from intact.errors import DataError, UsageError
from intact.plan import Overrides, TensorEnd
from intact.search.measuring.evaluator import Evaluator, float_score
from intact.search.measuring.objective import Objective
from intact.search.measuring.trial_data import TrialData
from intact.search.measuring.trial_data_file import load_trial_data, save_trial_data
from intact.search.space import Space
from intact.search.trial import Ask
from tests.models import ModelBuilder, residual_net
from tests.search.trial_data import some_samples, trial_data_of


def again(trial_data: TrialData, folder: Path) -> TrialData:
    save_trial_data(trial_data, folder)
    return load_trial_data(folder)


def assert_same(left: TrialData, right: TrialData, asks: list[Ask]) -> None:
    assert left.space.groups == right.space.groups
    assert left.space.overrides == right.space.overrides
    assert left.space.plan.target == right.space.plan.target
    assert left.statistics.hash() == right.statistics.hash()
    assert left.method == right.method
    assert left.samples_hash == right.samples_hash
    assert (left.error, left.is_probability) == (right.error, right.is_probability)
    assert (left.cache_bytes, left.session_bytes) == (right.cache_bytes, right.session_bytes)
    first, second = (Evaluator(each, threads=1) for each in (left, right))
    assert float_score(left) == float_score(right)
    for ask in asks:
        assert replace(first.measure(ask), seconds=0) == replace(second.measure(ask), seconds=0)
        confirmed = [each.confirm(ask.candidate) for each in (first, second)]
        assert replace(confirmed[0], seconds=0) == replace(confirmed[1], seconds=0)


def test_everything_comes_back(tmp_path: Path) -> None:
    trial_data = trial_data_of(target="integer-pow2", count=50, error=0.02, cache_bytes=1 << 20)
    space = trial_data.space
    asks = [Ask(space.uniform(bits), bar=bar) for bits in (8, 4) for bar in (None, 99.0)]
    assert_same(trial_data, again(trial_data, tmp_path), asks)


def test_samples_are_mapped_and_read_only(tmp_path: Path) -> None:
    trial_data = again(trial_data_of(count=20), tmp_path)
    array = next(iter(trial_data.chunks[0].feeds.values()))
    while array.base is not None and not isinstance(array, np.memmap):
        array = array.base
    assert isinstance(array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        next(iter(trial_data.chunks[0].feeds.values()))[0] = 0


def test_a_space_that_was_restricted_stays_so(tmp_path: Path) -> None:
    trial_data = trial_data_of(count=20)
    space = trial_data.space
    node = next(str(n.name) for n in space.plan.graph.nodes if n.op_type == "Conv")
    overrides = Overrides(bits={node: 6}, widths={TensorEnd.output(node): 7})
    own = Space.of(space.plan.graph, space.plan.target, overrides)
    own = own.restricted({own.open[0]: (8, 5)})
    loaded = again(replace(trial_data, space=own), tmp_path)
    assert loaded.space.groups == own.groups
    assert loaded.space.overrides == overrides


def share(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> float:
    """A metric in a module."""
    assert [len(box) for box in references["labels.boxes"]] == [
        int(label) + 1 for label in references["labels"]
    ]
    return float(np.mean(outputs["logits"].argmax(axis=1) == references["labels"]))


def test_a_metric_and_its_references_come_back(tmp_path: Path) -> None:
    data = some_samples(residual_net(), 20)
    boxes = [np.zeros((int(label) + 1, 4), np.float32) for label in data["labels"]]
    batch = {**data, "labels.boxes": boxes}
    objective = Objective.of("metric", Metric.of(share))
    trial_data = trial_data_of(data=[batch], objective=objective)
    assert_same(trial_data, again(trial_data, tmp_path), [Ask(trial_data.space.default)])


@pytest.mark.parametrize("name", ["same", "somewhere:same"])
def test_a_metric_that_no_module_has_is_refused(tmp_path: Path, name: str) -> None:
    metric = Metric(name, lambda *_: 1.0)
    trial_data = trial_data_of(objective=Objective.of("metric", metric), count=20)
    with pytest.raises(UsageError, match="other processes cannot import it"):
        save_trial_data(trial_data, tmp_path)


def test_an_output_without_samples_comes_back(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 4)
    b.output(b.mean(x, [2, 3], keepdims=0))
    b.output(b.mean(x, [0, 1, 2, 3], keepdims=0))
    data = {"image": np.random.default_rng(0).normal(size=(20, 3, 8, 8)).astype(np.float32)}
    trial_data = trial_data_of(b.build(), data=data, objective=Objective.of("sqnr"))
    assert_same(trial_data, again(trial_data, tmp_path), [Ask(trial_data.space.uniform(6))])


def test_names_may_be_anything(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("../a/b:c d", ["batch", 3, 8, 8]), 3, 4))
    data = {"../a/b:c d": np.ones((4, 3, 8, 8), np.float32)}
    trial_data = trial_data_of(b.build(), data=data)
    assert_same(trial_data, again(trial_data, tmp_path), [Ask(trial_data.space.default)])
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    save_trial_data(trial_data_of(count=20), folder)
    return folder


@pytest.mark.parametrize("name", ["trial_data.json", "model.onnx", "statistics.npz", "0.npy"])
def test_what_is_missing_or_cut_off_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read as trial data"):
        load_trial_data(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match="cannot be read as trial data"):
        load_trial_data(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", 99), ("labels", "../../etc/passwd"), ("counts", [1]), ("more", 1), ("sizes", "x")],
)
def test_a_document_that_is_wrong_is_refused(
    saved: Path, tmp_path: Path, field: str, value: object
) -> None:
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    document = msgspec.json.decode((tmp_path / "trial_data.json").read_bytes())
    document[field] = value
    (tmp_path / "trial_data.json").write_bytes(msgspec.json.encode(document))
    with pytest.raises(DataError, match="cannot be read as trial data"):
        load_trial_data(tmp_path)
