"""Codes that convolutions read without a sign."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from intact.engines.integer import IntegerEngine
from intact.program import Program
from intact.program.lower import lower
from intact.program.operations import BatchMatMul, Convolution
from intact.program.passes.encodings import unsigned_inputs
from intact.targets import load_target
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrated


def programs() -> tuple[Program, Program, dict[str, np.ndarray]]:
    """One network for hardware that takes signed codes, and for hardware that does not."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), name="one", out="one_out")
    pooled = b.node("MaxPool", x, name="pool", kernel_shape=[2, 2], strides=[2, 2], out="pooled")
    x = b.node("Conv", pooled, b.weight(4, 4, 1, 1), name="two", out="two_out")
    x = b.node("Conv", pooled, b.weight(4, 4, 1, 1), name="three", out="three_out")
    y = b.node("Conv", pooled, b.weight(4, 4, 1, 1), name="four", out="four_out")
    x = b.node("Add", x, y, name="add", out="sum")
    x = b.node("Flatten", b.node("GlobalAveragePool", x, out="mean"))
    b.output(b.node("Gemm", x, b.weight(3, 4), transB=1, out="logits"))
    model = b.build()
    first, second = (lower(calibrated(model, t)) for t in ("openvino", "openvino-avx2"))
    return first, second, random_inputs(model, batch=3, seed=4)


def signs(program: Program) -> dict[str, bool]:
    """Whether the codes of each tensor have a sign."""
    return {
        tensor.value: tensor.encoding.quant_min < 0
        for step in program.steps
        for tensor in step.outputs
        if tensor.encoding is not None
    }


def test_what_convolutions_read_is_unsigned_also_through_moves() -> None:
    first, second, _ = programs()
    assert all(signs(first).values())
    found = signs(second)
    assert not any(found[name] for name in ("image", "one_out", "pooled"))
    assert found["mean"]
    assert found["sum"]
    for step in second.steps:
        if isinstance(step.operation, Convolution):
            data = step.activations[0].encoding
            assert data is not None
            assert (data.quant_min, data.quant_max) == (0, 255)
            assert data.zero_point.item() == 128


def test_averages_are_computed_from_codes_with_a_sign() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 4, 8, 8]), b.weight(4, 4, 1, 1), out="one")
    x = b.node("AveragePool", x, kernel_shape=[2, 2], out="average")
    b.output(b.node("Conv", x, b.weight(4, 4, 1, 1)))
    found = signs(lower(calibrated(b.build(), "openvino-avx2")))
    assert found["one"]
    assert not found["average"]


def test_unsigned_keeps_real_numbers() -> None:
    first, second, feeds = programs()
    runs = [IntegerEngine(program).run(feeds, ["image_quantized"]) for program in (first, second)]
    codes = [run.tensors["image_quantized"].astype(int) for run in runs]
    np.testing.assert_array_equal(codes[1], codes[0] + 128)


def products(*, beside: bool) -> Program:
    """A product of two activations, one of which a convolution may read as well."""
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 4, 8, 8]), b.weight(4, 4, 1, 1), out="one")
    x = b.node("MaxPool", x, kernel_shape=[1, 1], out="pooled")
    for name in ("product", "again"):
        b.output(b.node("MatMul", x, x, name=name, out=f"{name}_out"))
    if beside:
        b.output(b.node("Conv", x, b.weight(4, 4, 1, 1)))
    target = load_target("openvino-avx2")
    # Its own rule leaves such products in float, because they saturate.
    rules = tuple(r for r in target.rules if r.when is None or r.when.constant_weight is not False)
    return lower(calibrated(b.build(), replace(target, rules=rules)))


def test_the_right_side_of_a_product_of_activations_keeps_its_sign() -> None:
    program = products(beside=True)
    assert not signs(program)["pooled"]
    steps = [step for step in program.steps if isinstance(step.operation, BatchMatMul)]
    sides = [[each.encoding for each in step.activations] for step in steps]
    ends = [[each.quant_min for each in pair if each is not None] for pair in sides]
    assert ends == [[0, -128], [0, -128]]
    assert steps[0].inputs[1] is steps[1].inputs[1], "converted once"


def test_pairs_saturate_alike_whoever_else_reads_a_side() -> None:
    feeds = {"image": 4 * np.random.default_rng(4).normal(size=(3, 4, 8, 8)).astype(np.float32)}
    alone, beside = (IntegerEngine(products(beside=each)) for each in (False, True))
    expected, found = (engine.run(feeds).outputs for engine in (alone, beside))
    assert alone.overflows["product"].overflows > 0
    np.testing.assert_array_equal(found["product_out"], expected["product_out"])


def test_nothing_changes_where_signs_do_not_matter() -> None:
    first, second, _ = programs()
    assert unsigned_inputs(first) is first
    assert unsigned_inputs(second) is second
