"""Layouts of tensors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from intact.program import Tensor


@pytest.mark.parametrize("permutation", [None, *itertools.permutations(range(3))])
def test_axes_go_to_the_program_and_back(permutation: tuple[int, ...] | None) -> None:
    tensor = Tensor("x", (None, None, None), permutation=permutation)
    model = np.arange(24).reshape(2, 3, 4)
    stored = tensor.as_stored(model)
    order = permutation or (0, 1, 2)
    assert stored.shape == tuple(model.shape[axis] for axis in order)
    np.testing.assert_array_equal(tensor.as_in_model(stored), model)
