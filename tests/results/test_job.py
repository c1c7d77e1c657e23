"""What is written where no format is named."""

from __future__ import annotations

from typing import Any

import pytest

import intact
from intact.formats.base.format import Io
from intact.graph import normalize
from intact.plan import Overrides
from intact.results.job import Deployment, Job, Planner
from intact.results.result import Result
from intact.targets import load_target
from tests.models import ModelBuilder, random_inputs


def quantized(target: str, last: str, **options: Any) -> Result:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 6, 6]), b.weight(8, 4, 3, 3), name="conv")
    b.node(last, x, out="y", name="last")
    b.output("y", ["batch", 8, 4, 4])
    net = b.build()
    return intact.quantize(
        net, random_inputs(net, batch=8), target=target, preset="fast", progress=None, **options
    )


@pytest.mark.parametrize("target", ["vta", "integer-pow2"])
def test_a_plan_of_integers_alone_is_written_as_such(target: str) -> None:
    result = quantized(target, "Relu")
    assert tuple(result.exports) == result.plan.provenance.formats == ("onnx_integer",)
    found = intact.verify(result)
    assert found.layers
    assert not any(layer.mismatches for layer in found.layers)


def test_a_plan_with_floats_is_written_in_the_first_format() -> None:
    result = quantized("vta", "Softmax")
    assert tuple(result.exports) == result.plan.provenance.formats == ("onnx_qdq",)


def test_a_format_that_is_named_is_written() -> None:
    assert tuple(quantized("vta", "Relu", formats=["onnx_qdq"]).exports) == ("onnx_qdq",)
    assert quantized("vta", "Relu", io="float").plan.provenance.io == Io.FLOAT


@pytest.mark.parametrize(("given", "expected"), [("conv.output", 7), ("*.output", 6)])
def test_widths_that_are_added_leave_those_that_are_given(given: str, expected: int) -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 6, 6]), b.weight(8, 4, 3, 3), name="conv")
    b.node("Relu", x, out="y", name="last")
    b.output("y", ["batch", 8, 4, 4])
    graph = normalize(b.build())
    planner = Planner(graph, load_target("integer-pow2"), Overrides(bits={given: 6}))
    job = Job.of(planner, [], Deployment(("onnx_integer",)))
    changed = job.with_bits({"conv.output": 8, "last.output": 7}).planner.overrides
    assert changed is not None
    bits = changed.resolved(graph).overrides.bits
    assert (bits["conv.output"], bits["last.output"]) == (6, expected)
