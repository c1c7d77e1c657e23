"""A written model in OpenVINO against the integer engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import intact
from intact.analyze.diagnose.deployed import products_in_float
from intact.errors import DataError, MissingExtraError
from intact.formats.base.format import IN_FLOAT
from intact.formats.base.report import Verification
from intact.formats.openvino.intermediate import intermediate_files
from intact.formats.openvino.process import LIMIT
from intact.formats.openvino.run import OpenVinoRuntime
from intact.formats.openvino.verify import View, _residuals, _runtime, verify_openvino
from intact.formats.openvino.write import write_openvino
from intact.plan import Overrides
from intact.program.lower import lower
from intact.results.first_run import run_once
from intact.results.result import Result
from intact.targets import load_target
from tests.deployment.networks import batches, images, network, plan_for, wrong
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrate, calibrated, planned

pytestmark = pytest.mark.runtime_fact("openvino")

ASYMMETRIC = """
extends = "openvino"
name = "mine"
[activation]
dtype = "uint8"
symmetric = false
quant_min = 0
quant_max = 255
[unsigned]
after = []
through = []
[[op]]
ops = ["Conv", "Gemm"]
inputs = ["uint8", "int8"]
outputs = ["uint8"]
float_output = true
"""


@pytest.fixture(scope="module")
def found() -> Verification:
    plan = plan_for("openvino")
    return verify_openvino(plan, write_openvino(plan), batches(40))


def test_layers_agree_and_are_all_compared(found: Verification) -> None:
    assert found.runtime.startswith("OpenVINO 20")
    assert found.target == "openvino"
    assert found.samples == 40
    assert len(found.layers) == len(found.end_to_end) == 7
    assert all(layer.values for layer in found.layers)
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 200)]
    assert found.agreement == 100.0
    assert found.float_nodes == found.in_float == found.not_compared == {}
    assert found.overflows == [] or found.cpu.saturates_pairs


def test_what_openvino_stores_itself_is_verified() -> None:
    plan = plan_for("openvino")
    exported = write_openvino(plan)
    exported.ir_files = intermediate_files(exported.model)
    again = verify_openvino(plan, exported, batches(20))
    assert again.samples == 20
    assert wrong(again.layers) == []
    exported.ir_files = {name: content[:40] for name, content in exported.ir_files.items()}
    with pytest.raises(intact.IntactError, match="OpenVINO refuses the model"):
        verify_openvino(plan, exported, batches(4))


def test_a_model_of_another_plan_is_found_out() -> None:
    other = calibrate(planned(network(), "openvino"), images(32, seed=5))
    report = verify_openvino(plan_for("openvino"), write_openvino(other), batches(16))
    assert sum(layer.mismatches for layer in report.layers) > 100


def test_tensors_that_are_added_to_sums_are_shown_alone() -> None:
    plan = plan_for("openvino")
    program, exported = lower(plan), write_openvino(plan)
    view = View.of(program, exported)
    used, freely, *alone = view.groups
    assert used == []
    assert alone == [["pooled_fake_quantized"]]
    assert "pooled_fake_quantized" not in freely
    assert {"pooled"} <= _residuals(program)


def blocks(batch: int | str = "batch") -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.conv(b.input("image", [batch, 3, 8, 6]), 3, 8)
    for _ in range(3):
        x = b.node("Relu", x)
        x = b.node("Add", x, b.conv(b.node("Relu", b.conv(x, 8, 8)), 8, 8))
    b.output(b.conv(x, 8, 4, kernel=1))
    return b.build()


@pytest.mark.parametrize("size", [1, 3])
def test_blocks_behind_each_other_with_any_batch(size: int) -> None:
    plan = calibrated(blocks(), "openvino")
    report = verify_openvino(plan, write_openvino(plan), batches(6, size))
    assert report.samples == 6
    assert wrong(report.layers) == wrong(report.end_to_end) == []
    assert report.not_compared == {}
    assert len(report.layers) >= 8


def test_a_batch_of_fixed_length() -> None:
    plan = calibrated(blocks(8), "openvino")
    report = verify_openvino(plan, write_openvino(plan), batches(16, 8))
    assert wrong(report.layers) == []
    assert [each.mismatches for each in report.outputs] == [0]


def test_codes_with_zero_points(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ASYMMETRIC, encoding="utf-8")
    plan = calibrate(planned(network(), load_target(path)), images(32, seed=1))
    report = verify_openvino(plan, write_openvino(plan), batches(40))
    zeros = [config.params.zero_point.max() for config in plan.configs.values() if config.params]
    assert max(zeros) > 0
    assert report.float_nodes == report.in_float == {}
    assert wrong(report.layers) == []


def test_transposed_convolutions_are_compared_through_their_outputs() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 6]), 3, 8))
    parts = (b.weight(8, 6, 3, 3), b.weight(6))
    x = b.clip(b.node("ConvTranspose", x, *parts, strides=[2, 2], name="up"), 0.0, 1.0)
    b.output(b.node("ConvTranspose", x, b.weight(6, 5, 2, 2), name="last"))
    plan = calibrated(b.build(), "openvino")
    report = verify_openvino(plan, write_openvino(plan), batches(20))
    (output,) = report.outputs
    assert report.in_float == {}
    assert output.values > 10_000
    if report.cpu.saturates_pairs:  # there is no integer kernel: sums are rounded in float32
        assert set(report.float_nodes.values()) == {"ConvTranspose"}
        assert output.mismatches <= 1e-3 * output.values
    else:
        assert report.float_nodes == {}
        assert output.mismatches == 0


def test_layers_that_run_in_float_are_named() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 6]), 3, 8), out="inner")
    b.output(b.conv(x, 8, 4))
    plan = calibrated(b.build(), "openvino", Overrides(activation_bits=16))
    report = verify_openvino(plan, write_openvino(plan), batches(4))
    assert sorted(report.float_nodes.values()) == ["Conv", "Conv", "Relu"]
    assert set(report.float_nodes) == {name for name, d in plan.decisions.items() if d.quantized}


def test_the_first_run_names_what_runs_in_float_and_compiles_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[Path] = []
    construct = OpenVinoRuntime.__init__

    def counted(self: OpenVinoRuntime, path: Path, *given: Any, **options: Any) -> None:
        compiled.append(path)
        construct(self, path, *given, **options)

    monkeypatch.setattr(OpenVinoRuntime, "__init__", counted)
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 6]), 3, 8))
    b.output(b.conv(x, 8, 4))
    for bits, named in ((8, 0), (16, 2)):
        plan = calibrated(b.build(), "openvino", Overrides(activation_bits=bits))
        result = Result(plan, None, {"openvino": write_openvino(plan)})
        compiled.clear()
        run_once(result, dict(random_inputs(b.build(), batch=1)))
        told = [note.node for note in result.plan.notes if IN_FLOAT in note.message]
        assert told == [str(n.name) for n in plan.graph.nodes if n.op_type == "Conv"][:named]
        assert len(products_in_float(result)) == named
        assert len(compiled) == 1


def test_a_missing_package_tells_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    plan = plan_for("openvino")
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[openvino\]"'):
        verify_openvino(plan, write_openvino(plan), batches(4))


def test_a_limit_that_the_environment_sets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "AVX2")
    assert _runtime("").endswith(f", {LIMIT}=AVX2")
    assert _runtime("AVX512_CORE").endswith(f", {LIMIT}=AVX512_CORE")
    monkeypatch.delenv(LIMIT)
    assert LIMIT not in _runtime("")


def test_a_tensor_that_is_not_there() -> None:
    plan = plan_for("openvino")
    exported = write_openvino(plan)
    end = next(iter(exported.codes))
    exported.codes[end] = "nowhere"
    with pytest.raises(DataError, match="no tensor 'nowhere'"):
        verify_openvino(plan, exported, batches(4))


def test_through_the_public_function(tmp_path: Path) -> None:
    result = intact.quantize(network(), images(32, seed=1), target="openvino")
    result.save(tmp_path / "out")
    report = intact.verify(tmp_path / "out", images(8))
    assert report.format == "openvino"
    assert wrong(report.layers) == []
    assert np.isfinite(report.agreement or 0)


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(12, 8, 4), (10, 10, 2), (16, 16, 8)])
@pytest.mark.parametrize("limit", ["AVX512_CORE", "AVX2"])
def test_pairs_of_groups_saturate_as_the_kernels_of_the_processor_do(
    limit: str, inputs: int, outputs: int, groups: int
) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", inputs, 8, 8])
    weight = b.weight(outputs, inputs // groups, 3, 3)
    x = b.node("Conv", x, weight, group=groups, pads=[1, 1, 1, 1], name="groups")
    b.output(b.node("Conv", x, b.weight(4, outputs, 1, 1), name="last"))
    model = b.build()
    plan = calibrated(model, "openvino")
    feeds = random_inputs(model, batch=4, seed=1)
    found = verify_openvino(plan, write_openvino(plan), [feeds], threads=1, instructions=limit)
    compared = {str(layer.end): layer for layer in found.layers}["groups.output[0]"]
    assert compared.mismatches <= 1


def test_pairs_of_two_activations_saturate_beside_a_convolution() -> None:
    """What both read has codes without a sign for the one, and with it for the other."""
    b = ModelBuilder()
    x = b.conv(b.input("x", ["batch", 16, 8, 8]), 16, 16, kernel=1)
    pooled = b.node("MaxPool", x, kernel_shape=[1, 1])
    b.output(b.node("MatMul", pooled, pooled, out="product"))
    b.output(b.conv(x, 16, 4, kernel=1))
    model = b.build()
    plan = calibrated(model, "openvino")
    feeds = {"x": 4 * random_inputs(model, batch=4, seed=1)["x"]}
    found = verify_openvino(plan, write_openvino(plan), [feeds], threads=1, instructions="AVX2")
    assert not found.float_nodes
    assert found.outputs_sqnr_db["product"] > 100
