"""A channel or token hundreds of times larger than the others is handled by what loses least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import intact
from intact.data.sources import open_samples
from intact.graph import normalize
from intact.improve.channels import observe_channels
from intact.improve.rewrite import gate
from intact.results.result import Result
from tests.models import ModelBuilder

SEEN = 2000.0
F = np.float32
CHANNELS, TOKENS, WIDTH = 12, 9, 16


def of_channels(factor: float, activation: str, at: Sequence[int] = (1,)) -> onnx.ModelProto:
    """Convolutions of which the second, or others, write one channel that is larger by a factor,
    which the next ones read with weights that are smaller by it."""
    build = ModelBuilder()
    x = build.input("x", ["n", 3, 8, 8])
    for number, inputs in enumerate([3, CHANNELS, CHANNELS, CHANNELS, CHANNELS, CHANNELS]):
        weight = build.random.normal(0, (2 / (9 * inputs)) ** 0.5, (CHANNELS, inputs, 3, 3))
        if number in at:
            weight[3] = np.abs(weight[3]) * factor
        if number - 1 in at:
            weight[:, 3] /= factor
        out = build.node("Conv", x, build.constant(weight.astype(np.float32)), pads=[1] * 4)
        if activation == "Relu":
            x = build.node("Relu", out)
        else:
            x = build.node("Mul", out, build.node("Sigmoid", out))
    build.node("GlobalAveragePool", x, out="y")
    build.output("y", ["n", CHANNELS, 1, 1])
    return build.build()


def of_tokens(factor: float) -> onnx.ModelProto:
    """Residual blocks along which one token keeps numbers that are larger by a factor."""
    build = ModelBuilder()
    random = build.random
    added = random.normal(0, 0.2, (1, TOKENS, WIDTH))
    added[0, 0] *= 5 * factor
    x = build.node(
        "Add", build.input("x", ["n", TOKENS, WIDTH]), build.constant(added.astype("f4"))
    )

    def normalized(value: str) -> str:
        ones = build.constant(np.ones(WIDTH, np.float32))
        return build.node("LayerNormalization", value, ones, axis=-1)

    for _ in range(2):
        wide = build.node("MatMul", normalized(x), build.weight(WIDTH, 64))
        x = build.node(
            "Add", x, build.node("MatMul", build.node("Relu", wide), build.weight(64, WIDTH))
        )
    build.node(
        "MatMul", build.mean(normalized(x), [1], keepdims=0), build.weight(WIDTH, 8), out="y"
    )
    build.output("y", ["n", 8])
    return build.build()


def samples(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim][1:]
    return {"x": np.random.default_rng(1).normal(size=(24, *shape)).astype(np.float32)}


CASES = {
    "relu": (of_channels(SEEN, "Relu"), "huge_channel", "channels are equalized"),
    "gate": (of_channels(SEEN, "Sigmoid"), "huge_channel", "float"),
    "token": (of_tokens(SEEN), "huge_token", "float"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_huge_is_handled_and_told(name: str) -> None:
    model, cause, done = CASES[name]
    data = samples(model)
    found = intact.quantize(model, data, target="tflite")
    (note,) = [each for each in found.plan.notes if "reaches" in each.message]
    assert done in note.message
    assert note.remedy == "--quantize-heads undoes it"
    assert f"{cause.partition('_')[2]} {'0' if name == 'token' else '3'} of" in note.message
    errors = intact.evaluate(found, data)
    assert errors.sqnr_db > 25

    undone = intact.quantize(model, data, target="tflite", quantize_heads=True)
    assert intact.evaluate(undone, data).sqnr_db < 12
    assert cause in [each.cause for each in undone.findings]


@pytest.mark.parametrize(
    "model", [of_channels(20.0, "Relu"), of_channels(1.0, "Sigmoid"), of_tokens(1.0)]
)
def test_what_is_usual_is_left_alone(model: onnx.ModelProto) -> None:
    found = intact.quantize(model, samples(model), target="tflite")
    assert not [each for each in found.plan.notes if "reaches" in each.message]
    assert "equalize" not in str(found.plan.provenance.improve)


def test_a_net_without_channels_to_equalize_is_observed_as_nothing() -> None:
    model = of_tokens(1.0)
    graph = normalize(model)
    assert observe_channels(graph, open_samples(samples(model), graph), []) == {}


def test_what_few_bits_lose_beside_is_not_blamed_on_a_channel() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(size=(8, 16)), random.normal(size=(16, 64)) / 100
    first *= np.where(np.arange(16) == 0, 3000, 0.1)
    second[0] /= 30
    # Heavy tails, which 4 bits hold badly.
    weights = [first, second, *(random.standard_t(2, size=(64, 64)) / 8 for _ in range(4))]
    build = ModelBuilder(17)
    x = build.input("x", ["n", 8])
    for weight in weights:
        product = build.node("MatMul", x, build.constant(F(weight)))
        x = build.node("Relu", product)
    build.node("Identity", product, out="y")
    build.output("y", ["n", 64])
    data = {"x": F(random.normal(size=(600, 8)))}

    def quantized(*keep: str) -> Result:
        options = {"weight_bits": 4, "preset": "fast", "quantize_heads": True}
        return intact.quantize(build.build(), data, keep_float=keep, **options)  # type: ignore[arg-type]

    found = quantized()
    (finding,) = [each for each in found.findings if each.cause == "huge_channel"]
    kept, *_ = [
        each.options["keep_float"] for each in finding.remedies if "keep_float" in each.options
    ]
    before, after = (intact.evaluate(each, data).sqnr_db for each in (found, quantized(*kept)))
    assert finding.severity == pytest.approx(1 - 10 ** ((before - after) / 10), abs=0.1)


def test_what_was_equalized_to_see_what_it_gains_is_not_equalized_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = []
    run = gate.equalize_blocks

    def counted(*arguments: Any, **options: Any) -> Any:
        runs.append(arguments)
        return run(*arguments, **options)

    monkeypatch.setattr(gate, "equalize_blocks", counted)
    model = of_channels(SEEN, "Relu")
    found = intact.quantize(model, samples(model), target="tflite")
    assert "equalize" in str(found.plan.provenance.improve)
    assert len(runs) == 1
