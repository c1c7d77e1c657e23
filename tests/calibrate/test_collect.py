from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from intact.calibrate.assign import required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.observe.observer import Observer
from intact.calibrate.statistics import Statistics
from intact.data.sources import open_samples
from intact.errors import CalibrationError, ModelError
from intact.graph import Graph, normalize
from intact.plan import build_plan
from intact.targets import load_target
from tests.images import Images
from tests.models import (
    ModelBuilder,
    random_inputs,
    residual_net,
    run_model,
    transformer_block,
)


def needed(graph: Graph) -> tuple[str, ...]:
    return required_tensors(build_plan(graph, load_target("onnxruntime")))


def collected(graph: Graph, batches: list[np.ndarray], name: str, threads: int = 2) -> Statistics:
    data = [{name: batch} for batch in batches]
    return collect(graph, open_samples(data, graph), needed(graph), threads=threads)


def in_sizes(array: np.ndarray, *sizes: int) -> list[np.ndarray]:
    return np.split(array, np.cumsum(sizes))


def assert_any_order_counts_alike(graph: Graph, samples: np.ndarray) -> None:
    """A prime number of samples: the last internal batch is ragged."""
    (name,) = (str(value.name) for value in graph.inputs)
    shuffled = samples[np.random.default_rng(7).permutation(len(samples))]
    reference = collected(graph, [samples], name, threads=2).hash()
    assert collected(graph, in_sizes(samples, 1, 50, 3), name, threads=1).hash() == reference
    assert collected(graph, in_sizes(shuffled, 64, 30), name, threads=3).hash() == reference
    other = collected(graph, [samples[:-1]], name).hash()
    assert other != reference  # one sample less is another result
    first = collected(graph, [samples[:33]], name)
    first.merge(collected(graph, [samples[33:]], name))
    assert first.hash() == reference


@pytest.mark.parametrize("build", [residual_net, transformer_block])
def test_statistics_do_not_depend_on_order_batching_or_threads(
    build: Callable[[], onnx.ModelProto],
) -> None:
    ((_, samples),) = random_inputs(build(), batch=101).items()
    assert_any_order_counts_alike(normalize(build()), samples)


@pytest.mark.parametrize("model", ["resnet20", "vit"])
def test_statistics_of_whole_models_do_neither(model: str, zoo: Path, cifar_calib: Images) -> None:
    assert_any_order_counts_alike(normalize(zoo / f"{model}.onnx"), cifar_calib.image[:101])


@pytest.mark.parametrize("build", [residual_net, transformer_block])
def test_what_is_counted_is_what_the_runtime_computes(
    build: Callable[[], onnx.ModelProto],
) -> None:
    model = build()
    graph = normalize(model)
    name = graph.inputs[0].name or ""
    shape = [n for n in list(graph.inputs[0].shape or ())[1:] if isinstance(n, int)]
    data = np.random.default_rng(0).normal(size=(45, *shape)).astype(np.float32)
    found = collected(graph, [data], name)
    names = [tensor for tensor in found.tensors if tensor != name]
    arrays = run_model(onnx.load_from_string(_bytes(graph)), {name: data}, names) | {name: data}
    for tensor, statistics in found.tensors.items():
        assert statistics.counts.sum() == arrays[tensor].size
        assert statistics.samples == 45
        assert statistics.minimum == pytest.approx(arrays[tensor].min(), rel=1e-4, abs=1e-6)
        assert statistics.maximum == pytest.approx(arrays[tensor].max(), rel=1e-4, abs=1e-6)


def _bytes(graph: Graph) -> bytes:
    import onnx_ir as ir

    return bytes(ir.to_proto(graph.model).SerializeToString())


def transposed_batch() -> onnx.ModelProto:
    """A model in which a tensor holds the samples along axis 1."""
    b = ModelBuilder()
    turned = b.node("Transpose", b.input("x", ["batch", 3, 4]), perm=[1, 0, 2], out="turned")
    b.node("MatMul", turned, b.weight(4, 2), out="y")
    b.output("y", [3, "batch", 2])
    return b.build()


def test_samples_along_another_axis_differ_from_padding() -> None:
    graph = normalize(transposed_batch())
    data = np.random.default_rng(1).normal(size=(37, 3, 4)).astype(np.float32)
    samples = open_samples({"x": data}, graph)
    found = collect(graph, samples, ["x", "turned", "y"], threads=2)
    assert found["turned"].counts.sum() == data.size
    assert np.array_equal(found["turned"].counts, found["x"].counts)
    assert found["turned"].samples == 37
    lowest = data.min((1, 2)).astype(np.float64)
    assert found["turned"].minima.value() == pytest.approx(lowest.sum(), rel=1e-12)


def test_memory_is_bounded_by_some_batches_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = normalize(residual_net())
    seen: list[int] = []
    original = Observer.add

    def watch(self: Observer, batch: dict[str, np.ndarray], count: int) -> object:
        found = original(self, batch, count)
        seen.append(0 if found is None else found.values.size)
        return found

    monkeypatch.setattr(Observer, "add", watch)
    read = 0

    def batches() -> object:
        nonlocal read
        for _ in range(40):
            read += 32
            assert read <= 32 * (len(seen) + 6), "samples are read ahead of the runtime"
            yield {"image": np.zeros((32, 3, 8, 8), np.float32)}

    class Source:
        def __iter__(self) -> object:
            return batches()

    collect(graph, open_samples(Source(), graph), needed(graph), threads=2)
    assert len(set(seen) - {0}) == 1
    assert 4 * max(seen) <= 32 << 20


def test_progress_ends_at_the_number_of_samples() -> None:
    graph = normalize(residual_net())
    reported: list[tuple[int, int | None]] = []
    samples = open_samples({"image": np.zeros((70, 3, 8, 8), np.float32)}, graph)
    collect(graph, samples, needed(graph), progress=lambda *at: reported.append(at))
    assert reported[-1] == (70, 70)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)


def test_an_unknown_tensor_is_named() -> None:
    graph = normalize(residual_net())
    with pytest.raises(CalibrationError, match="no tensor 'nowhere'"):
        Observer(graph, ["nowhere"])


@pytest.mark.parametrize(("batch", "count"), [(1, 5), (4, 10)])
def test_a_model_with_a_fixed_batch_is_observed(batch: int, count: int) -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", [batch, 3, 8, 8]), 3, 8))
    b.node("GlobalAveragePool", b.conv(x, 8, 8), out="y")
    b.output("y")
    graph = normalize(b.build())
    data = np.random.default_rng(3).normal(size=(count, 3, 8, 8)).astype(np.float32)
    found = collected(graph, [data], "image")
    assert found["image"].samples == count
    assert found["image"].counts.sum() == data.size


def test_an_input_that_the_runtime_refuses_is_one_clear_error() -> None:
    b = ModelBuilder()
    table = b.weight(10, 4, name="table")
    x = b.node("Gather", table, b.input("ids", ["batch", 3], TensorProto.INT64))
    b.node("MatMul", x, b.weight(4, 2), out="y")
    b.output("y", ["batch", 3, 2])
    graph = normalize(b.build())
    samples = open_samples({"ids": np.full((3, 3), 99)}, graph)
    with pytest.raises(ModelError, match="fails on this input"):
        collect(graph, samples, needed(graph))


def test_sequences_of_different_lengths_are_observed_one_by_one() -> None:
    b = ModelBuilder()
    b.node("MatMul", b.input("tokens", ["batch", "length", 4]), b.weight(4, 3), out="y")
    b.output("y", ["batch", "length", 3])
    graph = normalize(b.build())
    random = np.random.default_rng(5)
    batches = [random.normal(size=(2, n, 4)).astype(np.float32) for n in (3, 7, 1)]
    found = collected(graph, batches, "tokens")
    assert found["tokens"].samples == 6
    assert found["tokens"].counts.sum() == sum(batch.size for batch in batches)


def test_one_number_for_the_whole_batch_is_counted_for_each_sample() -> None:
    b = ModelBuilder()
    x = b.input("x", [1, 4])
    b.node("ReduceMax", x, keepdims=0, out="largest")
    b.node("Mul", x, "largest", out="y")
    b.output("y")
    graph = normalize(b.build())
    data = np.random.default_rng(5).normal(size=(6, 4)).astype(np.float32)
    found = collect(graph, open_samples({"x": data}, graph), ["largest", "y"], threads=1)
    assert found["largest"].samples == found["largest"].counts.sum() == 6
    assert found["largest"].maximum == data.max()


@pytest.mark.parametrize("length", [3, 4, 7])
def test_sequences_along_axis_0_of_a_fixed_batch_are_counted_to_their_end(length: int) -> None:
    b = ModelBuilder()
    by_position = b.node("Transpose", b.input("x", [4, "length", 8]), perm=[1, 0, 2])
    b.node("MatMul", by_position, b.weight(8, 4), out="y")
    b.output("y")
    model = b.build()
    values = np.ones((4, length, 8), np.float32)
    values[:, -1] = 100
    graph = normalize(model)
    found = collect(graph, open_samples({"x": values}, graph), ("y",))["y"]
    expected = run_model(model, {"x": values})["y"]
    assert (found.minimum, found.maximum) == pytest.approx((expected.min(), expected.max()))


def test_a_padded_sequence_along_axis_0_of_a_fixed_batch_keeps_its_shape() -> None:
    b = ModelBuilder()
    by_position = b.node("Transpose", b.input("x", [4, "length", 8]), perm=[1, 0, 2])
    b.node("MatMul", by_position, b.weight(8, 4), out="y")
    b.output("y")
    graph = normalize(b.build())
    data = {
        "x": np.ones((4, 7, 8), np.float32),
        "real": np.arange(7) < np.array([[7], [5], [3], [1]]),
    }
    found = collect(graph, open_samples(data, graph, mask="real"), ("y",))["y"]
    assert found.samples == 4


class Interrupted(ThreadPoolExecutor):
    """Starts one thread; Ctrl-C comes before the second."""

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        if self._threads:
            raise KeyboardInterrupt
        return super().submit(*arguments, **options)


def test_ctrl_c_between_two_threads_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = normalize(residual_net())
    end = time.monotonic() + 5

    def endless() -> Iterator[dict[str, np.ndarray]]:
        while time.monotonic() < end:
            yield {"image": np.ones((1, 3, 8, 8), np.float32)}

    monkeypatch.setattr("intact.calibrate.collect.ThreadPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect(graph, open_samples(endless(), graph), needed(graph), threads=2)
    assert time.monotonic() < end
