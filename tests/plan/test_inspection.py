"""The report before anything is run."""

from __future__ import annotations

from pathlib import Path

from intact.graph import normalize
from intact.plan import Overrides, build_plan
from intact.plan.inspection import NodeReport, inspect_plan
from intact.targets import load_target
from tests.models import ModelBuilder
from tests.plans import own_target


def model() -> ModelBuilder:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 8, 8]), b.weight(4, 4, 1, 1), name="conv")
    x = b.node("Flatten", b.node("Relu", x, name="relu"), name="flat")
    x = b.node("Gemm", x, b.weight(256, 3), b.weight(3), name="gemm")
    b.node("Softmax", x, out="y", name="soft")
    b.output("y")
    return b


def test_rows_and_counts() -> None:
    overrides = Overrides(weight_bits=4)
    inspection = inspect_plan(
        build_plan(normalize(model().build()), load_target("onnxruntime"), overrides)
    )
    rows = {row.node: row for row in inspection.nodes}
    assert list(rows) == ["conv", "relu", "flat", "gemm", "soft"]
    assert rows["conv"] == NodeReport(
        "conv", "Conv", True, 8, 4, "relu", "target onnxruntime computes Conv with integers"
    )
    assert (rows["relu"].activation_bits, rows["relu"].weight_bits) == (8, None)
    # Its result is float, so the width is that of what it reads, not of its weight.
    assert (rows["gemm"].activation_bits, rows["gemm"].weight_bits) == (8, 4)
    assert (rows["soft"].quantized, rows["soft"].activation_bits) == (False, None)
    counts = {"Conv": (1, 0), "Relu": (1, 0), "Flatten": (1, 0), "Gemm": (1, 0), "Softmax": (0, 1)}
    assert inspection.by_type == counts


def test_a_hidden_input_is_not_a_fusion(tmp_path: Path) -> None:
    rules = '[[op]]\nops = ["Conv", "Relu", "Flatten", "Gemm"]\n'
    inspection = inspect_plan(build_plan(normalize(model().build()), own_target(tmp_path, rules)))
    assert {row.fused_into for row in inspection.nodes} == {""}
