"""The configs of what is appended to a decoder's caches, which hold codes.

They are marked. Past and present keys and values have no configs: they are the same codes, of
earlier runs and of this one. Everywhere but in the files they are the floats that these stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import UsageError
from intact.graph import Graph
from intact.graph.caches import Cache, caches_of
from intact.plan.quantized_graph import Decision, QuantizedGraph, TensorEnd
from intact.plan.schemes import config_from_scheme
from intact.targets import Target

CacheRanges: TypeAlias = Mapping[TensorEnd, npt.NDArray[np.float64]]
"""Largest magnitudes, ``[channels]``, by the ends where they are appended to caches."""

CACHED = "cached"
"""The mark, in the detail of a config."""


def is_cached(config: TensorQuantConfig) -> bool:
    """Tell whether what an end reads is appended to a cache, as codes."""
    return config.detail.get(CACHED) is True


def cache_configs(node: ir.Node, target: Target) -> dict[TensorEnd, TensorQuantConfig]:
    """Make the INITIAL configs of what a node appends to its caches.

    Args:
        node: A node with caches.
        target: Whose ``[cache]`` says as what they are kept.
    """
    scheme = None if target.cache is None else target.cache.scheme
    configs = {}
    for cache in caches_of(node) if scheme is not None else ():
        config = config_from_scheme(scheme, cache.axis)
        config.detail[CACHED] = True
        configs[TensorEnd.input(str(node.name), cache.new)] = config
    return configs


def refuse_no_caches(graph: Graph, target: Target, decisions: Mapping[str, Decision]) -> None:
    """Refuse a model of which no cache is kept as codes where that was asked for.

    Raises:
        UsageError: There is none; the message has the reason of the first.
    """
    scheme = None if target.cache is None else target.cache.scheme
    if scheme is None or any(_has_codes(each) for each in decisions.values()):
        return
    kept = (each.reason for each in decisions.values() if each.reason.startswith(_FLOAT_CACHE))
    reason = next(kept, "it has no cache: an input [batch, heads, past, size] to which a node "
    "appends, as an output of the model")
    raise UsageError(
        f"--cache-bits {scheme.bits}: {reason}",
        remedy="leave it out, or export the decoder with caches (docs/language-models.md)",
    )


_FLOAT_CACHE = "its cache stays float"


def _has_codes(decision: Decision) -> bool:
    from intact.plan.topology import has_caches_only

    return has_caches_only(decision)


class CachePoint(msgspec.Struct, frozen=True):
    """A cache that holds codes.

    Attributes:
        cache: The node that appends to it.
        config: The config of what is appended.
        end: Where that is read.
    """

    cache: Cache
    config: TensorQuantConfig
    end: TensorEnd

    @property
    def bytes_per_token(self) -> tuple[int, int]:
        """How many bytes a token takes: as codes, and as float32."""
        return -(-self.cache.channels * self._heads * self.config.bits // 8), (
            4 * self.cache.channels * self._heads
        )

    @property
    def _heads(self) -> int:
        """How many heads have an axis of their own."""
        return 1 if self.cache.axis == 2 else int((self.cache.appended.shape or ())[1])


def cache_points(plan: QuantizedGraph) -> Iterator[CachePoint]:
    """Yield the caches that hold codes, in graph order; the plan may lack scales."""
    for node in plan.graph.nodes:
        for cache in caches_of(node):
            end = TensorEnd.input(str(node.name), cache.new)
            config = plan.configs.get(end)
            if config is not None and is_cached(config):
                yield CachePoint(cache, config, end)


def with_cache_ranges(
    plan: QuantizedGraph, ranges: CacheRanges
) -> QuantizedGraph:
    """Give caches their scales: the largest magnitude gets the highest code.

    Args:
        plan: Is not changed.
        ranges: For all of them.
    """
    plan = plan.copy()
    for point in cache_points(plan):
        config, largest = point.config, ranges[point.end]
        if config.granularity.axis is None:
            largest = largest.max()
        most = np.where(largest > 0, largest, 1.0)
        scale = np.float32(most / config.quant_max)
        # A code beyond the highest would be clipped: the scale is not rounded down.
        scale = np.where(scale * np.float64(config.quant_max) < most, _next(scale), scale)
        scale = np.maximum(scale, np.finfo(np.float32).tiny)
        config.set_params(scale.astype(np.float32), np.zeros(scale.shape, np.int64))
        config.transition(QuantState.ACTIVATED)
        config.detail["fixed"] = True
        config.observer = "envelope"
    return plan


def _next(scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.nextafter(scale, np.float32(np.inf), dtype=np.float32)
