"""Each operator in torch computes what ONNX Runtime computes, and has the gradient it should."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from intact.engines.session import Optimization, make_session
from intact.graph import Graph
from intact.improve.learn.operators import prepare
from tests.improve.learn.operators.case import Array, Case, Steer
from tests.improve.learn.operators.cases import CASES

NOT_EMPTY = frozenset({"GroupNormalization"})
"""Operators for whose kind of case ONNX Runtime refuses to have no rows."""

FEW = {case.operator: case for case in CASES if case.rows}


def in_runtime(case: Case) -> list[Array]:
    session = make_session(
        case.model().SerializeToString(), threads=1, optimization=Optimization.NONE
    )
    names = {each.name for each in session.get_inputs()}
    feeds = {f"x{k}": array for k, array in enumerate(case.arrays()) if f"x{k}" in names}
    return list(session.run(None, feeds))


def node_of(case: Case, *, fixed: bool = True) -> ir.Node:
    return Graph(ir.from_proto(case.model(fixed=fixed))).nodes[0]


def tensors(case: Case, dtype: torch.dtype = torch.float32) -> list[torch.Tensor | None]:
    found = [None if each is None else torch.tensor(each) for each in case.arrays()]
    return [t.to(dtype) if t is not None and t.is_floating_point() else t for t in found]


def computed(node: ir.Node, given: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    before = [None if each is None else each.clone() for each in given]
    found = listed(prepare(node)(*given))
    for old, new in zip(before, given, strict=True):
        if old is not None and new is not None:
            assert torch.equal(old.nan_to_num(), new.nan_to_num()), "an input was changed"
    return found


def listed(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def compare(case: Case, found: list[torch.Tensor], wanted: list[Array], *, same: bool) -> None:
    assert len(found) == len(wanted) == case.outputs
    for mine, right in zip(found, wanted, strict=True):
        array = mine.detach().numpy()
        assert array.shape == right.shape
        if same:
            assert array.dtype == right.dtype
        if same and (case.is_exact() or right.dtype.kind != "f"):
            np.testing.assert_array_equal(array, right)
        else:
            np.testing.assert_allclose(array, right, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_computes_what_the_runtime_computes(case: Case) -> None:
    wanted = in_runtime(case)
    for fixed in (True, False):
        compare(case, computed(node_of(case, fixed=fixed), tensors(case)), wanted, same=True)
    double = computed(node_of(case), tensors(case, torch.float64))
    compare(case, double, wanted, same=False)


def with_rows(case: Case, rows: int) -> Case:
    first = case.arrays()[0]
    assert first is not None
    repeated = np.resize(first, (rows, *first.shape[1:])) if rows else first[:0]
    return replace(case, inputs=(repeated, *case.inputs[1:]))


@pytest.mark.parametrize("case", FEW.values(), ids=str)
def test_any_number_of_rows(case: Case) -> None:
    apply = prepare(node_of(case))
    for rows in (1, 3, 0):
        own = with_rows(case, rows)
        if rows == 0 and case.operator in NOT_EMPTY:
            continue
        compare(own, listed(apply(*tensors(own))), in_runtime(own), same=True)


def is_smooth(case: Case) -> bool:
    """Whether there is a gradient: equal numbers have none where they are compared."""
    found = [each for each in case.arrays() if each is not None and each.dtype == np.float32]
    return bool(found) and all(np.unique(each).size == each.size for each in found)


def few(cases: Iterable[Case], most: int) -> list[Case]:
    """Take cases of each operator from the whole range of those that there are."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.operator, []).append(case)
    return [case for own in found.values() for case in own[:: -(-len(own) // most)]]


SMOOTH = few(filter(is_smooth, CASES), 12)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_the_gradient_is_that_of_small_differences(case: Case) -> None:
    given = tensors(case, torch.float64)
    for each, kind in zip(given, case.inputs, strict=True):
        if each is not None and each.is_floating_point() and each.numel():
            each.requires_grad_(not isinstance(kind, Steer))
    apply = prepare(node_of(case))

    def smooth(*inputs: Any) -> tuple[torch.Tensor, ...]:
        found = listed(apply(*inputs))
        return tuple(each for each in found if each.is_floating_point() and each.requires_grad)

    if smooth(*given):
        assert torch.autograd.gradcheck(smooth, given, fast_mode=True)
