"""What follows on products without a bias, or of two activations, comes out right in OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from intact.engines.cpu import instruction_sets
from intact.engines.simulate import Simulator
from intact.formats.openvino.run import OpenVinoRuntime
from intact.formats.openvino.write import write_openvino
from intact.numerics.metrics import sqnr_db
from intact.targets import InstructionSet
from tests.formats.openvino.test_shields import assert_agrees, kept, written
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

WITHOUT_BIAS: dict[str, Callable[[ModelBuilder], str]] = {
    "Conv": lambda b: b.node("Conv", b.input("image", ["batch", 4, 6, 6]), b.weight(6, 4, 1, 1)),
    "MatMul": lambda b: b.node("MatMul", b.input("image", ["batch", 8]), b.weight(8, 6)),
    "scaled": lambda b: b.node("Mul", WITHOUT_BIAS["MatMul"](b), b.scalar(2)),
}
MIRRORED: dict[str, Callable[[ModelBuilder, str], str]] = {
    "Mul": lambda b, y: b.node("Mul", b.node("Relu", y), b.weight(6)),
    "Neg": lambda b, y: b.node("Neg", b.node("Relu", y)),
    "Div": lambda b, y: b.node("Div", b.node("LeakyRelu", y, alpha=0.3), b.scalar(-2)),
    "slopes": lambda b, y: b.node(
        "Sub", b.scalar(0), b.node("PRelu", y, b.constant(np.full(6, 0.25, np.float32)))
    ),
    "twice": lambda b, y: b.node("Neg", b.node("Mul", b.node("Relu", y), b.scalar(2))),
}


def _squared(b: ModelBuilder) -> str:
    x = b.input("image", ["batch", 6, 8])
    return b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))


@pytest.mark.crossed
@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("mirrored", MIRRORED)
@pytest.mark.parametrize("product", WITHOUT_BIAS)
def test_negative_factors_stay_behind_a_relu(product: str, mirrored: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    b = ModelBuilder()
    model, expected = written(b, [MIRRORED[mirrored](b, WITHOUT_BIAS[product](b))])
    assert_agrees(b, model, expected, tmp_path)


def test_other_factors_behind_a_relu_need_nothing() -> None:
    b = ModelBuilder()
    y = WITHOUT_BIAS["MatMul"](b)
    biased = b.node("Add", y, b.weight(6))
    results = [b.node("Neg", b.node("Relu", biased)), b.node("Mul", b.node("Relu", y), b.scalar(2))]
    assert [kept(written(b, [result])[0]) for result in results] == [0, 0]


COLUMNS: dict[str, Callable[[ModelBuilder, str], str]] = {
    "multiplied": lambda b, y: b.node("Mul", y, b.weight(6)),
    "rectified": lambda b, y: b.node(
        "Div", b.node("Relu", y), b.constant(np.arange(1, 7, dtype=np.float32))
    ),
    "absolute": lambda b, y: b.node("Mul", b.node("Abs", y), b.weight(6)),
    "added": lambda b, y: b.node("Add", b.node("Relu", y), b.weight(6)),
    "slopes": lambda b, y: b.node("PRelu", y, b.constant(np.linspace(0.1, 2, 6, dtype=np.float32))),
}


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("column", COLUMNS)
def test_columns_of_a_product_of_activations_have_their_numbers(
    column: str, tmp_path: Path
) -> None:
    """OpenVINO reads beyond their end, or lets pairs of large codes saturate."""
    pytest.importorskip("openvino")
    b = ModelBuilder()
    b.output(COLUMNS[column](b, _squared(b)))
    images = np.random.default_rng(2).normal(size=(8, 6, 8)).astype(np.float32)
    images[:, 0] = 4.0
    plan = calibrate(planned(b.build(), "openvino"), {"image": images})
    model = write_openvino(plan)
    assert kept(model) == 1
    if InstructionSet.AVX512_VNNI not in instruction_sets():
        return  # all pairs saturate
    model.save(tmp_path)
    outputs, _ = OpenVinoRuntime(tmp_path / "model.fq.onnx", threads=1).run({"image": images})
    expected, _ = Simulator(plan, threads=1).run({"image": images})
    for name, array in expected.items():
        assert sqnr_db(array, outputs[name]) > 60, name
