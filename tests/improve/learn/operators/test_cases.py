"""Each operator in torch computes what ONNX Runtime computes, and has the gradient it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from intact.engines.session import Optimization, make_session
from intact.errors import ModelError
from intact.graph import Graph
from intact.improve.learn.operators import RULES, prepare
from tests.improve.learn.operators.cases import CASES, Array, Case

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
    result = prepare(node)(*given)
    for old, new in zip(before, given, strict=True):
        assert old is None or torch.equal(old, new), "an input was changed"
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
