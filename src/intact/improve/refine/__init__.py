"""Improving calibrated plans with samples; the float model stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from intact.data.stream import Samples
from intact.plan import QuantizedGraph


def _weight_scales(plan: QuantizedGraph, samples: Samples) -> QuantizedGraph:
    from intact.improve.refine.weight_scales import refine_weight_scales

    return refine_weight_scales(plan, samples)


REFINEMENTS: Mapping[str, Callable[[QuantizedGraph, Samples], QuantizedGraph]] = MappingProxyType(
    {"weight-scales": _weight_scales}
)
"""By the name that users have for them. A refinement takes a plan with scales, returns another one
and leaves its own alone. Each imports its module when it is run: plain quantizing needs none."""
