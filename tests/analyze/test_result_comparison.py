"""What differs between results: decisions, errors, cost, accuracy, and what is not comparable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.analyze import comparison_text
from intact.analyze.comparison import ComparedNode, Comparison
from intact.analyze.result_comparison import load_results
from intact.errors import DataError, UsageError
from intact.results.result import Result
from intact.search.cost.kinds import plan_costs
from tests.images import Images
from tests.models import ModelBuilder
from tests.reports import EVIL, evil_model, samples

Made = Mapping[str, Result]


@pytest.fixture(scope="module")
def made(digits_model: Path, digits_calib: Images) -> Made:
    """Results of one model: the usual one, and each with one thing changed."""
    data = {"image": digits_calib.image[:40]}

    def quantized(**options: Any) -> Result:
        return intact.quantize(digits_model, data, preset="fast", **options)

    return {
        "usual": quantized(),
        "again": quantized(),
        "narrow": quantized(weight_bits=4),
        "partly": quantized(keep_float=["Gemm"]),
        "percentile": quantized(method="percentile", method_options={"percentile": 95}),
        "tflite": quantized(target="tflite"),
        "micro": quantized(target="tflite-micro"),
    }


def compared(made: Made, *names: str, **options: Any) -> Comparison:
    options = {"errors": False, **options}
    return intact.compare({name: made[name] for name in names}, **options)


def node(found: Comparison, op_type: str) -> ComparedNode:
    return next(each for each in found.nodes if each.op_type == op_type)


def labelled(images: Images, count: int) -> dict[str, npt.NDArray[Any]]:
    return {"image": images.image[:count], "labels": images.labels[:count]}


def test_equal_results_do_not_differ(made: Made) -> None:
    found = compared(made, "usual", "again", errors=True)
    assert found.differing == ()
    assert found.shared == len(found.nodes) > 0
    assert comparison_text.decisions(found).lines[0].startswith("decisions: the same in all")
    first, second = found.results
    assert first.errors == second.errors is not None
    assert not comparison_text.layers(found).rows


def test_widths_are_found_and_priced(made: Made) -> None:
    found = compared(made, "usual", "narrow")
    conv = node(found, "Conv")
    weight = next(tensor for tensor in conv.tensors if tensor.role == "weight")
    assert "bits" in weight.differs
    assert [each.bits for each in weight.each if each is not None] == [8, 4]
    wide, narrow = found.results
    assert narrow.weight_bits == {4: sum(wide.weight_bits.values())}
    assert narrow.cost["bitops"] == wide.cost["bitops"] / 2
    assert narrow.cost["bytes"] < wide.cost["bytes"]
    rows = comparison_text.decisions(found).rows
    assert ("weight", "bits", "8 bits", "4 bits") in {tuple(row[:4]) for row in rows}


def test_float_nodes_matter_most_and_have_a_reason(made: Made) -> None:
    found = compared(made, "usual", "partly")
    gemm = node(found, "Gemm")
    assert gemm in found.differing[: found.counts()["computes"]]
    assert gemm.own[0] == "computes"
    rows = comparison_text.decisions(found).rows
    assert rows[0][:2] == ("node", "computes")
    assert "float: kept float as asked (--keep-float Gemm)" in {row[3] for row in rows}
    assert found.results[1].quantized == found.results[0].quantized - found.counts()["computes"]


def test_methods_and_scales_are_found(made: Made) -> None:
    found = compared(made, "usual", "percentile")
    assert {"method", "scale"} <= found.counts().keys()
    assert "bits" not in found.counts()
    places = [
        tensor for each in found.nodes for tensor in each.tensors if "scale" in tensor.differs
    ]
    assert places
    for tensor in places:
        one, other = tensor.each
        assert one is not None
        assert other is not None
        assert tensor.role != "bias"
        if one.channels == other.channels == 1:
            assert tensor.ratios[1] == pytest.approx(other.scale[0] / one.scale[0], rel=1e-5)


def test_targets_are_compared_in_what_they_share(made: Made) -> None:
    found = compared(made, "usual", "tflite")
    assert any("the targets differ" in remark for remark in found.remarks)
    assert found.counts()["codes"] > 0  # uint8 and int8
    kinds = {kind for each in found.nodes for tensor in each.tensors for kind in tensor.differs}
    assert "codes" in kinds


def test_layers_that_lose_more_are_listed_first(made: Made, digits_test: Images) -> None:
    found = compared(made, "usual", "narrow", errors=True, data=labelled(digits_test, 40))
    rows = comparison_text.layers(found).rows
    losses = [float(row[-1]) for row in rows]
    assert losses == sorted(losses)
    assert losses[0] < -5
    assert not found.is_drawn


def test_accuracies_are_compared_on_the_same_samples(made: Made, digits_test: Images) -> None:
    data = labelled(digits_test, 200)
    found = compared(made, "usual", "percentile", data=data)
    evaluated = [intact.evaluate(made[name], data) for name in ("usual", "percentile")]
    for result, alone in zip(found.results, evaluated, strict=True):
        assert result.measured is not None
        assert alone.accuracy is not None
        assert result.measured.top1 == alone.accuracy.top1
        assert result.measured.latency_ms is None
    first, second = (result.measured for result in found.results)
    assert first is not None
    assert second is not None
    assert first.change is None
    assert second.change is not None
    assert first.top1 is not None
    assert second.top1 is not None
    assert second.change.difference == pytest.approx(second.top1[1] - first.top1[1])
    assert second.change.low <= second.change.difference <= second.change.high


def test_latency_is_measured_where_it_can_be(made: Made, digits_test: Images) -> None:
    data = {"image": digits_test.image[:20]}
    found = compared(made, "usual", "tflite", data=data, latency=True, batch=4)
    first, second = (result.measured for result in found.results)
    assert first is not None
    assert second is not None
    assert first.latency_ms is not None
    assert first.latency_ms[1] > 0
    assert second.latency_ms is not None  # in its own runtime, by one sample
    assert second.latency_batch == 1
    found = compared(made, "usual", "micro", data=data, latency=True, batch=4)
    assert any("no latency of micro" in remark for remark in found.remarks)


def test_different_models_say_so() -> None:
    def model(channels: int, *, extra: bool) -> onnx.ModelProto:
        b = ModelBuilder(seed=channels)
        x = b.node("Conv", b.input("x", ["N", 3, 8, 8]), b.weight(channels, 3, 1, 1), name="conv")
        x = b.node("Relu", x, name="relu")
        b.output(b.node("Sigmoid", x, name="extra") if extra else x, ["N", channels, 8, 8])
        return b.build()

    data = samples()
    one = intact.quantize(model(4, extra=False), data, preset="fast")
    other = intact.quantize(model(6, extra=True), data, preset="fast")
    found = intact.compare([one, other])
    assert [each.name for each in found.nodes] == ["conv", "relu", "extra"]
    assert found.shared == 2
    assert found.nodes[-1].own == ("node",)
    assert found.nodes[0].weights == (0, 1)
    assert "weights" in found.nodes[0].own
    assert any("share 2 of 3 nodes" in remark for remark in found.remarks)
    assert [result.name for result in found.results] == ["onnxruntime", "onnxruntime (2)"]


@pytest.mark.parametrize(("shares", "said"), [(True, "the same"), (False, "no layer is in two")])
def test_layers_that_no_two_results_have_are_not_the_same(shares: bool, said: str) -> None:
    def model(name: str) -> onnx.ModelProto:
        b = ModelBuilder(seed=1)
        x = b.input("x", ["N", 3, 8, 8])
        b.output(b.node("Conv", x, b.weight(4, 3, 1, 1), name=name), ["N", 4, 8, 8])
        return b.build()

    names = ("conv", "conv" if shares else "other")
    found = intact.compare([intact.quantize(model(n), samples(), preset="fast") for n in names])
    assert said in comparison_text.layers(found).lines[0]


def test_one_result_that_does_not_take_the_data_is_a_remark(made: Made) -> None:
    other = intact.quantize(evil_model(), samples(), preset="fast")
    data = {"image": np.zeros((4, 3, 8, 8), np.float32)}
    found = intact.compare({"usual": made["usual"], "other": other}, data=data)
    assert found.results[0].errors is None
    assert found.results[1].errors is not None
    assert any(remark.startswith("usual was not run: ") for remark in found.remarks)
    with pytest.raises(DataError, match="image"):
        intact.compare({"usual": made["usual"], "again": made["again"]}, data=data)


def test_names_tell_folders_apart(made: Made, tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        made["usual"].save(tmp_path / part / "out")
    folders = [tmp_path / "a" / "out", tmp_path / "b" / "out"]
    assert list(load_results(folders)) == ["a/out", "b/out"]
    assert list(load_results([folders[0], folders[0]])) == ["out", "out (2)"]
    assert list(load_results([tmp_path / "a", folders[1]])) == ["a/out", "b/out"]


def test_too_few_results_and_iterators_are_refused(made: Made) -> None:
    with pytest.raises(UsageError, match=r"1 result to compare; name the folders of two"):
        intact.compare([made["usual"]])
    batches: Iterator[Any] = iter([np.zeros((1, 1, 8, 8), np.float32)])
    with pytest.raises(UsageError, match="an iterator gives once"):
        intact.compare([made["usual"], made["again"]], data=batches)


def test_json_is_finite_and_names_what_differs(made: Made) -> None:
    found = compared(made, "usual", "narrow", errors=True).to_json()
    assert found["counts"]["bits"] > 0
    assert found["is_drawn"] is True
    assert {"differs", "own", "tensors"} <= found["nodes"][0].keys()
    assert json.loads(json.dumps(found, allow_nan=False))


def test_hundreds_of_nodes_with_odd_names_are_compared() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["N", 3, 8, 8]), 3, 1, kernel=1)
    for index in range(399):
        name = f"{EVIL}[bold]{index}"
        if index % 2:
            x = b.node("MaxPool", x, name=name, kernel_shape=[1, 1])
        else:
            x = b.node("Sigmoid", x, name=name)
    b.output(x, ["N", 1, 8, 8])
    data = samples(2)
    each = [
        intact.quantize(b.build(), data, method=method, preset="fast")
        for method in ("minmax", "mse")
    ]
    found = intact.compare(each, errors=False)
    assert found.shared == 400
    assert len(comparison_text.decisions(found).rows) < 20  # those alike are one row


def test_costs_of_a_plan_are_those_of_a_search(made: Made) -> None:
    from intact.search.cost import make_cost
    from intact.search.space import Space

    plan = made["usual"].plan
    feeds = {"image": np.zeros((1, 1, 8, 8), np.float32)}
    space = Space.of(plan.graph, plan.target, allow_float=False)
    for name, cost in plan_costs(plan, feeds).items():
        assert cost == make_cost(name, space, feeds).of(space.default)


def test_outputs_are_listed_without_errors_of_layers(made: Made, digits_test: Images) -> None:
    data = labelled(digits_test, 20)
    table = comparison_text.figures(compared(made, "usual", "narrow", data=data))
    assert any(row[0].startswith("SQNR of ") for row in table.rows)


def test_a_latency_is_of_drawn_inputs_where_there_are_no_data(made: Made) -> None:
    found = compared(made, "usual", "narrow", latency=True)
    assert found.is_drawn
    assert any("inputs are drawn" in remark for remark in found.remarks)
    assert not compared(made, "usual", "narrow").is_drawn
