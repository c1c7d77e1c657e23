"""A HardSwish of codes is a sum and a product, of which the engine knows every code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import intact
from intact.engines.simulate import Simulator
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides, QuantizedGraph
from intact.results.result import Result
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned


def net() -> onnx.ModelProto:
    """Convolutions with HardSwishes between them and one whose result is an output."""
    b = ModelBuilder()
    x = b.input("image", ["n", 4, 8, 8])
    for name in ("first", "second"):
        x = b.node("Conv", x, b.weight(4, 4, 1, 1), name=f"{name}_conv")
        x = b.node("HardSwish", x, name=name)
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), name="last_conv", out="y")
    b.output("y", ["n", 4, 8, 8])
    return b.build()


def feeds(scale: float, seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {"image": random.normal(0, scale, (8, 4, 8, 8)).astype(np.float32)}


def plan_of(scale: float, overrides: Overrides | None = None) -> QuantizedGraph:
    return calibrate(planned(net(), overrides=overrides), feeds(scale))


@pytest.mark.runtime_fact
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0, 10.0, 100.0])
def test_every_code_is_that_of_the_engine(scale: float) -> None:
    plan = plan_of(scale)
    found = verify_qdq(plan, write_qdq(plan), [feeds(scale, 1), feeds(2 * scale, 2)])
    layers = {layer.end.split(".")[0]: layer for layer in found.layers}
    assert {"first", "second"} <= layers.keys()
    assert sum(layer.mismatches for layer in found.layers) == 0


def test_the_runtime_fuses_both_operators() -> None:
    model = write_qdq(plan_of(1.0)).model
    kinds = [node.op_type for node in model.graph]
    assert "HardSwish" not in kinds
    assert (kinds.count("Add"), kinds.count("Mul")) == (2, 2)
    from intact.formats.onnx_qdq.executed import profile_kernels

    kernels = [each.op_type for each in profile_kernels(model, feeds(1.0), runs=1, threads=1)]
    assert (kernels.count("QLinearAdd"), kernels.count("QLinearMul")) == (2, 2)
    assert "HardSigmoid" not in kernels


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_the_outputs_are_those_of_the_function(scale: float) -> None:
    plan = plan_of(scale)
    written = QdqRuntime(write_qdq(plan).model, threads=1).run(feeds(scale, 1))[0]["y"]
    simulated = Simulator(plan, threads=1).run(feeds(scale, 1))[0]["y"]
    assert sqnr_db(simulated, written) > 30


def test_a_float_hard_swish_and_one_of_fewer_bits_stay_as_they_are() -> None:
    kept = write_qdq(plan_of(1.0, Overrides(keep_float=("first",)))).model
    assert [n.name for n in kept.graph if n.op_type == "HardSwish"] == ["first"]
    narrow = plan_of(1.0, Overrides(bits={"second": 6}))
    written = write_qdq(narrow)
    assert [n.name for n in written.model.graph if n.op_type == "HardSwish"] == ["second"]
    found = verify_qdq(narrow, written, [feeds(1.0, 1)])
    assert sum(layer.mismatches for layer in found.layers) == 0


def test_what_is_written_reads_back_as_a_plan(tmp_path: Path) -> None:
    model = ir.to_proto(write_qdq(plan_of(1.0)).model)
    result = intact.read_quantized(model)
    kinds = [node.op_type for node in result.plan.graph.nodes]
    assert kinds.count("HardSwish") == 2
    assert "Add" not in kinds
    found = verify_qdq(result.plan, result.exported, [feeds(1.0, 2)])
    assert sum(layer.mismatches for layer in found.layers) == 0
    result.save(tmp_path / "out")
    loaded = Result.load(tmp_path / "out")
    found = verify_qdq(loaded.plan, loaded.exported, [feeds(1.0, 3)])
    assert sum(layer.mismatches for layer in found.layers) == 0
    given = feeds(1.0, 1)
    again = QdqRuntime(result.exported.model, threads=1).run(given)[0]["y"]
    first = QdqRuntime(write_qdq(plan_of(1.0)).model, threads=1).run(given)[0]["y"]
    np.testing.assert_array_equal(again, first)
