"""OpenVINO's plugin, here and in a process of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.errors import DataError, ExportError
from intact.formats.openvino import process
from intact.formats.openvino.process import LIMIT, OpenVinoProcess, load_arrays, save_arrays
from intact.formats.openvino.run import ExecutedNode, OpenVinoRuntime, differences, openvino_version
from intact.formats.openvino.write import write_openvino
from tests.models import ModelBuilder
from tests.plans import calibrated

pytestmark = pytest.mark.runtime_fact("openvino")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A residual block with quantizers, of which a name is odd."""
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 6, 6]), 3, 8), out="trunk/0:é")
    y = b.node("Relu", b.conv(x, 8, 8))  # a convolution adds nothing in place to what it reads
    parts = (b.weight(8, 8, 3, 3), b.weight(8))
    y = b.node("Conv", y, *parts, name="branch", pads=[1] * 4)
    x = b.node("Relu", b.node("Add", x, y, name="add"), out="sum")
    b.output(b.node("Conv", x, b.weight(2, 8, 1, 1), name="last", out="out"))
    folder = tmp_path_factory.mktemp("openvino")
    write_openvino(calibrated(b.build(), "openvino")).save(folder)
    return folder / "model.fq.onnx"


IMAGES = {"image": np.random.default_rng(2).normal(size=(5, 3, 6, 6)).astype(np.float32)}
TRUNK, SUM = "trunk/0:é_fake_quantized", "sum_fake_quantized"


def test_it_tells_what_runs(path: Path) -> None:
    nodes = {layer: node for node in OpenVinoRuntime(path).executed for layer in node.layers}
    branch = nodes["branch"]
    assert branch.kind == "Convolution"
    assert branch.in_integers
    assert {"branch", "add", SUM} <= branch.layers
    assert branch.kernel


def test_observed_tensors_are_handed_out_by_name(path: Path) -> None:
    runtime = OpenVinoRuntime(path, [SUM, "out"])
    outputs, seen = runtime.run(IMAGES)
    assert list(outputs) == ["out"]
    assert list(seen) == [SUM, "out"]
    assert seen[SUM].shape == (5, 8, 6, 6)
    np.testing.assert_array_equal(seen["out"], outputs["out"])
    np.testing.assert_array_equal(outputs["out"], OpenVinoRuntime(path).run(IMAGES)[0]["out"])


def test_showing_a_residual_undoes_a_fusion_and_that_is_told(path: Path) -> None:
    as_used = OpenVinoRuntime(path).executed
    assert differences(as_used, as_used) == frozenset()
    assert differences(as_used, OpenVinoRuntime(path, [SUM]).executed) == frozenset()
    assert {"branch", "add"} <= differences(as_used, OpenVinoRuntime(path, [TRUNK]).executed)


def test_nodes_that_only_move_make_no_difference() -> None:
    concat = ExecutedNode(frozenset({"a"}), "Concatenation", "u8", "ref")
    add = ExecutedNode(frozenset({"b"}), "Eltwise", "u8", "jit")
    assert differences([concat, add], []) == frozenset({"b"})


def test_any_batch(path: Path) -> None:
    runtime = OpenVinoRuntime(path, threads=1)
    whole = runtime.run(IMAGES)[0]["out"]
    for k in range(5):
        one = runtime.run({"image": IMAGES["image"][k : k + 1]})[0]["out"]
        np.testing.assert_array_equal(one[0], whole[k])


def test_refusals_are_one_line(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tensor 'nothing'"):
        OpenVinoRuntime(path, ["nothing"])
    damaged = tmp_path / "model.onnx"
    damaged.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ExportError, match="OpenVINO refuses the model") as refused:
        OpenVinoRuntime(damaged)
    assert "\n" not in str(refused.value)
    with pytest.raises(ExportError, match="fails on this input"):
        OpenVinoRuntime(path).run({"image": np.zeros((1, 4, 6, 6), np.float32)})
    with pytest.raises(ExportError, match="fails on this input"):
        OpenVinoRuntime(path).run({"other": IMAGES["image"]})


def test_another_process_gives_the_same(path: Path) -> None:
    with OpenVinoProcess(path, [[], [SUM, TRUNK]], "DEFAULT", threads=1) as runs:
        assert runs.executed[0] == OpenVinoRuntime(path).executed
        for _ in range(2):
            (first, nothing), (second, seen) = runs.run(IMAGES)
        assert nothing == {}
        outputs, here = OpenVinoRuntime(path, [SUM, TRUNK], threads=1).run(IMAGES)
        np.testing.assert_array_equal(first["out"], outputs["out"])
        np.testing.assert_array_equal(second["out"], outputs["out"])
        assert seen.keys() == here.keys()
        for name, array in here.items():
            np.testing.assert_array_equal(seen[name], array)
        with pytest.raises(ExportError, match="fails on this input"):
            runs.run({"image": np.zeros((1, 4, 6, 6), np.float32)})


def test_an_older_processor_has_other_kernels(path: Path) -> None:
    with OpenVinoProcess(path, [[]], "AVX2") as runs:
        kernels = {n.kernel for n in runs.executed[0] if n.kind == "Convolution"}
    assert LIMIT == "ONEDNN_MAX_CPU_ISA"
    assert kernels
    assert all("avx2" in kernel or "gemm" in kernel for kernel in kernels)


def test_a_process_that_cannot_start_or_ends_is_told(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="OpenVINO refuses the model"):
        OpenVinoProcess(tmp_path / "none.onnx", [[]], "AVX2")
    with OpenVinoProcess(path, [[]], "AVX2") as runs:
        folder = runs._place
        assert folder.exists()
        runs._process.kill()
        with pytest.raises(ExportError, match="ended before it was done: killed by signal 9; ver"):
            runs.run(IMAGES)
    assert not folder.exists()


def test_what_a_process_complains_of_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_WORKER", "intact.no_such_worker")
    with pytest.raises(ExportError, match=r"before it was done: .*No module named intact\.no_such"):
        OpenVinoProcess(path, [[]], "AVX2")


def test_its_environment_is_that_of_the_caller_but_quiet(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_VERBOSE", "2")
    monkeypatch.setenv(LIMIT, "SSE41")
    with OpenVinoProcess(path, [[]], "AVX2") as runs:
        for _ in range(3):
            assert len(runs.run(IMAGES)) == 1
        kernels = {n.kernel for n in runs.executed[0] if n.kind == "Convolution"}
    assert kernels
    assert all("avx2" in kernel or "gemm" in kernel for kernel in kernels)


def test_dictionaries_of_arrays_in_a_file(tmp_path: Path) -> None:
    given = [{"a/b": np.arange(3), "..": np.zeros((0, 2))}, {}, {"": np.array(1.5)}]
    save_arrays(tmp_path / "x.npz", given)
    found = load_arrays(tmp_path / "x.npz")
    assert [list(each) for each in found] == [["a/b", ".."], [], [""]]
    for before, after in zip(given, found, strict=True):
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array)


def test_the_version_is_that_of_the_package() -> None:
    assert openvino_version().startswith("20")
