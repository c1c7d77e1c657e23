"""What `evaluate` measures of language models, against the two models run by hand."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto

import intact
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.analyze.evaluation.run import Models, Pass, run_both
from intact.analyze.evaluation.shards import _pass_of, _reply_of
from intact.analyze.evaluation.text import CosineFigures, PerplexityFigures, TextScores
from intact.data.sources import Reading, open_samples
from intact.errors import UsageError
from intact.results.result import Result
from tests.models import ModelBuilder
from tests.statistics import log_softmax, spearman, students_interval
from tests.texts import DECODER, tiny_decoder, tiny_encoder

RANDOM = np.random.default_rng(1)
IDS = RANDOM.integers(4, 50, 120)
LINES = [RANDOM.integers(4, 50, length).tolist() for length in (5, 9, 3, 12, 7, 7)]


@pytest.fixture(scope="module", params=["exported", "builder"])
def decoder(request: pytest.FixtureRequest) -> Result:
    return intact.quantize(tiny_decoder(request.param), IDS, context=20, method="minmax")


@pytest.fixture(scope="module")
def encoder() -> Result:
    return intact.quantize(tiny_encoder(), LINES, context=12, method="minmax")


@functools.cache
def session(model: ir.Model) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())


def logits(model: ir.Model, ids: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Run a decoder on one text by hand."""
    run = session(model)
    feeds = {
        "input_ids": ids[None],
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "position_ids": np.arange(len(ids))[None],
    }
    cache = np.zeros((1, DECODER.key_heads, 0, DECODER.head), np.float32)
    given = {each.name: feeds.get(each.name, cache) for each in run.get_inputs()}
    (found,) = run.run(["logits"], given)
    return np.asarray(found[0], np.float64)


def test_perplexities_and_flips_are_those_of_the_two_models(decoder: Result) -> None:
    found = intact.evaluate(decoder, IDS, context=20).text
    assert isinstance(found, PerplexityFigures)
    windows = IDS.reshape(6, 20)
    losses: list[list[float]] = [[], []]
    flips, divergence = 0, 0.0
    for window in windows:
        both = [
            log_softmax(logits(model, window)[:-1])
            for model in (decoder.plan.graph.model, decoder.exported.model)
        ]
        for each, scores in zip(losses, both, strict=True):
            each.append(-scores[np.arange(19), window[1:]].mean())
        flips += int((both[0].argmax(axis=1) != both[1].argmax(axis=1)).sum())
        divergence += (np.exp(both[0]) * (both[0] - both[1])).sum() / (6 * 19)
    assert found.perplexity == pytest.approx(np.exp(np.mean(losses, axis=1)), rel=1e-3)
    assert found.divergence == pytest.approx(divergence, rel=0.02)
    assert found.flips == pytest.approx(100 * flips / (6 * 19), abs=2)
    assert (found.tokens, found.windows) == (6 * 19, 6)
    grown = np.subtract(losses[1], losses[0])
    low, high = students_interval(grown)
    expected = [100 * (math.exp(each) - 1) for each in (grown.mean(), low, high)]
    assert found.change == pytest.approx(expected, abs=0.02)
    assert found.intervals[0][0] < found.perplexity[0] < found.intervals[0][1]


def test_the_float_models_own_text_is_written_with_its_caches(decoder: Result) -> None:
    found = intact.evaluate(decoder, IDS, context=20).text
    assert isinstance(found, PerplexityFigures)
    generated = found.generated
    assert generated is not None
    assert min(*generated.tokens_per_second, *generated.first_token_ms) > 0
    assert generated.prompt == 10
    differing = 0
    for window in IDS.reshape(6, 20)[:4]:
        text = window[:10]
        for _ in range(32):  # without caches
            best = logits(decoder.plan.graph.model, text)[-1].argmax()
            text = np.append(text, best)
        ours = logits(decoder.exported.model, text[:-1])[9:].argmax(axis=1)
        differing += int((ours != text[10:]).sum())
    assert generated.tokens == 4 * 32
    assert generated.differing == pytest.approx(differing, abs=4)


def test_a_model_that_stayed_float_loses_nothing() -> None:
    result = intact.quantize(
        tiny_decoder(), IDS, context=20, keep_float=["*"], allow_empty=True, method="minmax"
    )
    found = intact.evaluate(result, IDS, context=20).text
    assert isinstance(found, PerplexityFigures)
    assert found.perplexity[0] == pytest.approx(found.perplexity[1])
    assert found.change == pytest.approx((0, 0, 0), abs=1e-3)
    assert found.flips == 0
    assert found.divergence == pytest.approx(0, abs=1e-6)
    assert found.generated is not None
    assert found.generated.differing == 0


def test_vectors_of_sentences_are_compared_without_padding(encoder: Result) -> None:
    found = intact.evaluate(encoder, LINES, context=12).text
    assert isinstance(found, CosineFigures)
    vectors: list[list[npt.NDArray[np.float64]]] = [[], []]
    models = encoder.plan.graph.model, encoder.exported.model
    for each, model in zip(vectors, models, strict=True):
        run = session(model)
        for line in LINES:
            ids = np.pad(np.array(line), (0, 12 - len(line)))[None]
            real = (np.arange(12) < len(line))[None].astype(np.int64)
            feeds = {"input_ids": ids, "attention_mask": real, "token_type_ids": 0 * ids}
            (states,) = run.run(None, feeds)
            each.append(states[0, : len(line)].mean(axis=0).astype(np.float64))
    float_ones, ours = map(np.array, vectors)
    lengths = np.linalg.norm(float_ones, axis=1) * np.linalg.norm(ours, axis=1)
    cosines = (float_ones * ours).sum(axis=1) / lengths
    assert found.mean == pytest.approx(cosines.mean(), abs=1e-4)
    assert found.worst == pytest.approx(cosines.min(), abs=1e-4)
    assert found.worst_sample == cosines.argmin()
    assert (found.sentences, found.pairs) == (6, 15)
    above = np.triu_indices(6, 1)
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (float_ones, ours)]
    alike = [(each @ each.T)[above] for each in units]
    expected = spearman(*alike)
    assert found.rank_agreement == pytest.approx(expected, abs=0.05)


def masked_language_model() -> ir.Model:
    """Return an encoder that scores a vocabulary at each position."""
    model = tiny_encoder()
    graph = model.graph
    weights = RANDOM.normal(0, 1, (16, 50)).astype(np.float32)
    table = ir.Value(name="head", const_value=ir.tensor(weights, name="head"))
    graph.initializers.add(table)
    scores = ir.Value(
        name="logits", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["b", "s", 50])
    )
    graph.append(ir.node("MatMul", [graph.outputs[0], table], outputs=[scores], name="head"))
    graph.outputs[:] = [scores]
    return model


def test_what_sees_the_next_token_has_no_perplexity() -> None:
    result = intact.quantize(masked_language_model(), IDS, context=20, method="minmax")
    assert intact.evaluate(result, IDS, context=20).text is None
    with pytest.raises(UsageError, match="depends on the tokens behind it"):
        intact.evaluate(result, IDS, context=20, metric="perplexity")
    found = intact.evaluate(result, IDS, context=20, metric="cosine").text
    assert isinstance(found, CosineFigures)


def test_a_metric_that_does_not_fit_is_refused(encoder: Result, digits_model: Path) -> None:
    with pytest.raises(UsageError, match=r"^metric perplexity is for models"):
        intact.evaluate(encoder, LINES, metric="perplexity", context=12)
    other = intact.quantize(digits_model, np.zeros((4, 1, 8, 8), np.float32), method="minmax")
    with pytest.raises(UsageError, match="metric cosine"):
        intact.evaluate(other, np.zeros((4, 1, 8, 8), np.float32), metric="cosine")
    assert intact.evaluate(other, np.zeros((4, 1, 8, 8), np.float32)).text is None


def test_figures_are_shown_and_are_json(decoder: Result) -> None:
    found = intact.evaluate(decoder, IDS, context=20)
    shown = str(found)
    for each in ("perplexity", "tokens/s", "first token", "KL ", "float model's own text"):
        assert each in shown
    stored = json.loads(msgspec.json.encode(found))
    assert stored["text"]["generated"]["tokens"] == 128
    single = intact.evaluate(decoder, IDS, context=20, samples=1)
    assert "nan" not in str(single)


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_shards_give_the_figures_of_the_whole(name: str, request: pytest.FixtureRequest) -> None:
    result: Result
    data: Any
    if name == "decoder":
        result, data, context = intact.quantize(tiny_decoder(), IDS, context=20), IDS, 20
    else:
        result, data, context = request.getfixturevalue(name), LINES, 12
    graph, reading = result.plan.graph, Reading(context=context)
    samples = open_samples(data, graph, reading=reading)
    models = Models(graph, result, threads=1)
    whole = evaluate_result(result, samples, timed=False)
    scores = TextScores.of(graph, None)
    assert scores is not None
    batches = list(samples.batches(1))
    parts: list[Pass] = []
    for some in (batches[:2], batches[2:]):
        feeds = {key: np.concatenate([batch[key] for batch, _ in some]) for key in some[0][0]}
        shard = open_samples(feeds, graph)
        seen, _ = run_both(models, shard, 1, text=scores.anew())
        parts.append(_pass_of(_reply_of("here", seen), 1, scores))
    parts[0].join(parts[1])
    assert parts[0].text is not None
    assert parts[0].text.figures() == whole.text


@pytest.mark.parametrize("labels", [3, 12])
def test_few_scores_for_each_token_are_no_vectors_of_sentences(labels: int) -> None:
    b = ModelBuilder()
    ids = b.input("input_ids", ["N", "S"], TensorProto.INT64)
    table = b.constant(b.random.normal(size=(50, 16)).astype(np.float32))
    tags = b.node("MatMul", b.node("Gather", table, ids), b.weight(16, labels))
    tags = b.node("Add", tags, b.weight(labels))
    b.output(tags, ["N", "S", labels])
    model = b.build()
    data = {"input_ids": np.random.default_rng(0).integers(0, 50, (16, 12))}
    found = intact.evaluate(intact.quantize(model, data), data)
    assert found.text is None
