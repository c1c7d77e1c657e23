"""Which outputs are taken for scores of classes."""

from __future__ import annotations

import numpy as np
import pytest

from intact.numerics.answers import are_classes


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (np.zeros((3, 10)), True),  # logits of many classes
        (np.array([[0.2, 0.8], [1.0, 0.0]]), True),  # probabilities
        (np.array([[0.2, 0.7, 0.1, 0.4], [0.1, 0.1, -0.2, 0.0]]), False),  # four numbers of a box
        (np.ones((3, 1)), False),  # one number
        (np.full((3, 16), -0.25), False),  # embeddings of length 1
        (np.eye(3, 16), True),  # answers that are sure
        (np.zeros((0, 10)), False),
        (np.zeros((3, 0)), False),
    ],
)
def test_many_columns_or_probabilities_are_classes(scores: np.ndarray, expected: bool) -> None:
    assert are_classes(scores) is expected


def test_labels_of_several_classes_make_an_output_one_of_classes() -> None:
    scores = np.zeros((3, 4))
    assert are_classes(scores, np.array([0, 1, 1]))
    assert not are_classes(scores, np.array([2, 2, 2]))
