"""What the runtime computes in float although the plan says integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.errors import ExportError
from intact.formats.onnx_qdq.executed import float_leftovers
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.write import write_qdq
from intact.graph import normalize
from tests.models import ModelBuilder, custom_domain, random_inputs, residual_net
from tests.plans import calibrated, own_target

pytestmark = pytest.mark.runtime_fact("onnxruntime")

OPS = '[[op]]\nops = ["Conv", "Tanh", "Relu"]\n'
MOVE = '[[op]]\nops = ["Reshape", "Transpose", "MaxPool"]\nscales = "output_follows_input"\n'


def leftovers(b: ModelBuilder, folder: Path, rules: str) -> dict[str, str]:
    plan = calibrated(b.build(), own_target(folder, rules))
    quantized = [name for name, decision in plan.decisions.items() if decision.quantized]
    assert quantized
    return float_leftovers(write_qdq(plan).model, quantized)


def image(b: ModelBuilder) -> str:
    x = b.input("x", ["batch", 4, 8, 8])
    return b.node("Conv", x, b.weight(4, 4, 1, 1), name="conv")


def test_movers_of_codes_are_integer_work(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("MaxPool", image(b), kernel_shape=[2, 2], name="pool")
    x = b.node("Transpose", x, perm=[0, 3, 1, 2], name="turn")
    x = b.node("Reshape", x, b.ints(0, 4, 7, 7), name="shape")
    b.node("Conv", x, b.weight(2, 4, 1, 1), out="y", name="last")
    b.output("y")
    assert leftovers(b, tmp_path, OPS + MOVE) == {}


def test_a_mover_of_floats_is_not(tmp_path: Path) -> None:
    """Different scales on both sides of a MaxPool: the runtime has to go through floats."""
    b = ModelBuilder()
    x = b.node("MaxPool", image(b), kernel_shape=[2, 2], name="pool")
    b.node("Conv", x, b.weight(2, 4, 1, 1), out="y", name="last")
    b.output("y")
    free = '[[op]]\nops = ["MaxPool"]\n[calibration]\nmethod = "mse"\n'
    assert leftovers(b, tmp_path, OPS + free) == {"pool": "MaxPool"}


def test_operators_without_integer_kernel_are_found(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Tanh", image(b), name="tanh")
    b.node("Conv", x, b.weight(2, 4, 1, 1), out="y", name="last")
    b.output("y")
    assert leftovers(b, tmp_path, OPS) == {"tanh": "Tanh"}


def test_a_symmetric_relu_runs_in_float() -> None:
    """Measured (facts on the runtimes): the runtime fuses a Relu only at the lowest code."""
    b = ModelBuilder()
    x = b.node("Relu", image(b), name="relu")
    b.node("Conv", x, b.weight(2, 4, 1, 1), out="y", name="last")
    b.output("y")
    plan = calibrated(b.build(), "tensorrt")
    found = float_leftovers(write_qdq(plan).model, ["conv", "relu", "last"])
    assert "conv" in found


def test_only_the_asked_nodes_are_reported() -> None:
    plan = calibrated(residual_net(), "tensorrt")
    assert float_leftovers(write_qdq(plan).model, []) == {}


def test_errors_are_one_line() -> None:
    with pytest.raises(ExportError) as refused:
        QdqRuntime(normalize(custom_domain()).model)
    runtime = QdqRuntime(write_qdq(calibrated(residual_net())).model, threads=1)
    with pytest.raises(ExportError) as failed:
        runtime.run({"image": np.zeros((1, 2, 8, 8), np.float32)})
    for caught in (refused, failed):
        assert "\n" not in str(caught.value)


def test_handing_out_integers_changes_no_output() -> None:
    exported = write_qdq(calibrated(residual_net()))
    feeds = dict(random_inputs(residual_net()))
    plain, nothing = QdqRuntime(exported.model, threads=1).run(feeds)
    watched, integers = QdqRuntime(exported.model, exported.codes, threads=1).run(feeds)
    assert nothing == {}
    assert set(integers) == set(exported.codes)
    assert all(array.dtype == np.uint8 for array in integers.values())
    np.testing.assert_array_equal(plain["logits"], watched["logits"])
