"""What is scored: against independent computations, with ties, zeros and refusals."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import softmax

import intact
from intact.data.detections import DetectionMetric
from intact.data.metric import Metric, OutputRecord
from intact.errors import DataError, UsageError
from intact.numerics.metrics import agreement, cosine, top_k
from intact.search.measuring.objective import (
    KINDS,
    Arrays,
    Objective,
    OutputPair,
    are_probabilities,
    default_kind,
    float_pairs,
    has_classes,
)
from tests.heads import nets


def seen(
    want: npt.ArrayLike,
    have: npt.ArrayLike,
    labels: list[int] | None = None,
    *,
    is_probability: bool = False,
) -> OutputPair:
    first, second = np.asarray(want, np.float32), np.asarray(have, np.float32)
    classes = None if labels is None else np.array(labels, np.int64)
    return OutputPair({"y": first}, {"y": second}, len(first), classes, is_probability)


def rows(kind: str, both: OutputPair) -> npt.NDArray[np.float64]:
    function = KINDS[kind].rows
    assert function is not None
    return function(both)


@pytest.fixture
def scores() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    random = np.random.default_rng(0)
    want = random.normal(size=(50, 7)).astype(np.float32)
    return want, (want + random.normal(size=want.shape) * 0.5).astype(np.float32)


def test_accuracy_is_that_of_the_metrics(
    scores: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
) -> None:
    labels = np.random.default_rng(1).integers(0, 7, 50)
    found = rows("accuracy", seen(*scores, labels.tolist()))
    assert set(found.tolist()) <= {0.0, 100.0}
    assert found.mean() == pytest.approx(100 * top_k(scores[1], labels))


def test_agreement_is_that_of_the_metrics(
    scores: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
) -> None:
    assert rows("agreement", seen(*scores)).mean() == pytest.approx(100 * agreement(*scores))


def test_of_equal_scores_the_first_class_counts() -> None:
    both = seen([[1, 1], [0, 1]], [[2, 2], [3, 3]], [0, 1])
    assert rows("accuracy", both).tolist() == [100.0, 0.0]
    assert rows("agreement", both).tolist() == [100.0, 0.0]


def test_divergence_is_the_textbooks(
    scores: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
) -> None:
    p, q = (softmax(each.astype(np.float64), axis=1) for each in scores)
    expected = -(p * np.log(p / q)).sum(axis=1)
    np.testing.assert_allclose(rows("kl", seen(*scores)), expected, rtol=1e-9)


def test_probabilities_are_taken_as_they_are(
    scores: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
) -> None:
    p, q = (softmax(each, axis=1) for each in scores)
    expected = -(p.astype(np.float64) * np.log(p.astype(np.float64) / q)).sum(axis=1)
    found = rows("kl", seen(p, q, is_probability=True))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert are_probabilities([p, q])
    assert not are_probabilities([p, scores[0]])


@pytest.mark.parametrize("is_probability", [True, False])
def test_a_divergence_stays_finite_where_a_class_is_lost(*, is_probability: bool) -> None:
    want, have = [[1.0, 0.0]], [[0.0, 1.0]]
    if not is_probability:
        want, have = [[1e30, 0.0]], [[-1e30, 1e30]]
    found = rows("kl", seen(want, have, is_probability=is_probability))
    assert -28 < found[0] < -27
    assert rows("kl", seen(want, want, is_probability=is_probability))[0] == 0.0


def test_a_divergence_of_sequences_is_the_mean_of_positions() -> None:
    random = np.random.default_rng(3)
    want, have = random.normal(size=(2, 4, 5, 3))
    whole = rows("kl", seen(want, have))
    parts = rows("kl", seen(want.reshape(20, 3), have.reshape(20, 3))).reshape(4, 5)
    np.testing.assert_allclose(whole, parts.mean(axis=1))


def test_cosine_is_that_of_the_metrics(
    scores: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
) -> None:
    expected = [cosine(*pair) for pair in zip(*scores, strict=True)]
    np.testing.assert_allclose(rows("cosine", seen(*scores)), expected, rtol=1e-12)


def test_cosine_of_zeros_and_of_the_largest_numbers() -> None:
    want = np.array([[0, 0], [0, 0], [3e38, -3e38], [1e-38, 0]])
    have = np.array([[0, 0], [1, 0], [3e38, -3e38], [-1e-38, 0]])
    assert rows("cosine", seen(want, have)).tolist() == pytest.approx([1.0, 0.0, 1.0, -1.0])


def test_all_float_outputs_count_for_the_error() -> None:
    ones = np.ones((2, 3), np.float32), np.ones((2, 2, 2), np.float32)
    want: Arrays = {"a": ones[0], "n": np.arange(2), "b": ones[1]}
    have: Arrays = {"a": ones[0], "n": np.arange(2) + 1, "b": -ones[1]}
    both = OutputPair(want, have, 2, None)
    assert [pair[0].shape for pair in float_pairs(both)] == [(2, 3), (2, 4)]
    assert rows("cosine", both).tolist() == pytest.approx([0.0, 0.0])  # 1 and -1


def test_an_output_without_samples_counts_for_each() -> None:
    want: Arrays = {"y": np.ones((3, 2), np.float32), "scalar": np.array(2, np.float32)}
    pairs = float_pairs(OutputPair(want, want, 3, None))
    assert [pair[0].shape for pair in pairs] == [(3, 2), (3, 1)]


def test_whole_numbers_count_where_there_is_nothing_else() -> None:
    both = OutputPair({"n": np.array([1, 2])}, {"n": np.array([1, 4])}, 2, None)
    assert [pair[1].ravel().tolist() for pair in float_pairs(both)] == [[1.0, 4.0]]


def test_outputs_of_other_shapes_are_refused() -> None:
    with pytest.raises(DataError, match="'y' has shape"):
        float_pairs(seen(np.ones((2, 3)), np.ones((2, 4))))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 10), True), ((4, 1), False), ((4,), False), ((4, 2, 3), False), ((3, 10), False)],
)
def test_what_has_classes(shape: tuple[int, ...], *, expected: bool) -> None:
    assert has_classes(np.zeros(shape, np.float32), 4) is expected
    assert not has_classes(np.zeros(shape, np.int64), 4)


@pytest.mark.parametrize(
    ("shape", "has_labels", "expected"),
    [((4, 3), True, "accuracy"), ((4, 3), False, "agreement"), ((4, 3, 3), True, "sqnr")],
)
def test_the_default(shape: tuple[int, ...], expected: str, *, has_labels: bool) -> None:
    assert default_kind(np.zeros(shape, np.float32), 4, has_labels=has_labels) == expected


def figures(outputs: object, references: object) -> dict[str, float]:
    del outputs, references
    return {"loss": 2.5, "odd": math.nan}


def record() -> OutputRecord:
    made = OutputRecord()
    made.add({"y": np.zeros((2, 2))}, 2, 2)
    return made


def test_a_metric_that_counts_mistakes_is_turned_around() -> None:
    objective = Objective.of("metric", Metric.of(figures), figure="loss", lower_is_better=True)
    assert objective.of_metric(record(), {}) == -2.5
    assert objective.format(-2.5) == "2.5000"
    assert objective.name == "loss"


def test_the_first_figure_is_the_score_unless_told() -> None:
    assert Objective.of("metric", Metric.of(figures)).of_metric(record(), {}) == 2.5


@pytest.mark.parametrize(("figure", "message"), [("odd", "is NaN"), ("los", "loss")])
def test_figures_that_are_no_score(figure: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Objective.of("metric", Metric.of(figures), figure=figure).of_metric(record(), {})


def test_scores_are_shown_with_their_units() -> None:
    assert Objective.of("accuracy").format(91.256) == "91.26 %"
    assert Objective.of("sqnr").format(math.inf) == "inf dB"
    assert Objective.of("cosine").format(0.5) == "0.500000"
    assert Objective.of("metric").kind == "accuracy"  # where there are labels


@pytest.mark.parametrize("kind", ["acuracy", "", "KL"])
def test_unknown_kinds_are_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="objective"):
        Objective.of(kind)


def test_contradictions_are_refused() -> None:
    with pytest.raises(UsageError, match="one of the two"):
        Objective.of("kl", Metric.of(figures))
    with pytest.raises(UsageError, match="higher is always better"):
        Objective.of("kl", lower_is_better=True)


def test_accuracy_without_labels_is_refused() -> None:
    with pytest.raises(DataError, match="no labels"):
        rows("accuracy", seen([[1, 2]], [[1, 2]]))


def test_detections_are_scored_against_the_float_model() -> None:
    """The outputs with boxes and scores are found in the graph, and float's finds are the truth."""
    found = intact.search_strategy(
        nets.yolo_v8(),
        nets.images(8),
        objective="detections",
        budget="1trials",
        preset="fast",
    )
    assert found.float_score == 100
    assert 50 < found.score <= 100
    assert found.objective.needs_float
    metric = found.objective.metric
    assert isinstance(metric, DetectionMetric)
    assert metric.boxes == "detections"
