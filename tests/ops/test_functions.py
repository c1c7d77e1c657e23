"""What is declared of functions of one tensor, against ONNX Runtime and the ONNX specification."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from intact.ops.functions import FUNCTIONS, Option, Unary
from tests.models import ModelBuilder

OPERATORS = [each for each in FUNCTIONS.values() if each.is_operator]
VALUES = np.concatenate(
    [np.linspace(-30, 30, 601), np.linspace(-1, 1, 41), [-0.0, 1e-30, -1e-30, 1e30, -1e30, np.inf]]
).astype(np.float32)
OTHERS: dict[str, tuple[Option, ...]] = {
    "Celu": (0.7,),
    "Elu": (0.5,),
    "Gelu": ("tanh",),
    "HardSigmoid": (0.3, 0.4),
    "LeakyRelu": (-0.3,),
    "Selu": (1.5, 0.8),
    "Shrink": (0.7, 0.2),
    "Swish": (1.5,),
    "ThresholdedRelu": (0.25,),
}
"""Options other than the defaults."""
CASES = [(each, ()) for each in OPERATORS] + [(FUNCTIONS[n], o) for n, o in OTHERS.items()]


def test_all_that_have_options_are_tried_with_others() -> None:
    assert set(OTHERS) == {each.name for each in OPERATORS if each.defaults}


@pytest.mark.parametrize(("declared", "options"), CASES, ids=str)
def test_it_computes_what_the_runtime_does(declared: Unary, options: tuple[Option, ...]) -> None:
    b = ModelBuilder(opset=max(22, declared.since))
    named: dict[str, Any] = dict(zip(declared.defaults, options, strict=False))
    b.output(b.node(declared.name, b.input("x", ["n"]), out="y", **named), ["n"])
    session = onnxruntime.InferenceSession(b.build().SerializeToString())
    with np.errstate(all="ignore"):
        expected = session.run(None, {"x": VALUES})[0]
    found = declared(VALUES, *options)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("declared", OPERATORS, ids=str)
def test_defaults_and_opsets_are_those_of_onnx(declared: Unary) -> None:
    newest = onnx.defs.get_schema(declared.name, max(22, declared.since))
    defaults = {
        name: onnx.helper.get_attribute_value(newest.attributes[name].default_value)
        for name in declared.defaults
    }
    words = {name: v.decode() if isinstance(v, bytes) else v for name, v in defaults.items()}
    assert words == pytest.approx(dict(declared.defaults))
    history = onnx.defs.get_all_schemas_with_history()
    named = [each for each in history if each.name == declared.name and not each.domain]
    assert declared.since == max(11, min(each.since_version for each in named))


@pytest.mark.parametrize("declared", FUNCTIONS.values(), ids=str)
def test_no_result_leaves_the_declared_range(declared: Unary) -> None:
    found = declared(VALUES)
    known = found[~np.isnan(found)]
    assert known.min() >= declared.low
    assert known.max() <= declared.high


@pytest.mark.parametrize("declared", FUNCTIONS.values(), ids=str)
def test_any_shape_comes_back(declared: Unary) -> None:
    for shape in ((), (0,), (2, 3)):
        assert declared(np.full(shape, 0.5, np.float32)).shape == shape
    assert pickle.loads(pickle.dumps(declared)) is declared
