"""C programs and TensorFlow Lite Micro against the integer engine."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from intact.errors import DataError, MissingExtraError
from intact.formats.base.comparison import stored_feeds
from intact.formats.base.format import Io, WrittenFiles
from intact.formats.c.run import CRuntime, verify_c
from intact.formats.c.write import CProgram, write_c
from intact.formats.registry import export
from intact.formats.tflite.micro import run_micro, verify_micro
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.program.passes.layout import IoLayout
from tests.deployment.networks import (
    batches,
    images,
    lowered,
    plan_for,
    with_wrong_bias,
    with_wrong_weight,
    written,
)
from tests.models import ModelBuilder
from tests.plans import calibrate, planned


def c_of(plan: QuantizedGraph) -> CProgram:
    return write_c(integer_io(lower(plan, layout=IoLayout.CHANNELS_LAST)))


def test_a_c_program_has_the_engines_bits() -> None:
    plan = plan_for("tflite-micro", curved=True)
    found = verify_c(plan, c_of(plan), batches(40))
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 200)]
    assert found.samples == 40
    assert found.layers == []
    assert "C99" in found.runtime


def test_a_c_program_that_only_shifts_has_the_engines_bits() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 3, 8, 6]), 3, 8)
    x = b.node("MaxPool", b.node("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Relu", b.node("Add", x, b.conv(x, 8, 8)))
    x = b.node("Flatten", x)
    b.node("Gemm", x, b.weight(5, 96), b.weight(5), out="logits", transB=1)
    b.output("logits", ["batch", 5])
    plan = calibrate(planned(b.build(), "integer-pow2"), images(32, seed=1))
    found = verify_c(plan, c_of(plan), batches(40))
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 200)]
    assert found.in_float == {}
    with CRuntime(c_of(plan)) as runtime:
        program = integer_io(lower(plan, layout=IoLayout.CHANNELS_LAST))
        outputs = runtime.run(stored_feeds(program, images(40)))["logits"]
    assert len(np.unique(outputs)) > 20


def test_tensorflow_lite_micro_has_the_engines_bits() -> None:
    plan = plan_for("tflite-micro", curved=True)
    found = verify_micro(plan, written(lowered(plan)), batches(40))
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 200)]
    assert found.outputs_sqnr_db == {"probabilities": np.inf}
    assert found.runtime.startswith("TensorFlow Lite Micro")


def test_a_wrong_bias_shows() -> None:
    plan = plan_for("tflite-micro")
    faulty = with_wrong_bias(lower(plan, layout=IoLayout.CHANNELS_LAST), "dense")
    found = verify_c(plan, write_c(integer_io(faulty)), batches(16))
    assert found.outputs[0].mismatches == 16
    assert found.outputs[0].largest > 1
    found = verify_micro(plan, written(with_wrong_bias(lowered(plan), "dense")), batches(16))
    assert found.outputs[0].mismatches == 16
    assert found.outputs_sqnr_db["logits"] < 40


def test_files_for_several_samples_at_once() -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("image", [4, 3, 8, 6]), 3, 2), [4, 2, 8, 6])
    plan = calibrate(planned(b.build(), "tflite-micro"), images(4))
    found = verify_micro(plan, written(lowered(plan)), [images(4), images(4, seed=8)])
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 8 * 2 * 48)]


def test_float_operators_may_put_the_axes_of_an_output_in_another_order() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 6])
    raised = b.node("Exp", b.node("Tanh", x))  # in floats here, as images with channels last
    results = [b.conv(x, 3, 2), b.node("Add", raised, b.scalar(0.5))]
    for result in results:
        b.output(result)
    plan = calibrate(planned(b.build(), "tflite-micro"), images(8))
    exported = export(plan, ("tflite",), Io.INT8)["tflite"]
    assert isinstance(exported, WrittenFiles)
    (content,) = exported.files.values()
    found = verify_micro(plan, content, [images(4)])
    assert [each.mismatches for each in found.outputs] == [0, 0]
    outputs = run_micro(plan, content, images(4))
    assert outputs[results[1]].shape == (4, 3, 8, 6)


def test_a_wrong_weight_of_an_early_layer_shows() -> None:
    plan = plan_for("tflite-micro")
    found = verify_micro(plan, written(with_wrong_weight(lowered(plan), "stem")), batches(16))
    assert found.outputs[0].mismatches > 0


def test_a_program_of_another_plan() -> None:
    plan, other = plan_for("tflite-micro"), plan_for("tflite-micro", curved=True)
    with pytest.raises(DataError, match="gives probabilities, its plan logits"):
        verify_c(plan, c_of(other), batches(4))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tflite_micro.python.tflite_micro", None)
    plan = plan_for("tflite-micro")
    with pytest.raises(MissingExtraError, match="pip install tflite-micro"):
        verify_micro(plan, b"", batches(4))
