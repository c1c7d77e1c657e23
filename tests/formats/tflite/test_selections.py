"""Whole nets that end in places or selections of codes, in LiteRT with both kinds of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import intact
from intact.errors import ExportError
from intact.formats.base.format import Deployed, Io
from intact.formats.registry import FORMATS
from intact.formats.tflite.read import read_tflite
from intact.formats.tflite.run import TfliteRuntime
from intact.targets import load_target
from tests.formats.tflite.files import operators_of
from tests.models import ModelBuilder
from tests.plans import planned

pytest.importorskip("ai_edge_litert")

DATA = {"x": np.random.default_rng(0).normal(size=(8, 3, 6, 6)).astype(np.float32)}


def net(form: str, *, floats: bool = False, **attributes: Any) -> Any:
    """A convolution, and what selects from its results; in float where an Erf is between."""
    b = ModelBuilder(17)
    x = b.node("Conv", b.input("x", ["batch", 3, 6, 6]), b.weight(5, 3, 3, 3))
    x = b.node("Erf", x, name="float") if floats else x
    if form == "TopK":
        node = helper.make_node("TopK", [x, b.ints(3)], ["most", "at"], "select", **attributes)
        b.nodes.append(node)
        results = ["most", "at"]
    elif form == "Pad":
        x = b.node("Pad", x, b.ints(0, 0, 1, 2, 0, 0, 1, 0), b.scalar(0.37), name="select")
        results = [b.node("Conv", x, b.weight(2, 5, 2, 2))]
    else:
        results = [b.node(form, x, name="select", **attributes)]
    for each in results:
        b.outputs.append(helper.make_empty_tensor_value_info(each))
    return b.build()


IN_CODES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("ArgMax", {"axis": 1, "keepdims": 0}, ["CONV_2D", "ARG_MAX"]),
    ("ArgMax", {"axis": 1}, ["CONV_2D", "ARG_MAX", "RESHAPE"]),
    ("ArgMin", {"axis": 3, "keepdims": 0}, ["CONV_2D", "ARG_MIN", "TRANSPOSE"]),
    ("TopK", {"axis": -1}, ["CONV_2D", "TRANSPOSE", "TOPK_V2", "CAST"]),
    ("TopK", {"axis": 1}, ["CONV_2D", "TOPK_V2", "CAST", "TRANSPOSE", "TRANSPOSE"]),
    ("Pad", {}, ["CONV_2D", "PADV2", "CONV_2D"]),
]
"""What is written of codes alone, with channels last."""


@pytest.mark.parametrize("target", ["tflite", "tflite-xnnpack", "tflite-16x8"])
@pytest.mark.parametrize(("form", "attributes", "operators"), IN_CODES)
def test_selections_are_of_codes(
    form: str, attributes: dict[str, Any], operators: list[str], target: str
) -> None:
    made = intact.quantize(net(form, **attributes), DATA, target=target)
    # No kernel compares codes of 16 bits.
    if target == "tflite-16x8" and form.startswith("Arg"):
        operators = ["CONV_2D", "DEQUANTIZE", *operators[1:]]
    content = FORMATS["tflite"].writer.write(made.plan, Io.INT8).files["model.int8.tflite"]  # type: ignore[attr-defined]
    assert operators_of(content) == operators
    found = intact.verify(made, DATA)
    assert not any(each.mismatches for each in found.layers)
    assert not any(each.mismatches for each in found.outputs)


def test_the_smallest_are_found_among_floats() -> None:
    made = intact.quantize(net("TopK", axis=-1, largest=0), DATA, target="tflite")
    found = intact.verify(made, DATA)
    assert not any(each.mismatches for each in found.layers)
    assert not any(each.mismatches for each in found.outputs)


@pytest.mark.parametrize("form", ["ArgMax", "TopK"])
def test_floats_are_compared_as_floats(form: str) -> None:
    plan = planned(net(form, floats=True), "tflite")
    assert not plan.decisions["select"].quantized


@pytest.mark.parametrize("keeps", [0, 1])
def test_micro_gives_places_that_the_model_has_as_int64(keeps: int) -> None:
    pytest.importorskip("tflite_micro")
    made = intact.quantize(net("ArgMax", axis=1, keepdims=keeps), DATA, target="tflite-micro")
    for kernels in ("micro", "ref"):
        (found,) = intact.verify(made, DATA, kernels=kernels).outputs
        assert (found.values, found.mismatches) == (128, 0)
    (content,) = made.exports["tflite"].files.values()  # type: ignore[attr-defined]
    (in_file,) = TfliteRuntime(content).outputs.values()
    assert in_file.dtype == np.int32
    # Those who run it get what the model gives.
    deployed = Deployed(made.plan, made.exports["tflite"])
    (places,) = FORMATS["tflite"].runtime.run(deployed, DATA).values()  # type: ignore[union-attr]
    assert places.dtype == np.int64


@pytest.mark.parametrize(("form", "axis"), [("ArgMax", 3), ("TopK", 1)])
def test_micro_refuses_what_it_lacks_before_samples_are_read(form: str, axis: int) -> None:
    model = net(form, axis=axis) if form == "TopK" else net(form, axis=axis, keepdims=0)
    with pytest.raises(ExportError, match=r"'select': TensorFlow Lite Micro .*; cut them"):
        intact.quantize(model, iter([]), target="tflite-micro")
    notes = [str(note) for note in intact.inspect(model, target="tflite-micro").notes]
    assert any("'select': TensorFlow Lite Micro" in note for note in notes)


@pytest.mark.parametrize(("form", "attributes", "operators"), IN_CODES)
def test_a_written_file_is_read_and_written_alike(
    form: str, attributes: dict[str, Any], operators: list[str]
) -> None:
    made = intact.quantize(net(form, **attributes), DATA, target="tflite")
    content = FORMATS["tflite"].writer.write(made.plan, Io.INT8).files["model.int8.tflite"]  # type: ignore[attr-defined]
    plan = read_tflite(content, load_target("tflite"))
    again = FORMATS["tflite"].writer.write(plan, Io.INT8).files["model.int8.tflite"]  # type: ignore[attr-defined]
    # Places are int64 in ONNX and int32 in most files.
    extra = {"CAST", "TRANSPOSE"}
    found, wanted = (
        [n for n in each if n not in extra] for each in (operators_of(again), operators)
    )
    assert found == wanted
    codes = np.random.default_rng(1).integers(-128, 128, (2, 6, 6, 3)).astype(np.int8)
    first, second = (TfliteRuntime(each).run({"x": codes})[0] for each in (content, again))
    for one, other in zip(first.values(), second.values(), strict=True):
        np.testing.assert_array_equal(one, other)
