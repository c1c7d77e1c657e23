"""`evaluate` and `verify` by shards give the figures of one machine, to the last bit.

Here the workers are in this process; `tests/test_cli_cluster.py` has those of Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from PIL import Image

import intact
from intact import demo
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.analyze.verification import shards as sharded_verification
from intact.analyze.verification.compare import compare
from intact.analyze.verification.subject import Subject
from intact.calibrate.shards import SampleMap
from intact.data.metric import Metric
from intact.data.shards import FolderProbe
from intact.data.sources import open_samples
from intact.engines.cpu import Cpu
from intact.errors import ClusterError, DataError, UsageError
from intact.formats.base.report import Verification
from intact.graph import normalize
from intact.results.result import Result
from intact.targets import Wrap, load_target
from tests.clusters import Inline
from tests.models import ModelBuilder

pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Inline.put(monkeypatch, tmp_path / "job")


@pytest.fixture(scope="module")
def digits() -> Result:
    return intact.quantize(demo.model_path(), demo.calibration_path(), samples=64)


@pytest.fixture(scope="module")
def arrays() -> Mapping[str, np.ndarray]:
    with np.load(demo.test_path()) as found:
        return {name: found[name][:103] for name in found}


@pytest.fixture(scope="module")
def folder(arrays: Mapping[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in a folder for each class, two of which are damaged."""
    folder = tmp_path_factory.mktemp("images")
    for number, (each, label) in enumerate(zip(arrays["image"], arrays["labels"], strict=True)):
        path = folder / str(label) / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        grey = np.clip(255 * (each - each.min()) / np.ptp(each), 0, 255).astype(np.uint8)
        Image.fromarray(grey[0]).save(path)
    for path in (folder / "0" / "bad.png", folder / "7" / "bad.png"):
        path.write_bytes(b"no image")
    return folder


def evaluated(result: Result, data: Any, *, skip_bad: bool = False, **how: Any) -> dict[str, Any]:
    """Check that a cluster finds what one machine does; return it."""
    found = []
    with SampleMap("local", 2) as cluster:
        for each in (None, cluster):
            samples = open_samples(data, result.plan.graph, skip_bad=skip_bad)
            one = evaluate_result(result, samples, timed=False, cluster=each, **how)
            found.append(msgspec.json.encode(one))
    assert found[0] == found[1]
    decoded: dict[str, Any] = msgspec.json.decode(found[0])
    return decoded


@pytest.mark.parametrize("batch", [8, 100])
def test_arrays_are_sent(digits: Result, arrays: Any, batch: int) -> None:
    found = evaluated(digits, arrays, batch=batch)
    assert found["accuracy"]["top1"][1] > 90
    assert Inline.shards == {8: 13, 100: 2}[batch]


@pytest.mark.parametrize("is_seen", [True, False])
def test_images_are_decoded_by_the_workers(
    digits: Result, folder: Path, is_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "good"
    good.symlink_to(folder)
    for path in folder.rglob("bad.png"):
        path.rename(path.with_suffix(".off"))
    try:
        if not is_seen:
            monkeypatch.setattr(FolderProbe, "of", lambda *_: FolderProbe("x", 7))
        found = evaluated(digits, good, batch=8)
    finally:
        for path in folder.rglob("bad.off"):
            path.rename(path.with_suffix(".png"))
    assert found["samples"] == 103
    assert found["accuracy"] is not None
    assert Inline.shards == 13


def test_batches_do_not_shift_where_images_are_skipped(digits: Result, folder: Path) -> None:
    found = evaluated(digits, folder, skip_bad=True, batch=8)
    assert found["samples"] == 103
    assert len(found["skipped"]) == 2
    with pytest.raises(DataError, match=r"bad\.png"):
        evaluated(digits, folder, batch=8)


def several_outputs() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 4))
    b.node("Softmax", x, axis=0, out="maps")  # what a sample gives depends on its batch
    b.node("ReduceMax", x, out="most", keepdims=0)
    b.output("maps", ["batch", 4, 8, 8])
    b.output("most", [])
    return b.build()


def test_a_metric_gets_all_outputs_and_references_in_order() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(30, 3, 8, 8)).astype(np.float32)
    result = intact.quantize(several_outputs(), {"image": rows})

    def score(outputs: Mapping[str, Any], references: Mapping[str, Any]) -> dict[str, float]:
        weights = references["labels_weight"]
        return {
            "maps": float(
                sum(
                    w * m.astype(float).sum() for w, m in zip(weights, outputs["maps"], strict=True)
                )
            ),
            "most": float(sum(n * float(m) for n, m in enumerate(outputs["most"]))),
        }

    data = {"image": rows, "labels_weight": random.normal(size=30)}
    found = evaluated(result, data, batch=4, metric=Metric("score", score))
    assert found["metrics"].keys() == {"maps", "most"}
    assert found["outputs"].keys() == {"maps", "most"}


def test_another_float_model_and_a_function_as_data(digits: Result, arrays: Any) -> None:
    other = normalize(onnx.load(demo.model_path()))

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for part in np.array_split(np.arange(50), 7):
            yield {name: array[part] for name, array in arrays.items()}

    evaluated(digits, batches, batch=8, reference=other)


def test_what_is_not_mapped(digits: Result, arrays: Any, tmp_path: Path) -> None:
    once = iter([arrays])
    for run in (intact.evaluate, intact.verify):
        with pytest.raises(UsageError, match="an iterator cannot be cut into shards"):
            run(digits, once, cluster="local")
        with pytest.raises(UsageError, match=r"cluster local|cluster='local'|--cluster local"):
            run(digits, arrays, workers=2)
    np.savez(tmp_path / "seen.npz", x=[1])
    with pytest.raises(UsageError, match="observed compares what was recorded, on this machine"):
        intact.verify(digits, arrays, observed=tmp_path / "seen.npz", cluster="local")


def verified(subject: Subject, data: Any, **how: Any) -> Verification:
    """Check that a cluster finds what one machine does; return it."""
    with SampleMap("local", 2) as cluster:
        one, other = (
            compare(subject, open_samples(data, subject.plan.graph), cluster=each, threads=1, **how)
            for each in (None, cluster)
        )
    assert msgspec.json.encode(one) == msgspec.json.encode(other)
    return other


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("target", "formats"),
    [
        ("onnxruntime", ["onnx_qdq"]),
        ("integer-pow2", ["onnx_integer"]),
        ("openvino", ["openvino"]),
        ("tflite", ["tflite"]),
        ("ncnn", ["ncnn"]),
        ("tensorrt", ["tensorrt"]),
    ],
)
def test_formats_are_compared_by_shards(target: str, formats: Sequence[str], arrays: Any) -> None:
    for name in ("openvino", "ncnn"):
        if name == target:
            pytest.importorskip(name)
    if target == "tflite":
        pytest.importorskip("ai_edge_litert")
    result = intact.quantize(
        demo.model_path(), demo.calibration_path(), target=target, formats=formats, samples=64
    )
    for each in formats:
        found = verified(Subject.of_result(result), arrays, deployed=each)
        assert Inline.shards == 2
        assert found.samples == 103
        assert found.ends
        assert found.top1 is not None


def test_overflows_are_summed(arrays: Any) -> None:
    """A plan that its target's narrow accumulator cannot hold."""
    target = load_target("onnxruntime")
    arithmetic = replace(target.arithmetic, accumulator=Wrap(16))
    narrow = intact.quantize(
        demo.model_path(),
        demo.calibration_path(),
        target=replace(target, arithmetic=arithmetic),
        samples=64,
    )
    found = verified(Subject.of_result(narrow), arrays)
    assert found.overflows
    assert all(each.overflows for each in found.overflows)
    assert np.isfinite(list(found.outputs_sqnr_db.values())).all()


def test_a_file_of_others(tmp_path: Path, arrays: Any) -> None:
    pytest.importorskip("ai_edge_litert")
    intact.quantize(
        demo.model_path(), demo.calibration_path(), target="tflite", output=tmp_path / "out"
    )
    rows = {"image": arrays["image"].astype(np.float32).transpose(0, 2, 3, 1)}
    one, other = (
        intact.verify(tmp_path / "out" / "model.int8.tflite", rows, cluster=each, threads=1)
        for each in (None, "local")
    )
    assert one.layers
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


def test_workers_that_are_not_alike(
    digits: Result, arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sharded_verification._verification_of
    cpus = iter([Cpu("one", "avx2", None), Cpu("another", "avx512_vnni", None)])

    def of_another(reply: bytes) -> Verification:
        each = found(reply)
        each.cpu = next(cpus)
        return each

    monkeypatch.setattr(sharded_verification, "_verification_of", of_another)
    with pytest.raises(ClusterError, match=r"the workers are not alike \(.* on one and .* another"):
        intact.verify(digits, arrays, samples=100, cluster="local")
