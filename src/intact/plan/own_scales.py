"""Keeps the scales that tensors would have by themselves, where they share another's.

Of a MaxPool, for example, input and output share a scale in the plan, and Tengine's table has two.

A plan computes with one scale for ends that are tied or fused. Tengine's tables are written before
that [tengine]: each tensor has the scale of its own range there, and who reads the table passes
scales on. Targets with ``own_scales`` keep these in ``detail["own"]`` of the tensor's end, where
they differ from the scale in effect; nothing computes with them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.config import JsonValue, TensorQuantConfig
from intact.errors import DataError, PlanError
from intact.graph import is_constant
from intact.numerics.affine_params import QuantParams
from intact.plan.given_scales import GivenScale
from intact.plan.points import QuantPoint
from intact.plan.quantized_graph import QuantizedGraph, TensorEnd, quantizes

_OWN = "own"


def scales_of(plan: QuantizedGraph, value: ir.Value) -> list[TensorQuantConfig]:
    """List the scales under which codes of a value exist, each by its dominator and once.

    A tensor inside a fusion has the scale of the fusion's result.
    """
    return list({id(c.dominator): c.dominator for _, c in _ends(plan, value)}.values())


def shared_points(plan: QuantizedGraph) -> Iterator[QuantPoint]:
    """Yield the activations that share a scale with other tensors and may have one of their own.

    Of targets with ``own_scales``; a model that was read has no scales but those in effect. A
    tensor whose scale the target prescribes is left out, and one that is quantized in several ways.
    """
    if not plan.target.calibration.own_scales or plan.provenance.source:
        return
    # By the dominator in effect: a tensor that shares it with none has no other scale to keep.
    groups: dict[int, list[ir.Value]] = {}
    for value in plan.graph.values:
        if value.dtype is not ir.DataType.FLOAT or is_constant(value):
            continue
        roots = scales_of(plan, value)
        if len(roots) == 1:
            groups.setdefault(id(roots[0]), []).append(value)
    for value in (value for group in groups.values() if len(group) > 1 for value in group):
        ends = list(_ends(plan, value))
        if not any(config.dominator is config and _is_fixed(config) for _, config in ends):
            end, config = ends[0]
            readers = plan.graph.consumers(value)
            yield QuantPoint(value, config.dominator, end, readers, at_output=True)


def keep_own(plan: QuantizedGraph, point: QuantPoint, params: QuantParams) -> None:
    """Keep the scale of a shared point in its plan, in place."""
    effective = point.config.params
    if effective is not None and all(a == b for a, b in zip(params, effective, strict=True)):
        return
    # The shortest decimals that read back to the same float32, as all scales of a plan.
    numbers: list[JsonValue] = [float(str(np.float32(params.scale))), int(params.zero_point)]
    plan.configs[point.end].detail[_OWN] = numbers


def own_params(plan: QuantizedGraph, value: ir.Value) -> QuantParams | None:
    """Return the scale that a tensor has by itself; the one in effect where none was kept.

    Raises:
        PlanError: What a plan's file has there is no scale and zero point.
    """
    for end, config in _ends(plan, value):
        match config.detail.get(_OWN):
            case None:
                continue
            case [float(scale), int(zero_point)]:
                kept = _check_scale(end, config, scale, zero_point)
                return QuantParams(kept.scale, kept.zero_point)
            case _:
                raise PlanError(f"{end}: 'own' is no scale and zero point", remedy="quantize again")
    return next((root.params for root in scales_of(plan, value)), None)


def _check_scale(
    end: TensorEnd, config: TensorQuantConfig, scale: float, zero_point: int
) -> GivenScale:
    grid = config.dominator.grid
    try:
        return GivenScale.of(scale, zero_point, bits=grid.bits, signed=grid.quant_min < 0)
    except DataError as error:
        raise PlanError(f"{end}: {error}", remedy="quantize again") from error


def _ends(plan: QuantizedGraph, value: ir.Value) -> Iterator[tuple[TensorEnd, TensorQuantConfig]]:
    """Yield the ends at which a value has codes, where it is written first."""
    node, config = value.producer(), plan.producer_config(value)
    if node is not None and config is not None and _has_codes(config):
        yield TensorEnd.output(str(node.name), value.index() or 0), config
    for reader, slot, each in plan.consumer_configs(value):
        if _has_codes(each):
            yield TensorEnd.input(str(reader.name), slot), each


def _has_codes(config: TensorQuantConfig) -> bool:
    return quantizes(config) or config.dominator is not config


def _is_fixed(config: TensorQuantConfig) -> bool:
    return bool(config.detail.get("fixed"))
