"""Small cases of each operator: what `test_cases.py` runs in ONNX Runtime and in torch."""

from __future__ import annotations

from tests.improve.learn.operators import moving, pointwise, spatial
from tests.improve.learn.operators.case import Case

_FAMILIES = (
    moving.indices,
    moving.moves,
    moving.recurrent,
    moving.shapes,
    pointwise.elementwise,
    pointwise.normalizations,
    pointwise.products,
    pointwise.reductions,
    spatial.convolutions,
    spatial.pools,
    spatial.resizes,
)

CASES: tuple[Case, ...] = tuple(case for family in _FAMILIES for case in family())
