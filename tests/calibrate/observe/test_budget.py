"""Within little memory the same is counted, by fewer threads and in several passes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.calibrate import collect as collecting
from intact.calibrate.collect import collect
from intact.calibrate.observe.budget import COUNTS_BYTES, Schedule, known_sizes, schedule
from intact.calibrate.observe.observer import Observer
from intact.data.batching import Batch
from intact.data.sources import open_samples
from intact.errors import CalibrationError, UsageError
from intact.graph import Graph, normalize
from tests.calibrate.observe.test_padding import NAMES, REAL, TOKENS, tokens_net
from tests.calibrate.test_collect import needed
from tests.images import Images
from tests.models import ModelBuilder, control_flow, residual_net


@given(
    st.dictionaries(st.text(max_size=3), st.integers(1, 100), max_size=12),
    st.integers(1, 20),
    st.integers(100, 500),
)
def test_a_schedule_fits_and_leaves_nothing_out(
    sizes: dict[str, int], workers: int, memory: int
) -> None:
    plan = schedule(list(sizes), workers, sizes, memory)
    assert [name for group in plan.groups for name in group] == list(sizes)
    most = max(sum(sizes[name] for name in group) for group in plan.groups)
    assert 1 <= plan.workers <= workers
    assert plan.workers * most <= memory
    if sum(sizes.values()) <= memory:
        assert len(plan.groups) == 1
        assert plan.workers == workers or (plan.workers + 1) * sum(sizes.values()) > memory
    for group, after in zip(plan.groups, plan.groups[1:], strict=False):
        assert sum(sizes[name] for name in group) + sizes[after[0]] > memory


def test_what_cannot_fit_says_how_much_it_needs() -> None:
    sizes = {"small": 1 << 20, "large": 5 << 20}
    assert schedule(list(sizes), 4, sizes, 5 << 20) == Schedule(1, (("small",), ("large",)))
    with pytest.raises(
        CalibrationError, match=r"of 'large'.*need 5 MiB.* 4 MiB are.*; allow 5 MiB"
    ):
        schedule(list(sizes), 4, sizes, (5 << 20) - 1)
    with pytest.raises(UsageError, match="max_memory is 0"):
        schedule(list(sizes), 4, sizes, 0)


def memory_for(graph: Graph, names: tuple[str, ...], groups: int) -> int:
    """Bytes with which tensors are observed in at least so many groups, by one thread."""
    sizes = known_sizes(graph, Observer(graph, names).layout, names)
    assert sizes is not None
    memory = max(*sizes.values(), sum(sizes.values()) // groups)
    assert len(schedule(names, 8, sizes, memory).groups) >= groups
    return memory


@pytest.mark.parametrize("model", ["resnet20", "vit", "mlperf_vww"])
def test_statistics_are_those_without_a_limit(model: str, zoo: Path, cifar_calib: Images) -> None:
    graph = normalize(zoo / f"{model}.onnx")
    (name,) = (str(value.name) for value in graph.inputs)
    shape = [size for size in graph.inputs[0].shape or () if isinstance(size, int)]
    images = cifar_calib.image[:37]
    if shape != list(images.shape[1:]):
        images = np.random.default_rng(0).normal(size=(37, *shape)).astype(np.float32)
    tensors = needed(graph)
    samples = open_samples({name: images}, graph)
    reference = collect(graph, samples, tensors, threads=2).to_bytes()
    memory = memory_for(graph, tensors, 4)
    assert collect(graph, samples, tensors, threads=2, max_memory=memory).to_bytes() == reference
    large = 2 << 30
    assert collect(graph, samples, tensors, threads=2, max_memory=large).to_bytes() == reference


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch_is_observed_in_groups(batch: int) -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", [batch, 3, 8, 8]), 3, 8), out="first")
    b.node("Relu", b.conv(x, 8, 8), out="second")
    b.node("GlobalAveragePool", b.conv("second", 8, 8), out="y")
    b.output("y")
    graph = normalize(b.build())
    names = ("image", "first", "second", "y")
    data = np.random.default_rng(3).normal(size=(10, 3, 8, 8)).astype(np.float32)
    samples = open_samples({"image": data}, graph)
    memory = memory_for(graph, names, 3)
    found = collect(graph, samples, names, max_memory=memory)
    assert found.to_bytes() == collect(graph, samples, names).to_bytes()


def test_masks_and_groups_go_together() -> None:
    graph = tokens_net()
    samples = open_samples({"tokens": TOKENS, "real": REAL}, graph, mask="real")
    memory = memory_for(graph, NAMES, 3)
    found = collect(graph, samples, NAMES, max_memory=memory)
    assert found.to_bytes() == collect(graph, samples, NAMES).to_bytes()


def test_sizes_that_depend_on_samples_are_those_of_the_first() -> None:
    graph = tokens_net("length")
    source = [{"tokens": TOKENS[k : k + 1, : 1 + k % 6]} for k in range(12)]
    samples = open_samples(source, graph)
    reference = collect(graph, samples, NAMES).to_bytes()
    found = collect(graph, samples, NAMES, max_memory=2 * COUNTS_BYTES + 1000)
    assert found.to_bytes() == reference


def test_bodies_read_what_is_around_them() -> None:
    graph = normalize(control_flow())
    names = tuple(str(value.name) for value in (*graph.inputs, *graph.outputs))
    names = (*names[:1], *(str(n.outputs[0].name) for n in graph.nodes if n.op_type == "Conv"))
    names = (*names, "result")
    data = {"image": np.random.default_rng(3).normal(size=(4, 2, 4, 4)).astype(np.float32)}
    samples = open_samples(data, graph)
    memory = memory_for(graph, names, 3)
    found = collect(graph, samples, names, max_memory=memory)
    assert found.to_bytes() == collect(graph, samples, names).to_bytes()


def test_progress_over_several_passes_ends_at_the_number_of_samples() -> None:
    graph = normalize(residual_net())
    tensors = needed(graph)
    reported: list[tuple[int, int | None]] = []
    samples = open_samples({"image": np.zeros((70, 3, 8, 8), np.float32)}, graph)
    memory = memory_for(graph, tensors, 3)
    collect(graph, samples, tensors, progress=lambda *at: reported.append(at), max_memory=memory)
    assert reported[-1] == (70, 70)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)


def test_samples_that_come_once_or_differ_are_refused() -> None:
    graph = normalize(residual_net())
    tensors = needed(graph)
    memory = memory_for(graph, tensors, 3)
    batch: Batch = {"image": np.zeros((3, 3, 8, 8), np.float32)}
    with pytest.raises(CalibrationError, match="an iterator gives them once"):
        collect(graph, open_samples(iter([batch]), graph), tensors, max_memory=memory)

    class Growing:
        passes = 0

        def __iter__(self) -> Iterator[Batch]:
            self.passes += 1
            yield from [batch] * self.passes

    with pytest.raises(CalibrationError, match="gives 6 samples, and gave 3 before"):
        collect(graph, open_samples(Growing(), graph), tensors, max_memory=memory)


def test_fewer_threads_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = normalize(residual_net())
    tensors = needed(graph)
    seen: list[int] = []
    original = ThreadPoolExecutor

    def watch(workers: int) -> object:
        seen.append(workers)
        return original(workers)

    monkeypatch.setattr(collecting, "ThreadPoolExecutor", watch)
    samples = open_samples({"image": np.zeros((70, 3, 8, 8), np.float32)}, graph)
    whole = memory_for(graph, tensors, 1)
    collect(graph, samples, tensors, threads=8, max_memory=whole * 5 // 2)
    assert seen == [2]


def test_peak_memory_stays_near_the_limit(tmp_path: Path) -> None:
    run = textwrap.dedent("""
        import sys, resource
        import numpy as np
        from intact.calibrate.collect import collect
        from intact.graph import normalize
        from intact.data.sources import open_samples
        from tests.models import ModelBuilder

        b = ModelBuilder()
        x = b.input("image", ["n", 3, 512, 512])
        names = []
        for k in range(8):
            x = b.node("Relu", b.conv(x, 3 if k == 0 else 16, 16), out=f"r{k}")
            names.append(x)
        b.node("GlobalAveragePool", x, out="y")
        b.output("y")
        graph = normalize(b.build())
        limit = int(sys.argv[1]) or None
        samples = open_samples({"image": np.ones((1, 3, 512, 512), np.uint8)}, graph)
        def peak():
            lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
            return int(lines["VmHWM"].split()[0]) << 10
        collect(graph, samples, names[:1], threads=1)
        before = peak()
        collect(graph, samples, names, threads=1, max_memory=limit)
        print(peak() - before)
    """)

    def peak(limit: int) -> int:
        command = [sys.executable, "-c", run, str(limit)]
        return int(subprocess.check_output(command, text=True, cwd=Path.cwd()))

    one = 16 * 512 * 512 * 4
    free, limited = peak(0), peak(2 * (one + COUNTS_BYTES))
    assert free > 8 * one
    assert limited < 0.6 * free


def test_a_limit_that_nobody_gave_refuses_nothing() -> None:
    graph = normalize(residual_net())
    tensors = needed(graph)
    data = {"image": np.random.default_rng(3).normal(size=(5, 3, 8, 8)).astype(np.float32)}
    samples = open_samples(data, graph)
    reference = collect(graph, samples, tensors).to_bytes()
    for memory in (1, 3 << 20, 1 << 40):
        found = collect(graph, samples, tensors, max_memory=memory, refuses=False)
        assert found.to_bytes() == reference
    once = open_samples(({"image": image[None]} for image in data["image"]), graph)
    found = collect(graph, once, tensors, max_memory=1, refuses=False)
    assert found.to_bytes() == reference
