"""Scores language models, float and quantized: perplexity, tokens, cosines of sentences.

Both models run on the same tokens. What is kept of a window is a row of sums, and of a sentence its
two vectors: never the scores of a vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.analyze.evaluation.generation import PROMPTS, GenerationFigures, generate
from intact.data.batching import Batch
from intact.data.text.inputs import TokenInputs
from intact.engines.executor import Run
from intact.errors import UsageError
from intact.graph import Graph, facts, is_constant, weight_slot
from intact.numerics.text_metrics import (
    rank_correlation,
    row_cosines,
    token_scores,
    unit_rows,
    weighted_mean_interval,
)

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Rows: TypeAlias = dict[str, npt.NDArray[Any]]

_MOST_PAIRED = 1000
"""Sentences whose pairs are compared: half a million pairs."""
_LOGITS_AHEAD = 2
"""Tokens that a window must have: one to predict another."""
_FEWEST_NUMBERS = 8
"""Numbers of a vector, at least: fewer for each token are scores of a tagger's labels."""
_ALIKE = 1e-3
"""Difference of scores, in units of the largest, that the order of float sums may make."""


class TextMetric(Enum):
    """A figure of language models, by the name that ``--metric`` has for it."""

    PERPLEXITY = "perplexity"
    COSINE = "cosine"

    @staticmethod
    def named(metric: object) -> TextMetric | None:
        """Return the one of a name; None for what is no name of one."""
        known = {each.value: each for each in TextMetric}
        return known.get(metric.lower()) if isinstance(metric, str) else None


class PerplexityFigures(msgspec.Struct, frozen=True):
    """How well two models predict the tokens of a text, (float, quantized).

    Attributes:
        perplexity: Exponential of the mean loss of a token.
        intervals: 95 % intervals of both, over windows; NaN of a single window.
        change: Growth of the perplexity in percent, with its paired 95 % interval.
        divergence: Kullback-Leibler divergence of the next token from the float model's, in nats,
            the mean.
        flips: Share of positions, in percent, whose most probable token differs.
        tokens: Tokens that were predicted.
        windows: Number of windows that they lie in.
        generated: What the models do along the float model's own text; None where they were not
            asked, or have no caches.
    """

    perplexity: tuple[float, float]
    intervals: tuple[tuple[float, float], tuple[float, float]]
    change: tuple[float, float, float]
    divergence: float
    flips: float
    tokens: int
    windows: int
    generated: GenerationFigures | None = None

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Write the rows of a table, (name, float, quantized, change)."""
        before, after = (
            f"{mean:.2f}{_interval_text(*interval)}"
            for mean, interval in zip(self.perplexity, self.intervals, strict=True)
        )
        mean, low, high = self.change
        yield "perplexity", before, after, f"{mean:+.2f} %{_interval_text(low, high, '+')}"
        if self.generated is not None:
            yield from self.generated.rows()

    def lines(self) -> Iterator[str]:
        """Write what stands below the table."""
        yield (
            f"next token over {self.tokens:,} tokens in {self.windows} windows: "
            f"KL {self.divergence:.5f} nats, {self.flips:.2f} % of the best tokens differ"
        )
        if self.generated is not None:
            yield from self.generated.lines()


class CosineFigures(msgspec.Struct, frozen=True):
    """How alike the vectors of sentences are in two models.

    Attributes:
        mean: Mean cosine of the quantized model's vector with the float one's.
        worst: The smallest cosine.
        worst_sample: The sample that has it, counted from 0.
        rank_agreement: Spearman's correlation of both models' similarities of pairs of sentences.
        pairs: How many pairs.
        sentences: How many sentences.
        output: Whose vectors; the mean over tokens where it has one for each.
    """

    mean: float
    worst: float
    worst_sample: int
    rank_agreement: float
    pairs: int
    sentences: int
    output: str

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Write no row: these figures are of both models together."""
        yield from ()

    def lines(self) -> Iterator[str]:
        """Write what stands below the table."""
        yield (
            f"vectors of {self.sentences} sentences: cosine {self.mean:.5f}, worst "
            f"{self.worst:.5f} (sample {self.worst_sample})"
        )
        if self.pairs:
            yield (
                f"similarity of {self.pairs:,} pairs of sentences: rank agreement "
                f"{self.rank_agreement:.5f}"
            )


TextFigures: TypeAlias = PerplexityFigures | CosineFigures


class TextScores:
    """What a pass over text leaves of both models.

    Args:
        inputs: The model's inputs.
        metric: What is measured.
        output: Name of the output that is scored.
    """

    def __init__(self, inputs: TokenInputs, metric: TextMetric, output: str) -> None:
        self.inputs, self.metric, self.output = inputs, metric, output
        self._rows: list[Rows] = []
        self._texts: list[npt.NDArray[Any]] = []

    @staticmethod
    def of(graph: Graph, asked: TextMetric | None) -> TextScores | None:
        """Return what fits a model; None where it is no language model and nothing is asked.

        Raises:
            UsageError: What is asked does not fit.
        """
        inputs = TokenInputs.of(graph)
        output = graph.outputs[0]
        name, rank = str(output.name), None if output.shape is None else len(output.shape)
        if asked is TextMetric.PERPLEXITY and (inputs is None or not inputs.logits):
            raise UsageError(
                "--metric perplexity is for models that take token ids and give logits [batch, "
                f"sequence, vocabulary], and this gives {name}",
                remedy="leave it out, or give --metric cosine",
            )
        if asked is TextMetric.COSINE and (inputs is None or rank not in (2, 3)):
            raise UsageError(
                "--metric cosine is for models that take token ids and give vectors, [batch, size] "
                f"or [batch, sequence, size], and this gives {name}",
                remedy="leave it out",
            )
        if inputs is None:
            return None
        # Scores of classes have rank 2 as well.
        is_vector = (rank == 3 and not _has_few(output)) or (rank == 2 and "embed" in name.lower())
        kind = asked or (TextMetric.PERPLEXITY if inputs.logits else TextMetric.COSINE)
        if asked is None and kind is TextMetric.COSINE and not is_vector:
            return None
        return TextScores(inputs, kind, name)

    def anew(self) -> TextScores:
        """Return the same for another pass."""
        return TextScores(self.inputs, self.metric, self.output)

    def add(self, feeds: Batch, want: Arrays, have: Arrays, count: int) -> None:
        """Add what both models gave for the first ``count`` samples of a batch."""
        first, second = (each[self.output][:count] for each in (want, have))
        tokens = feeds[self.inputs.tokens][:count]
        real = self._real(feeds, tokens)[:count]
        if self.metric is TextMetric.PERPLEXITY:
            self._rows.append(_window_losses(tokens, real, first, second))
            # Texts to continue are whole ones: padding is nothing to go on from.
            if len(self._texts) < PROMPTS and real.all():
                self._texts.extend(tokens)
        else:
            pooled = (_sentence_vectors(each, real).astype(np.float32) for each in (first, second))
            self._rows.append(dict(zip(("float", "quantized"), pooled, strict=True)))

    def rows(self) -> Rows:
        """Return all that is kept, one row for each sample along axis 0."""
        names = self._rows[0] if self._rows else {}
        return {name: np.concatenate([each[name] for each in self._rows]) for name in names}

    def take(self, rows: Rows) -> None:
        """Add what another pass keeps of the samples behind these."""
        if rows:
            self._rows.append(rows)

    def generated(self, in_float: Run, quantized: Run) -> GenerationFigures | None:
        """Let both models continue the first texts; None where they cannot."""
        if self.metric is not TextMetric.PERPLEXITY or not self._texts:
            return None
        length = min(map(len, self._texts))
        texts = np.stack([row[:length] for row in self._texts])
        return generate(in_float, quantized, self.inputs, texts)

    def sees_what_follows(self, in_float: Run, feeds: Batch, found: Arrays) -> bool:
        """Tell whether a model's scores depend on later tokens: then it predicts none.

        Args:
            in_float: Runs the float model.
            feeds: The inputs of a batch.
            found: What it gave for that.
        """
        tokens = feeds[self.inputs.tokens]
        if self.metric is not TextMetric.PERPLEXITY or tokens.shape[1] < _LOGITS_AHEAD:
            return False
        # Only the last token changes: scores before it may not.
        other = tokens.copy()
        other[:, -1] = np.where(tokens[:, -1] == tokens[:, 0], 0, tokens[:, 0])
        before = found[self.output][:, :-1]
        after = in_float({**feeds, self.inputs.tokens: other})[self.output][:, :-1]
        # Not equal bit for bit: kernels sum in another order where other lanes hold other numbers.
        return not np.allclose(before, after, rtol=0, atol=_ALIKE * float(np.abs(before).max()))

    def figures(self, generated: GenerationFigures | None = None) -> TextFigures | None:
        """Return the figures of all samples; None where no window has a token to predict."""
        rows = self.rows()
        if self.metric is TextMetric.COSINE:
            return _cosines(rows, self.output)
        return _perplexities(rows, generated)

    def _real(self, feeds: Batch, tokens: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which tokens are no padding, ``[batch, sequence]``."""
        mask = None if self.inputs.mask is None else feeds.get(self.inputs.mask)
        if mask is None:
            return np.ones(tokens.shape, np.bool_)
        return np.asarray(mask[:, -tokens.shape[1] :] != 0)  # what is before are caches


def _has_few(output: ir.Value) -> bool:
    """Tell whether an output has so few numbers for each token that these are scores of labels.

    So few are those of a last layer that reads more of them than it gives: vectors are normalized,
    or as wide as the layers before.
    """
    last = None if output.shape is None else output.shape[-1]
    maker = output.producer()
    while maker is not None and facts(maker).adds:  # its bias
        data = [each for each in maker.inputs if each is not None and not is_constant(each)]
        maker = data[0].producer() if len(data) == 1 else None
    slot = None if maker is None else weight_slot(maker)
    weight = None if maker is None or slot is None else maker.inputs[slot]
    is_fixed = weight is not None and is_constant(weight)
    shape = weight.shape if weight is not None and is_fixed else None
    lengths = [each for each in shape or () if isinstance(each, int)]
    narrows = isinstance(last, int) and len(lengths) == 2 and last < max(lengths)
    return narrows or (isinstance(last, int) and last < _FEWEST_NUMBERS)


def _window_losses(
    tokens: npt.NDArray[Any],
    real: npt.NDArray[np.bool_],
    want: npt.NDArray[Any],
    have: npt.NDArray[Any],
) -> Rows:
    """Return for each window: two summed losses, divergence, flips, positions."""
    found = []
    for row, mask, first, second in zip(tokens, real, want, have, strict=True):
        # Both real: a token predicts the one behind it.
        kept = np.flatnonzero(mask[:-1] & mask[1:])
        if not len(kept):
            continue
        is_whole = len(kept) == len(first) - 1
        # A view where nothing is padded, since logits are large.
        ends = (first[:-1], second[:-1]) if is_whole else (first[kept], second[kept])
        scores = token_scores(*ends, row[kept + 1])
        found.append([*scores.losses, scores.divergence, scores.flips, scores.positions])
    return {"windows": np.array(found, np.float64).reshape(len(found), 5)}


def _sentence_vectors(
    states: npt.NDArray[Any], real: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Return a vector for each sentence: its own, or the mean of those of its tokens."""
    if states.ndim == 2:
        return states.astype(np.float64)
    weights = real.astype(np.float64)
    sums = np.einsum("bsd,bs->bd", states, weights)
    pooled: npt.NDArray[np.float64] = sums / np.maximum(weights.sum(axis=1), 1.0)[:, None]
    return pooled


def _perplexities(rows: Rows, generated: GenerationFigures | None) -> PerplexityFigures | None:
    windows = rows.get("windows", np.zeros((0, 5)))
    if not len(windows):
        return None
    positions = windows[:, 4]
    before, after = windows[:, 0] / positions, windows[:, 1] / positions
    # Windows are the samples, as tokens of one window depend on each other. The change has its own
    # interval: pairs of windows vary less than windows.
    means = [weighted_mean_interval(each, positions) for each in (before, after, after - before)]
    first, second, change = ([_exp(value) for value in each] for each in means)
    total = float(positions.sum())
    grown = tuple(100 * (each - 1) for each in change)
    return PerplexityFigures(
        perplexity=(first[0], second[0]),
        intervals=((first[1], first[2]), (second[1], second[2])),
        change=(grown[0], grown[1], grown[2]),
        divergence=float(windows[:, 2].sum()) / total,
        flips=100 * float(windows[:, 3].sum()) / total,
        tokens=int(total),
        windows=len(windows),
        generated=generated,
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf  # beyond float64, or NaN


def _cosines(rows: Rows, output: str) -> CosineFigures:
    first, second = rows["float"], rows["quantized"]
    cosines = row_cosines(first, second)
    worst = int(np.argmin(cosines))
    few = slice(_MOST_PAIRED)
    above = np.triu_indices(len(first[few]), 1)
    alike = []
    for each in (first[few], second[few]):
        # Cosines of all pairs by one product.
        unit = unit_rows(each)
        alike.append((unit @ unit.T)[above])
    pairs = len(above[0])
    return CosineFigures(
        mean=float(cosines.mean()),
        worst=float(cosines[worst]),
        worst_sample=worst,
        rank_agreement=rank_correlation(*alike) if pairs > 1 else math.nan,
        pairs=pairs if pairs > 1 else 0,
        sentences=len(first),
        output=output,
    )


def _interval_text(low: float, high: float, sign: str = "") -> str:
    if math.isnan(low):
        return ""
    return f" [{low:{sign}.2f}, {high:{sign}.2f}]"
