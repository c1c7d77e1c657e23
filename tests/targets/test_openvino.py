"""The OpenVINO targets, what ``[unsigned]`` may say, and 7-bit weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.data.sources import open_samples
from intact.engines.integer.engine import IntegerEngine
from intact.engines.simulate import Simulator
from intact.errors import TargetError
from intact.graph import normalize
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.program.lower import lower
from intact.targets import (
    Condition,
    DType,
    Target,
    TensorScheme,
    load_target,
    target_from_json,
    target_to_json,
)
from tests.models import ModelBuilder, random_inputs, run_model
from tests.plans import calibrated, config, conv, image, planned

ASYMMETRIC_WEIGHTS = """
format = 2
name = "mine"
extends = "openvino"
[weight]
dtype = "uint8"
quant_min = 0
quant_max = 255
symmetric = false
"""


def small(target: Target | str, weight_bits: int | None = None) -> QuantizedGraph:
    b = ModelBuilder()
    conv(b, b.node("Relu", conv(b, image(b), "one"), out="r"), "two")
    b.output("two_out")
    return planned(b.build(), target, Overrides(weight_bits=weight_bits))


def weight_range(plan: QuantizedGraph) -> tuple[int, int, int]:
    grid = config(plan, "one.input[1]").grid
    return grid.bits, grid.quant_min, grid.quant_max


def test_openvino() -> None:
    target = load_target("openvino")
    assert (target.activation.dtype, target.weight.dtype) == (DType.INT8, DType.INT8)
    assert target.activation.symmetric
    assert target.weight.symmetric
    assert target.bias.dtype is DType.FLOAT32
    assert target.formats[0] == "openvino"
    assert "Relu" in target.unsigned.after
    assert {"Add", "AveragePool", "Concat", "MaxPool", "Resize"} <= set(target.unsigned.through)
    assert (("Conv",), ("Add",)) in [fusion.pattern for fusion in target.fusions]


def test_weights_of_the_old_cpu_cannot_saturate_a_pair() -> None:
    target = load_target("openvino-avx2")
    arithmetic = target.arithmetic_for("Conv")
    assert arithmetic.pairs is not None
    most = target.activation.unsigned().quant_max
    limits = np.iinfo(np.int16)
    products = [2 * most * target.weight.quant_min, 2 * most * target.weight.quant_max]
    assert limits.min <= min(products) < max(products) <= limits.max
    base = load_target("openvino")
    *rules, activations = target.rules
    assert (tuple(rules), target.fusions, target.unsigned) == (
        base.rules,
        base.fusions,
        base.unsigned,
    )
    assert not activations.quantize  # of two activations neither has 7 bits
    assert activations.when == Condition(constant_weight=False)


@pytest.mark.parametrize(
    ("target", "bits", "expected"),
    [
        ("openvino", None, (8, -128, 127)),
        ("openvino", 7, (7, -64, 63)),
        ("openvino", 4, (4, -8, 7)),
        ("openvino-avx2", None, (7, -64, 63)),
        ("openvino-avx2", 8, (8, -128, 127)),
    ],
)
def test_weight_bits(target: str, bits: int | None, expected: tuple[int, int, int]) -> None:
    assert weight_range(small(target, bits)) == expected


@pytest.mark.parametrize(("bits", "expected"), [(None, (8, 0, 255)), (7, (7, 0, 127))])
def test_weight_bits_of_asymmetric_weights(
    tmp_path: Path, bits: int | None, expected: tuple[int, int, int]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ASYMMETRIC_WEIGHTS, encoding="utf-8")
    assert weight_range(small(load_target(path), bits)) == expected


def test_narrow_weights_of_few_bits_cause_no_doubt() -> None:
    """OpenVINO's are stored as 8 bits, so they have integer kernels."""
    for bits in (4, 7):
        assert not small("openvino", bits).notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("after = ['Reluu']", "[unsigned] after: unknown operator 'Reluu'"),
        ("after = ['Relu', 'Relu']", "Relu is listed twice"),
        ("after = ['Relu']\nthrough = ['Relu']", "[unsigned] has Relu in after and through"),
        ("through = ['Add']", "through has no effect without after"),
        ("before = ['Relu']", "unknown key 'before' in [unsigned]"),
        ("after = 'Relu'", "[unsigned] after is of type string"),
    ],
)
def test_contradictions(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'format = 2\nname = "mine"\nextends = "tensorrt"\n[unsigned]\n{text}\n', encoding="utf-8"
    )
    with pytest.raises(TargetError) as caught:
        load_target(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("base", "message"),
    [("onnxruntime", "these are asymmetric"), ("integer-pow2", "")],
)
def test_unsigned_is_for_symmetric_signed_activations(
    tmp_path: Path, base: str, message: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'format = 2\nname = "mine"\nextends = "{base}"\n[unsigned]\nafter = ["Relu"]\n',
        encoding="utf-8",
    )
    if message:
        with pytest.raises(TargetError, match=message):
            load_target(path)
    else:
        assert load_target(path).unsigned.after == ("Relu",)


def test_a_stored_target_without_unsigned_is_read() -> None:
    stored = target_to_json(load_target("tensorrt"))
    del stored["unsigned"]
    assert target_from_json(stored) == load_target("tensorrt")


@pytest.mark.parametrize(
    ("dtype", "bits", "expected"),
    [
        (DType.INT8, 8, (DType.UINT8, 0, 255)),
        (DType.INT8, 7, (DType.UINT8, 0, 127)),
        (DType.INT16, 16, (DType.UINT16, 0, 65535)),
        (DType.UINT8, 8, (DType.UINT8, 0, 200)),
    ],
)
def test_unsigned_scheme(dtype: DType, bits: int, expected: tuple[DType, int, int]) -> None:
    scheme = TensorScheme(dtype=dtype, bits=bits, quant_min=0, quant_max=200, symmetric=True)
    found = scheme.unsigned()
    assert (found.dtype, found.quant_min, found.quant_max) == expected
    assert found.bits == bits


def joined_net() -> onnx.ModelProto:
    """A Relu that a Concat joins with numbers of both signs, and a convolution reads too."""
    b = ModelBuilder()
    x = image(b)
    r = b.node("Relu", conv(b, x, "first"), out="r")
    joined = b.node("Concat", r, conv(b, x, "second"), axis=1, name="join")
    y = b.node("Conv", joined, b.weight(4, 8, 1, 1), name="last")
    b.node("Add", y, conv(b, r, "other"), out="y")
    b.output("y")
    return b.build()


@pytest.mark.runtime_fact("openvino")
def test_a_joined_relu_keeps_its_bit_and_every_bit_is_openvinos(tmp_path: Path) -> None:
    """By error and by [mqbench]'s rule; with one signed grid the outputs are further off."""
    pytest.importorskip("openvino")
    from intact.formats.openvino.verify import verify_openvino
    from intact.formats.openvino.write import write_openvino

    model = joined_net()
    feeds = random_inputs(model, batch=32, seed=7)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    errors = {}
    for choice in ("by_error", "always", "never"):
        path = tmp_path / f"{choice}.toml"
        path.write_text(
            'format = 2\nname = "own"\nextends = "openvino"\n'
            f'[unsigned]\nbeside_signed = "{choice}"\n'
        )
        plan = calibrated(model, load_target(path))
        highest = plan.configs[TensorEnd.parse("Relu_r.output[0]")].quant_max
        assert highest == (127 if choice == "never" else 255)
        found = verify_openvino(plan, write_openvino(plan), [feeds])
        assert sum(layer.mismatches for layer in found.layers) == 0
        assert "join.output[0]" in {layer.end for layer in found.layers}
        assert found.float_nodes == found.in_float == {}
        outputs = Simulator(plan).run(feeds)[0]["y"]
        errors[choice] = float(np.square(outputs - expected).mean())
    assert errors["by_error"] == errors["always"] < 0.9 * errors["never"]


@pytest.mark.parametrize("target", ["openvino-avx2", "openvino-mqbench"])
def test_no_pair_saturates_where_weights_have_seven_bits(target: str) -> None:
    """A product of two activations far from zero stays float: none of its factors has 7 bits."""
    b = ModelBuilder()
    x = b.input("x", ["N", 4, 16])
    product = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    b.output(b.node("MatMul", product, b.weight(4, 5)))
    model = b.build()
    feeds = {"x": np.random.default_rng(0).normal(30, 1, (8, 4, 16)).astype(np.float32)}
    plan = build_plan(normalize(model), load_target(target))
    samples = open_samples(feeds, plan.graph)
    statistics = collect(plan.graph, samples, required_tensors(plan), threads=1)
    plan = assign(plan, statistics, Method.of(plan.target, "minmax", "minmax"))
    (expected,) = run_model(model, feeds).values()
    (found,) = IntegerEngine(lower(plan), threads=1).run(feeds).outputs.values()
    assert sqnr_db(expected, found) > 30


@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("functions", [("Sigmoid",), ("Softplus", "Tanh")])
def test_a_product_with_its_own_function_is_part_of_the_kernel_before(
    functions: tuple[str, ...],
) -> None:
    """Codes of the factors would be two roundings more; those of the product are all there are."""
    from intact.formats.openvino.verify import verify_openvino
    from intact.formats.openvino.write import write_openvino

    b = ModelBuilder()
    x = gate = conv(b, image(b), "one")
    for op_type in functions:
        gate = b.node(op_type, gate)
    conv(b, b.node("Mul", x, gate, name="gated"), "two")
    b.output("two_out")
    plan = calibrated(b.build(), "openvino")
    found = verify_openvino(plan, write_openvino(plan), [random_inputs(b.build(), batch=4)])
    assert found.in_float == {}
    assert {layer.end for layer in found.layers} == {"one.input[0]", "two.input[0]"}
    assert sum(layer.mismatches for layer in found.layers) == 0
