"""Quantizers that do not say their range: weights show it, or a user gives it."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.simulate import Simulator
from intact.errors import UsageError
from intact.formats.onnx_qdq.read import read_qdq
from intact.plan import Overrides, QuantizedGraph, quantization_points
from intact.targets import load_target
from tests.formats.onnx_qdq.pairs import read, session
from tests.formats.onnx_qdq.trained import saved_net
from tests.models import random_inputs

ORT = load_target("onnxruntime")


def said(plan: QuantizedGraph) -> str:
    return " ".join(str(note) for note in plan.notes)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7])
def test_weights_show_the_width_that_a_file_leaves_out(bits: int) -> None:
    """The largest code of a channel is one beyond the range, which training clips."""
    saved, trained = saved_net(bits), saved_net(bits, "clips")
    plan = read(saved)
    widths = {p.config.bits for p in quantization_points(plan) if p.is_constant}
    assert widths == {bits}
    assert "does not say the ranges" in said(plan)
    assert "--weight-bits" in said(plan)
    feeds = dict(random_inputs(saved, batch=3))
    found = Simulator(plan, threads=1).run(feeds)[0]["y"]
    wanted = session(trained).run(None, feeds)[0]
    assert (np.abs(found - wanted) < 1e-4).mean() > 0.99


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_widths_that_a_file_leaves_out_can_be_given(factor: float) -> None:
    """Those of activations cannot be seen; nor can those of weights whose scales were learned."""
    saved = saved_net(4, activations=4, factor=factor)
    trained = saved_net(4, "clips", activations=4, factor=factor)
    feeds = dict(random_inputs(saved, batch=3))
    wanted = session(trained).run(None, feeds)[0]
    asked = Overrides(weight_bits=4, activation_bits=4, bits={"conv0.input": 8})
    plan = read_qdq(saved, ORT, asked)
    found = Simulator(plan, threads=1).run(feeds)[0]["y"]
    assert (np.abs(found - wanted) < 1e-4).mean() > 0.99
    assert "does not say" not in said(plan)
    as_eight = Simulator(read(saved), threads=1).run(feeds)[0]["y"]
    assert (np.abs(as_eight - wanted) < 1e-4).mean() < 0.95
    assert "does not say the ranges" in said(read(saved))
    with pytest.raises(UsageError, match="no such node"):
        read_qdq(saved, ORT, Overrides(bits={"conv9": 8}))


def test_weights_of_eight_bits_are_no_others() -> None:
    for factor in (1.0, 0.7):
        plan = read(saved_net(8, factor=factor))
        assert {p.config.bits for p in quantization_points(plan)} == {8}
        assert "ranges" not in said(plan)
