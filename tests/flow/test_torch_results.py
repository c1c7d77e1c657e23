"""Modules of results: what is told early, and what they take along."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.plan import NoteKind
from tests.models import ModelBuilder, residual_net

torch = pytest.importorskip("torch")


def example() -> np.ndarray:
    graph_input = residual_net().graph.input[0]
    shape = [d.dim_value or 4 for d in graph_input.type.tensor_type.shape.dim]
    return np.random.default_rng(0).random(shape, np.float32)


def test_what_cannot_be_deployed_is_told_before_the_training() -> None:
    with pytest.raises(intact.IntactError, match="4 bits"):
        intact.prepare(residual_net(), "tensorrt", example(), weight_bits=4)


def resized() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 4))
    x = b.node("Resize", x, "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    b.node("Relu", b.conv(x, 4, 4), out="y")
    b.output("y", ["batch", 4, 16, 16])
    return b.build()


@pytest.mark.parametrize("target", ["tengine", "tengine-u8", "tensorrt"])
def test_what_the_target_cannot_hold_is_told_when_a_module_is_prepared(target: str) -> None:
    """As it is told when it is deployed: of a file that is not written, and of floats."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = intact.prepare(resized(), target, example())
    told = [str(each.message) for each in caught if each.category is UserWarning]
    intact.enable_calibration(module)
    module(torch.from_numpy(example()))
    intact.enable_quantization(module)
    plan = intact.deploy(module.eval()).plan
    notes = [str(note) for note in plan.notes]
    assert {note for note in notes if "was not written" in note} <= set(told)
    in_float = {name for name, each in plan.decisions.items() if not each.quantized}
    assert all(any(repr(name) in each for each in told) for name in in_float)
    assert any("Resize" in each for each in told)
    assert any("was not written" in each for each in told) == target.startswith("tengine")


def test_a_prepared_module_is_deployed_as_it_was_prepared_for() -> None:
    module = intact.prepare(
        residual_net(), "tensorrt", example(), weight_bits=4, formats=["onnx_qdq"]
    )
    intact.enable_calibration(module)
    module(torch.from_numpy(example()))
    intact.enable_quantization(module)
    assert list(intact.deploy(module).exports) == ["onnx_qdq"]
    assert list(intact.deploy(module, formats=["onnx_levels"]).exports) == ["onnx_levels"]


def test_threshold_methods_decide_the_scales_of_a_prepared_module() -> None:
    scales = []
    for method in ("minmax", "percentile"):
        module = intact.prepare(residual_net(), "tensorrt", example(), method=method)
        intact.enable_calibration(module)
        module(torch.from_numpy(example()))
        intact.enable_quantization(module)
        scales.append([float(each.base.sum()) for each in module.quantizers.values()])
    assert scales[0] != scales[1]
    with pytest.raises(intact.IntactError, match="percentil"):
        intact.prepare(residual_net(), "tensorrt", example(), method="percentil")
    with pytest.raises(intact.IntactError, match=r"reads the samples twice.*use kl_stepwise"):
        intact.prepare(residual_net(), "tensorrt", example(), method="kl_counted")


def test_formats_and_preprocessing_come_from_what_a_module_was_made_of(tmp_path: Path) -> None:
    result = intact.quantize(
        residual_net(), example(), mean=[0.5], formats=["onnx_levels", "onnx_qdq"], output=tmp_path
    )
    made = intact.from_torch(intact.to_torch(tmp_path))
    assert list(made.exports) == list(result.exports)
    assert made.preprocess == result.preprocess
    assert made.preprocess.mean == (0.5,)


def test_notes_of_what_was_exported_are_told_once() -> None:
    result = intact.quantize(residual_net(), example(), weight_bits=4, threads=1)
    trained = intact.train(result, example(), epochs=1, threads=1)
    assert any(each.kind is NoteKind.EXPORT for each in result.plan.notes)
    for each in (trained, intact.from_torch(intact.to_torch(trained))):
        assert len(set(each.plan.notes)) == len(each.plan.notes)


def test_what_was_read_is_not_trained_and_the_remedy_says_so(tmp_path: Path) -> None:
    intact.quantize(residual_net(), example(), output=tmp_path)
    read = intact.read_quantized(tmp_path / "model.int8.onnx")
    with pytest.raises(intact.IntactError, match="not what was read"):
        intact.train(read, example())
