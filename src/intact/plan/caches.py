"""Makes the configs of what a decoder appends to its caches, which hold codes.

They are marked. Past and present keys and values have no configs: they are the same codes, of
earlier runs and of this one. Everywhere but in the files they are the floats that these stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import PerChannel, QuantState, TensorQuantConfig, make_policy
from intact.errors import PlanError, UsageError
from intact.graph import Graph
from intact.graph.caches import Cache, caches_of, why_no_cache
from intact.graph.key_basis import Steps, is_key, steps_of
from intact.plan.overrides import Overrides
from intact.plan.quantized_graph import Decision, QuantizedGraph, TensorEnd
from intact.plan.schemes import config_from_scheme
from intact.plan.stored_weights import CACHED, CACHES_ONLY, is_cached
from intact.targets import Target, TensorScheme
from intact.targets.schema import Caches

CacheRanges: TypeAlias = Mapping[TensorEnd, npt.NDArray[np.float64]]
"""What is at most in a range, ``[channels]``, by the ends where it is appended to caches."""

_PACKED = 4
HALF = 0.5
"""Steps between the highest code and what is at most in a range: rounding errs by as much."""


def cache_configs(
    node: ir.Node, target: Target, overrides: Overrides
) -> dict[TensorEnd, TensorQuantConfig]:
    """Make the INITIAL configs of what a node appends to its caches.

    Args:
        node: A node with caches.
        target: Whose ``[cache]`` says as what they are kept.
        overrides: May give the node a width of its own.
    """
    scheme = None if target.cache is None else target.cache.scheme
    configs: dict[TensorEnd, TensorQuantConfig] = {}
    if scheme is None:
        return configs
    bits, steps = _bits_of(node, scheme, overrides), steps_of(node)
    for cache in caches_of(node):
        config = config_from_scheme(scheme, cache.axis, bits)
        if steps is not None and is_key(cache):
            config = _in_steps(config, cache, steps)
        config.detail[CACHED] = True
        configs[TensorEnd.input(str(node.name), cache.new)] = config
    return configs


def _in_steps(config: TensorQuantConfig, cache: Cache, steps: Steps) -> TensorQuantConfig:
    """Give channels of keys that are kept twice, or not, the ranges of their codes."""
    channels = steps.channel_codes(cache.size)
    if not channels:
        return config
    granularity = PerChannel(cache.axis)
    policy = make_policy(granularity, symmetric=True)
    grid = replace(config.grid, policy=policy, granularity=granularity, channel_codes=channels)
    return TensorQuantConfig.on_grid(grid)


def _bits_of(node: ir.Node, scheme: TensorScheme, overrides: Overrides) -> int:
    """Return the width of a node's caches: keys and values have one."""
    return overrides.bits.get(str(node.name), scheme.bits)


def decide_cache(node: ir.Node, target: Target, overrides: Overrides) -> Decision | None:
    """Decide about a node with caches, of which codes are asked for; None where it has none.

    Raises:
        UsageError: The user asks for a width that its caches cannot have.
    """
    if not caches_of(node) and not why_no_cache(node):
        return None
    caches, name = target.cache or Caches(), str(node.name)
    bits = 0 if caches.scheme is None else _bits_of(node, caches.scheme, overrides)
    steps = steps_of(node)
    if steps is not None and steps.bits != bits:
        raise UsageError(
            f"{name}: its keys were rotated for caches of {steps.bits} bits, not of {bits}",
            remedy="give that width, or the model that was not rotated",
        )
    why, form = why_float(node, target, bits), caches.form_of(node.op_type)
    if why and name in overrides.bits:
        others = " or ".join(f"{bits}" for bits in _possible(node, target))
        raise UsageError(
            f"--bits {name}={bits}: its cache stays float: {why}",
            remedy=f"give {others}" if others else "leave it out",
        )
    if why or form is None:
        return Decision(False, f"its cache stays float: {why}")
    return Decision(False, f"{CACHES_ONLY}{form.reason}")


def _possible(node: ir.Node, target: Target) -> list[int]:
    """Return the widths that a node's caches can have."""
    widths = () if target.cache is None else target.cache.bits
    return [bits for bits in widths if not why_float(node, target, bits)]


def why_float(node: ir.Node, target: Target, bits: int) -> str:
    """Say why the caches of a node cannot hold codes of a width; "" where they can."""
    form = (target.cache or Caches()).form_of(node.op_type)
    if form is None:
        return f"target {target.name} keeps those of {node.op_type} as floats"
    if missing := why_no_cache(node):
        return missing
    if bits not in form.bits:
        return form.lacking or f"target {target.name} has none of {bits} bits"
    if bits == _PACKED:
        size = caches_of(node)[0].size
        if size % 2:
            return f"a head has {size} numbers, and a byte two codes of {bits} bits"
        if any(_is_measured(node, cache.past) for cache in caches_of(node)):
            return f"the model computes with its shape, which packed codes of {bits} bits change"
    return ""


def _is_measured(node: ir.Node, slot: int) -> bool:
    value = node.inputs[slot]
    return value is not None and any(use.node is not node for use in value.uses())


def refuse_no_caches(graph: Graph, target: Target, decisions: Mapping[str, Decision]) -> None:
    """Refuse a model of which no cache is kept as codes where that was asked for.

    Raises:
        UsageError: There is none; the message has the reason of the first.
    """
    scheme = None if target.cache is None else target.cache.scheme
    keeps = (CACHES_ONLY in each.reason for each in decisions.values())
    if target.cache is None or scheme is None or any(keeps):
        return
    where = f"--cache-bits {scheme.bits}"
    found = [node for node in graph.nodes if caches_of(node) or why_no_cache(node)]
    if not found:
        raise UsageError(
            f"{where}: the model has no cache: an input [batch, heads, past, size] to which a node "
            "appends, which is an output then",
            remedy="leave it out, or export the decoder with caches",
        )
    node = found[0]
    others = _possible(node, target)
    wider = f"give --cache-bits {others[0]}, or " if others else ""
    raise UsageError(
        f"{where}: the cache of {node.name} stays float: "
        f"{why_float(node, target, scheme.bits) or decisions[str(node.name)].reason}",
        remedy=f"{wider}leave it out",
    )


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
    def twice(self) -> Steps | None:
        """The steps of keys some of whose channels have two codes; None where each has one.

        Raises:
            PlanError: The graph and the plan say something else of them.
        """
        steps = steps_of(self.cache.node) if is_key(self.cache) else None
        channels = () if steps is None else steps.channel_codes(self.cache.size)
        if channels != self.config.grid.channel_codes:
            raise PlanError(
                f"{self.end}: the plan has other codes of its channels than the model",
                remedy="quantize again",
            )
        return steps if channels else None

    @property
    def bytes_per_token(self) -> tuple[int, int]:
        """How many bytes a token takes: as codes, and as float32."""
        return self.cache.numbers * self.config.bits // 8, 4 * self.cache.numbers


def cache_points(plan: QuantizedGraph) -> Iterator[CachePoint]:
    """Yield the caches that hold codes, in graph order; the plan may lack scales."""
    for node in plan.graph.nodes:
        for cache in caches_of(node):
            end = TensorEnd.input(str(node.name), cache.new)
            config = plan.configs.get(end)
            if config is not None and is_cached(config):
                yield CachePoint(cache, config, end)


def with_cache_ranges(plan: QuantizedGraph, ranges: CacheRanges) -> QuantizedGraph:
    """Give caches their scales.

    Args:
        plan: Is not changed.
        ranges: For all of them.
    """
    plan = plan.copy()
    for point in cache_points(plan):
        config, largest = point.config, ranges[point.end]
        if config.granularity.axis is None:
            largest = largest.max()
        most, highest = np.where(largest > 0, largest, 1.0), config.grid.code_ends[1] + HALF
        scale = np.asarray(most / highest, np.float32)
        # What is more than half a step from its code would be clipped: it is not rounded down.
        is_low = scale * highest < most
        scale = np.where(is_low, np.nextafter(scale, np.float32(np.inf)), scale)
        scale = np.maximum(scale, np.finfo(np.float32).tiny)
        config.set_params(scale.astype(np.float32), np.zeros(scale.shape, np.int64))
        config.transition(QuantState.ACTIVATED)
        config.detail["fixed"] = True
        config.observer = "envelope"
    return plan
