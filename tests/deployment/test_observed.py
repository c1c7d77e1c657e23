"""Tensors recorded on a device: names, layouts, numbers, faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from intact.engines.integer.engine import IntegerEngine
from intact.errors import DataError
from intact.formats.base.observed import verify_observed
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from tests.deployment.networks import images, plan_for, wrong
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

Dump = dict[str, npt.NDArray[Any]]

COUNT = 33
"""More than one batch of 16."""


def recorded(plan: QuantizedGraph, feeds: Dump, *, as_codes: bool = True) -> Dump:
    """What ONNX Runtime computes, by the names of the model's tensors, with its axes."""
    exported = write_qdq(plan)
    runtime = QdqRuntime(exported.model, exported.codes, threads=1)
    outputs, integers = runtime.run(feeds)
    dump: Dump = {}
    for end, codes in integers.items():
        node = plan.graph.node(end.node)
        values = node.outputs if end.direction == "output" else node.inputs
        value = values[end.slot]
        assert value is not None
        wide = codes.astype(np.int64)
        dump[str(value.name)] = codes if as_codes else plan.configs[end].dequantize(wide)
    return outputs | dump if not as_codes else dump


@pytest.fixture(scope="module")
def plan() -> QuantizedGraph:
    return plan_for("onnxruntime")


@pytest.fixture(scope="module")
def dump(plan: QuantizedGraph) -> Dump:
    return recorded(plan, images(COUNT))


def test_what_a_runtime_computes_is_what_the_engine_computes(
    plan: QuantizedGraph, dump: Dump
) -> None:
    found = verify_observed(plan, images(COUNT), dump, device="a board")
    assert found.runtime == "a board"
    assert found.samples == COUNT
    assert len(found.layers) == len(dump) >= 7
    assert {layer.tensor for layer in found.layers} >= {"stem_out", "pooled", "sum"}
    assert [layer.values for layer in found.layers if layer.tensor == "sum"] == [COUNT * 8 * 4 * 3]
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert found.not_compared == {}


def test_numbers_count_as_the_nearest_codes(plan: QuantizedGraph) -> None:
    feeds = images(4)
    numbers = recorded(plan, feeds, as_codes=False)
    numbers["image_quantized"] = numbers.pop("image")  # "image" is what was fed
    assert wrong(verify_observed(plan, feeds, numbers).layers) == []
    config = plan.input_config(plan.graph.node("pointwise"), 0)
    assert config is not None
    assert config.scale is not None
    for steps, count in ((0.4, 0), (0.6, 1), (3.0, 1), (np.nan, 1), (1e30, 1)):
        shifted = numbers["depthwise_out"].copy()
        shifted[2, 3, 1, 1] += np.float32(steps) * config.scale
        found = verify_observed(plan, feeds, numbers | {"depthwise_out": shifted})
        layer = next(each for each in found.end_to_end if each.tensor == "depthwise_out")
        assert layer.mismatches == count, steps
        assert layer.largest == {0.6: 1, 3.0: 3}.get(steps, layer.largest)


def test_one_wrong_value_is_one_mismatch_and_its_readers_compute_with_it(
    plan: QuantizedGraph, dump: Dump
) -> None:
    codes = dump["stem_out"].copy()
    codes[20, 3, 2, 2] ^= np.uint8(32)
    found = verify_observed(plan, images(COUNT), dump | {"stem_out": codes})
    layer = next(each for each in found.layers if each.tensor == "stem_out")
    assert (layer.mismatches, layer.largest) == (1, 32)
    # The layers behind were recorded as they should be, and do not follow from the wrong value.
    assert set(wrong(found.layers)) - {"stem_out"} <= {"pooled"}
    assert wrong(found.end_to_end) == ["stem_out"]


def test_a_few_tensors_are_enough(plan: QuantizedGraph, dump: Dump) -> None:
    found = verify_observed(plan, images(COUNT), {"sum": dump["sum"].astype(np.int32)})
    assert [(layer.tensor, layer.mismatches) for layer in found.layers] == [("sum", 0)]


def test_codes_outside_of_the_type_are_counted(plan: QuantizedGraph, dump: Dump) -> None:
    codes = dump["sum"].astype(np.int64)
    codes[0, 0, 0, 0] += 1000
    (layer,) = verify_observed(plan, images(COUNT), {"sum": codes}).layers
    assert (layer.mismatches, layer.largest) == (1, 1000)


# ---- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stem_out", "pooled", "sum", "image"])
def test_axes_are_told_apart_by_the_shape(plan: QuantizedGraph, dump: Dump, name: str) -> None:
    for array, layout in (
        (dump[name], "as in the model"),
        (dump[name].transpose(0, 2, 3, 1), "channels last"),
    ):
        (layer,) = verify_observed(plan, images(COUNT), {name: array}).layers
        assert (layer.mismatches, layer.layout) == (0, layout)


def cube() -> QuantizedGraph:
    """A plan of a layer whose channels are as many as its rows and columns."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 6, 6])
    x = b.node("Conv", x, b.weight(6, 3, 3, 3), b.weight(6), name="first", pads=[1] * 4, out="cube")
    b.output(b.conv(x, 6, 2), ["batch", 2, 6, 6])
    data = np.random.default_rng(2).normal(size=(8, 3, 6, 6)).astype(np.float32)
    return calibrate(planned(b.build()), {"image": data})


def test_where_both_layouts_fit_the_one_that_agrees_is_taken() -> None:
    plan = cube()
    feeds = {"image": np.random.default_rng(3).normal(size=(5, 3, 6, 6)).astype(np.float32)}
    codes = recorded(plan, feeds)["cube"]
    for array, layout in (
        (codes, "as in the model; channels last fits too"),
        (codes.transpose(0, 2, 3, 1), "channels last; as in the model fits too"),
    ):
        (layer,) = verify_observed(plan, feeds, {"cube": array}).layers
        assert (layer.mismatches, layer.layout) == (0, layout)


def test_a_batch_of_one_may_lack_its_axis(plan: QuantizedGraph) -> None:
    feeds = images(1)
    dump = recorded(plan, feeds)
    bare = {name: array[0] for name, array in dump.items()}
    last = {
        name: np.moveaxis(array, 0, -1) if array.ndim > 2 else array for name, array in bare.items()
    }
    for given in (bare, last):
        assert wrong(verify_observed(plan, feeds, given).layers) == []


@pytest.mark.parametrize(
    "shape", [(COUNT, 8, 3, 4), (COUNT - 1, 8, 4, 3), (8, 4, 3), (COUNT, 96), ()]
)
def test_shapes_that_fit_no_layout(plan: QuantizedGraph, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"'sum' has shape .*, the plan's \[33, 4, 3, 8\]"):
        verify_observed(plan, images(COUNT), {"sum": np.zeros(shape, np.uint8)})


# ---- names --------------------------------------------------------------------------------------


def test_a_misspelt_name_is_corrected(plan: QuantizedGraph, dump: Dump) -> None:
    with pytest.raises(DataError, match="'stem_ouť' is not in the plan; did you mean 'stem_out'"):
        verify_observed(plan, images(COUNT), {"stem_ouť": dump["stem_out"]})


def test_names_of_the_program_are_taken_too(plan: QuantizedGraph, dump: Dump) -> None:
    program = lower(plan)
    engine = IntegerEngine(program)
    names = [tensor.name for tensor in program.tensors() if not tensor.is_constant]
    everything = engine.run(images(COUNT), names).tensors
    found = verify_observed(plan, images(COUNT), everything)
    assert len(found.layers) == len(names) > len(dump)
    assert wrong(found.layers) == []


def test_what_is_fused_away_is_said_and_not_compared(plan: QuantizedGraph, dump: Dump) -> None:
    inside = str(plan.graph.node("stem").outputs[0].name)
    given = {inside: np.zeros(3), "sum": dump["sum"]}
    found = verify_observed(plan, images(COUNT), given)
    assert found.not_compared == {inside: "it exists only inside of a fused operation"}
    assert len(found.layers) == 1
    with pytest.raises(DataError, match="no recorded tensor can be compared"):
        verify_observed(plan, images(COUNT), {inside: np.zeros(3)})


def test_constants_twins_and_texts_are_refused(plan: QuantizedGraph, dump: Dump) -> None:
    weight = str(plan.graph.node("stem").inputs[1].name)  # type: ignore[union-attr]
    with pytest.raises(DataError, match="is a constant of the model"):
        verify_observed(plan, images(COUNT), {weight: np.zeros(3)})
    twins = {"image": dump["image"], "image_quantized": dump["image"]}
    with pytest.raises(DataError, match="'image' and 'image_quantized' are one tensor"):
        verify_observed(plan, images(COUNT), twins)
    with pytest.raises(DataError, match="'sum' is <U1"):
        verify_observed(plan, images(COUNT), {"sum": np.array(["a"])})
    with pytest.raises(DataError, match="no recorded tensor"):
        verify_observed(plan, images(COUNT), {})


def test_an_input_that_is_missing(plan: QuantizedGraph, dump: Dump) -> None:
    with pytest.raises(DataError, match="input 'image' is missing"):
        verify_observed(plan, {}, {"sum": dump["sum"]})
