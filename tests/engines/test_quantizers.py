"""SimQ's nodes compute what a config computes, bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from intact.config import PerTensor, Rounding, TensorQuantConfig, make_policy
from intact.engines.quantizer_nodes import QuantizerInputs, add_quantizer, fills_bytes
from intact.engines.session import make_session
from intact.graph.edit import Editor

Floats = npt.NDArray[np.float32]


def linear(
    rounding: Rounding, scale: float, offset: int = 0, bits: int = 8, low: int = 0
) -> TensorQuantConfig:
    return TensorQuantConfig(
        policy=make_policy(PerTensor(), symmetric=False),
        rounding=rounding,
        bits=bits,
        quant_min=low,
        quant_max=low + 2**bits - 1,
        scale=scale,
        offset=offset,
    )


def exponential(scale: float, low: int, high: int = 127) -> TensorQuantConfig:
    return TensorQuantConfig(
        policy=make_policy(PerTensor(), symmetric=True, exponential=True),
        bits=8,
        quant_min=low,
        quant_max=high,
        scale=scale,
    )


@cache
def compiled(
    rounding: Rounding, exponential_levels: bool, bits: int
) -> tuple[ort.InferenceSession, QuantizerInputs]:
    x = ir.Value(name="x", shape=ir.Shape(["n"]), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([x], [x], nodes=[], opset_imports={"": 17})
    editor = Editor(ir.Model(graph, ir_version=8))
    structure = exponential(1.0, -127) if exponential_levels else linear(rounding, 1.0, bits=bits)
    value = editor.value("x")
    result, names = add_quantizer(editor, value, structure, "q", switched=True)
    assert names.in_bytes == fills_bytes(structure)
    editor.model.graph.outputs[:] = [result]
    return make_session(editor.finish(), threads=1, fuses_quantizers=False), names


def simulated(config: TensorQuantConfig, values: Floats, *, enabled: bool = True) -> Floats:
    config.transition(config.state.ACTIVATED)
    bits = 8 if fills_bytes(config) else 16
    session, names = compiled(config.rounding, config.grid.exponential, bits)
    (result,) = session.run(None, {"x": values, **names.feeds(config, enabled=enabled)})
    return np.asarray(result, np.float32)


TIES = np.arange(-300, 300, dtype=np.float32) / 2
SPECIAL = np.array(
    [0, -0.0, 1e-45, -1e-45, 1e-38, 0.49999997, -0.49999997, 3e38, -3e38, np.inf, -np.inf],
    np.float32,
)


@pytest.mark.crossed
@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.1, 3.0e-39 * 1e3, 1e30])
@pytest.mark.parametrize(("offset", "low"), [(0, 0), (128, 0), (255, 0), (-3, -128)])
def test_ties_negatives_and_extremes(
    rounding: Rounding, scale: float, offset: int, low: int
) -> None:
    config = linear(rounding, scale, offset, low=low)
    with np.errstate(over="ignore"):
        values = np.concatenate([TIES * np.float32(scale), SPECIAL, TIES])
    np.testing.assert_array_equal(simulated(config, values), config.fake_quantize(values))


@pytest.mark.parametrize("rounding", Rounding)
@given(
    values=arrays.arrays(
        np.float32,
        64,
        elements=st.floats(-1e4, 1e4, width=32) | st.integers(-400, 400).map(lambda n: n / 2),
    ),
    scale=st.floats(2**-20, 2**10, width=32),
    bits=st.integers(2, 16),
    place=st.floats(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_any_values(
    rounding: Rounding, values: Floats, scale: float, bits: int, place: float
) -> None:
    config = linear(rounding, scale, round(place * (2**bits - 1)), bits)
    for scaled in (values, values * np.float32(scale)):
        np.testing.assert_array_equal(simulated(config, scaled), config.fake_quantize(scaled))


@pytest.mark.parametrize("low", [-127, 0])
@pytest.mark.parametrize("scale", [1.0, 0.007, 1e-30])
def test_logarithmic_levels(low: int, scale: float) -> None:
    config = exponential(scale, low)
    spread = np.exp(np.random.default_rng(0).uniform(-4, 8, 20_000)) * scale
    signs = np.random.default_rng(1).choice([-1, 1], spread.size)
    values = np.concatenate([(spread * signs).astype(np.float32), SPECIAL, np.zeros(3, np.float32)])
    np.testing.assert_array_equal(simulated(config, values), config.fake_quantize(values))


def test_the_switch_lets_floats_pass() -> None:
    values = np.concatenate([TIES / 7, SPECIAL])
    found = simulated(linear(Rounding.HALF_EVEN, 0.1), values, enabled=False)
    assert found.tobytes() == values.tobytes()
