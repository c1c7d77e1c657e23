"""Shards, counted apart and merged, give what one machine gives: statistics and samples, in bytes.

Here the workers are functions of this process; `tests/workers/` has those of Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from intact.calibrate.assign import required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.collect_on import collect_on
from intact.calibrate.shards import SampleMap
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch
from intact.data.chosen_samples import ChosenSamples
from intact.data.feeding import Feeding
from intact.data.images.steps import ImageSteps
from intact.data.preprocess import Preprocess
from intact.data.shards import FolderProbe
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import CalibrationError, DataError, UsageError
from intact.graph import Graph, normalize
from intact.plan import build_plan
from intact.targets import load_target
from tests.clusters import Inline
from tests.models import ModelBuilder, depthwise_net, residual_net

pytest.importorskip("ray")

STEPS = Preprocess((10, 20, 30), (0.5, 2, 1), ImageSteps(letterbox=(8, 8)))


@pytest.fixture(autouse=True)
def inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Inline.put(monkeypatch, tmp_path / "job")


def images(folder: Path, count: int, bad: Iterable[int] = ()) -> Path:
    random = np.random.default_rng(1)
    for number in range(count):
        path = folder / str(number % 3) / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number in bad:
            path.write_bytes(b"no image")
        else:
            pixels = random.integers(0, 256, (9 + number % 4, 8, 3), np.uint8)
            Image.fromarray(pixels).save(path)
    return folder


Everything = tuple[str, list[bytes], dict[str, bytes], Any, dict[str, tuple[int, ...]]]


def everything(
    observe: Callable[..., Statistics], graph: Graph, samples: Samples, **how: Any
) -> Everything:
    """Return all that a collection leaves."""
    first: Batch = {}
    chosen = ChosenSamples(whole=samples.takes_feeds)
    tensors = required_tensors(build_plan(graph, load_target("onnxruntime")))
    names = tuple(dict.fromkeys((*samples.specs, *tensors)))
    found = observe(graph, samples, names, first=first, chosen=chosen, threads=1, **how)
    rows = [array.tobytes() for batch, _ in chosen.batches(4) for array in batch.values()]
    starts = {name: array.tobytes() for name, array in first.items()}
    return found.hash(), rows, starts, samples.skipped, samples.usual_shapes


def same(graph: Graph, opened: Callable[[], Samples], **how: Any) -> Everything:
    """Check that a cluster leaves what one machine does; return it."""
    with SampleMap("local", 2) as cluster:
        sharded = everything(partial(collect_on, cluster), graph, opened(), **how)
    assert sharded == everything(collect, graph, opened(), **how)
    return sharded


@pytest.mark.parametrize("is_seen", [True, False])
def test_images_are_decoded_by_the_workers(
    is_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images(tmp_path / "images", 150, bad=[0, 1, 70, 149])
    monkeypatch.chdir(tmp_path)
    if not is_seen:
        monkeypatch.setattr(FolderProbe, "of", lambda *_: FolderProbe("0/003.png", 7))
    graph = normalize(residual_net())
    folder = Path("images")  # relative to the working directory, which workers do not share
    left = same(
        graph, lambda: open_samples(folder, graph, preprocess=STEPS, limit=140, skip_bad=True)
    )
    assert Inline.shards == 5
    assert len(left[1]) == 8  # batches of the samples that are kept
    assert len(left[3]) >= 2
    assert "0/000.png" in left[3][0]


def test_a_bad_image_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = normalize(residual_net())
    folder = images(tmp_path / "images", 12, bad=[5])
    monkeypatch.setattr(FolderProbe, "of", lambda *_: None)
    with (
        SampleMap("local", 2) as cluster,
        pytest.raises(DataError, match=r"images/2/005\.png: .*skip_bad"),
    ):
        everything(partial(collect_on, cluster), graph, open_samples(folder, graph))


def test_no_image_can_be_used(tmp_path: Path) -> None:
    graph = normalize(residual_net())
    folder = images(tmp_path / "images", 70, bad=range(70))
    with (
        SampleMap("local", 2) as cluster,
        pytest.raises(DataError, match="none of 70 images can be used; the first: 0/000"),
    ):
        everything(partial(collect_on, cluster), graph, open_samples(folder, graph, skip_bad=True))


def fixed_batch() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", [4, 3, 8, 8]), 3, 4))
    b.node("Softmax", x, axis=0, out="y")  # what a sample gives depends on the others
    b.output("y", [4, 4, 8, 8])
    return b.build()


@pytest.mark.parametrize("skip_bad", [True, False])
def test_models_of_a_fixed_batch_get_the_same_batches(tmp_path: Path, skip_bad: bool) -> None:
    graph = normalize(fixed_batch())
    folder = images(tmp_path / "images", 102, bad=[7] if skip_bad else [])
    same(graph, lambda: open_samples(folder, graph, skip_bad=skip_bad))
    assert Inline.shards > 2


ROWS = np.random.default_rng(0).normal(size=(203, 4, 8, 8)).astype(np.float32)


def generated() -> Iterator[dict[str, np.ndarray]]:
    yield from ({"image": part} for part in np.array_split(ROWS, 9))


@pytest.mark.parametrize("data", [ROWS, generated, [*ROWS]])
@pytest.mark.parametrize("max_memory", [None, 3 << 20])
def test_other_samples_are_read_here(data: Any, max_memory: int | None) -> None:
    graph = normalize(depthwise_net())
    same(graph, lambda: open_samples(data, graph, limit=190), max_memory=max_memory)


def masked_net() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["batch", 6, 4]), b.weight(4, 4))
    b.node("Relu", x, out="y")
    b.output("y", ["batch", 6, 4])
    return b.build()


def test_padding_is_left_out() -> None:
    graph = normalize(masked_net())
    random = np.random.default_rng(3)
    mask = (np.arange(6) < random.integers(1, 7, (50, 1))).astype(np.int64)
    data = {"x": random.normal(size=(50, 6, 4)).astype(np.float32), "mask": mask}
    whole = same(graph, lambda: open_samples({"x": data["x"]}, graph))
    masked = same(graph, lambda: open_samples(data, graph, mask="mask"))
    assert masked[0] != whole[0]


def test_inputs_without_a_batch() -> None:
    b = ModelBuilder()
    b.node("MatMul", b.input("x", [3, 4]), b.weight(4, 2), out="y")
    b.output("y", [3, 2])
    graph = normalize(b.build())
    rows = np.random.default_rng(5).normal(size=(40, 3, 4)).astype(np.float32)
    feeding = Feeding(no_batch=("x",))
    same(graph, lambda: open_samples({"x": rows}, graph, feeding=feeding))


def test_what_cannot_be_cut_into_shards() -> None:
    graph = normalize(depthwise_net())
    with SampleMap("local") as cluster:
        once = open_samples(generated(), graph)
        with pytest.raises(UsageError, match="data: an iterator cannot be cut into shards"):
            everything(partial(collect_on, cluster), graph, once)
        ordered = open_samples(ROWS, graph, feeding=Feeding(states={"logits": "image"}))
        with pytest.raises(UsageError, match="samples with states are a sequence"):
            everything(partial(collect_on, cluster), graph, ordered)


def test_statistics_of_other_tensors_are_not_merged() -> None:
    graph = normalize(depthwise_net())
    samples = open_samples(ROWS[:9], graph)
    found = collect(graph, samples, ["image", "logits"])
    twice = Statistics(graph.hash)
    twice.merge_bytes(found.to_bytes(compressed=False))
    assert twice.hash() == found.hash()
    with pytest.raises(CalibrationError, match="different tensors"):
        twice.merge_bytes(collect(graph, samples, ["image"]).to_bytes())
    with pytest.raises(CalibrationError, match="different models"):
        Statistics("other").merge_bytes(found.to_bytes())
    with pytest.raises(CalibrationError, match="cannot be read as statistics"):
        twice.merge_bytes(found.to_bytes()[:100])
