"""The format in a result's folder: OpenVINO's own files, and doing without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from intact.errors import ExportError, PlanError
from intact.formats.base.format import Io
from intact.formats.openvino import format as table
from intact.formats.openvino.intermediate import BIN_FILE, XML_FILE, intermediate_files
from intact.formats.openvino.write import ONNX_FILE, OpenVinoModel, write_openvino
from intact.formats.registry import FORMATS
from intact.plan import Overrides, QuantizedGraph
from intact.targets import load_target
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net
from tests.plans import calibrated

FORMAT = FORMATS["openvino"].writer


@pytest.fixture(scope="module")
def plan() -> QuantizedGraph:
    return calibrated(residual_net(17), "openvino")


def written(plan: QuantizedGraph) -> OpenVinoModel:
    found = FORMAT.write(plan, Io.FLOAT)
    assert isinstance(found, OpenVinoModel)
    return found


def run(path: Path | str, feeds: dict[str, Any]) -> list[Any]:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(compiled(feeds).values())


@pytest.mark.parametrize("name", ["residual", "depthwise", "transformer", "control_flow"])
def test_both_files_compute_the_same_bits(name: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = MODELS[name].build(17)
    exported = written(calibrated(model, "openvino"))
    exported.save(tmp_path)
    feeds = dict(random_inputs(model, batch=5, seed=3))
    ours, theirs = run(tmp_path / ONNX_FILE, feeds), run(tmp_path / XML_FILE, feeds)
    assert len(ours) == len(theirs) > 0
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left, right)


def test_weights_are_integers_in_its_own_files(plan: QuantizedGraph) -> None:
    pytest.importorskip("openvino")
    exported = written(plan)
    assert b'element_type="i8"' in exported.ir_files[XML_FILE]
    weights = sum(
        value.const_value.nbytes
        for name, value in exported.model.graph.initializers.items()
        if name.endswith("_on_grid") and value.const_value is not None
    )
    whole = len(ir.to_proto(exported.model).SerializeToString())
    assert len(exported.ir_files[BIN_FILE]) < whole - weights // 2
    assert exported.nbytes() == sum(map(len, exported.ir_files.values()))


def test_the_same_plan_gives_the_same_bytes_whatever_was_done_before() -> None:
    """OpenVINO numbers what has no name through all that a process ever made."""
    pytest.importorskip("openvino")
    model = write_openvino(calibrated(MODELS["control_flow"].build(17), "openvino")).model
    first = intermediate_files(model)
    assert intermediate_files(model) == first


@pytest.mark.parametrize(("bits", "executed"), [(7, {"f32", "u8"}), (8, {"f32"})])
def test_weights_without_a_sign_need_its_own_files(
    bits: int, executed: set[str], tmp_path: Path
) -> None:
    openvino = pytest.importorskip("openvino")
    target = tmp_path / "mine.toml"
    target.write_text(
        'format = 2\nname = "mine"\nextends = "openvino"\n[weight]\ndtype = "uint8"\n'
        "quant_min = 0\nquant_max = 255\nsymmetric = false\n",
        encoding="utf-8",
    )
    b = ModelBuilder()
    x = b.node("Relu", b.input("image", ["batch", 4, 8, 8]))
    b.conv(b.node("Relu", b.conv(x, 4, 4)), 4, 4)
    b.output(b.nodes[-1].output[0])
    exported = written(calibrated(b.build(), load_target(target), Overrides(weight_bits=bits)))
    exported.save(tmp_path)
    found = set()
    for name in (ONNX_FILE, XML_FILE):
        compiled = openvino.Core().compile_model(
            tmp_path / name, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        for operation in compiled.get_runtime_model().get_ordered_ops():
            info = operation.get_rt_info()
            if info["layerType"].astype(str) == "Convolution":
                found.add(info["runtimePrecision"].astype(str))
    assert found == executed
    said = " ".join(note.message for note in exported.notes)
    assert ("model.xml" in said) == (bits == 7)
    assert ("computes in float around" in said) == (bits == 8)


def test_without_openvino_the_onnx_model_is_written(
    plan: QuantizedGraph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "is_installed", lambda _: False)
    exported = written(plan)
    exported.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [ONNX_FILE]
    assert exported.nbytes() == (tmp_path / ONNX_FILE).stat().st_size
    note = next(note for note in exported.notes if "openvino" in note.message)
    assert note.remedy == 'pip install "intact-quantizer[openvino]"'
    read = FORMAT.read(tmp_path, plan)
    assert isinstance(read, OpenVinoModel)
    assert not read.ir_files


def test_it_is_read_back_from_a_folder(plan: QuantizedGraph, tmp_path: Path) -> None:
    exported = written(plan)
    exported.save(tmp_path)
    read = FORMAT.read(tmp_path, plan)
    assert isinstance(read, OpenVinoModel)
    assert read.codes == exported.codes
    assert dict(read.ir_files) == dict(exported.ir_files)
    (again := tmp_path / "again").mkdir()
    read.save(again)
    for name in (ONNX_FILE, *exported.ir_files):
        assert (again / name).read_bytes() == (tmp_path / name).read_bytes()


def test_the_model_of_another_plan_is_refused(plan: QuantizedGraph, tmp_path: Path) -> None:
    written(calibrated(MODELS["depthwise"].build(17), "openvino")).save(tmp_path)
    with pytest.raises(PlanError, match="not the model of this plan"):
        FORMAT.read(tmp_path, plan)


def test_half_of_its_own_files_is_refused(plan: QuantizedGraph, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    written(plan).save(tmp_path)
    (tmp_path / BIN_FILE).unlink()
    with pytest.raises(PlanError, match=r"no model\.bin in it"):
        FORMAT.read(tmp_path, plan)


def test_what_openvino_cannot_read_is_one_line() -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    b.domains["strange"] = 1
    b.node("Unheard", b.conv(b.input("x", ["n", 2, 4, 4]), 2, 2), domain="strange", out="y")
    b.output("y")
    model = ir.from_proto(b.build())
    with pytest.raises(ExportError, match="OpenVINO cannot read the model: ") as caught:
        intermediate_files(model)
    assert "\n" not in str(caught.value)
    assert "Unheard" in str(caught.value)
