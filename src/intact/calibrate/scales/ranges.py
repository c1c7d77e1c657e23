"""Chooses the range of one tensor, and the scale that holds it.

A range ends where the tensor's readers can tell its values apart (`relevant_ranges`), and within
that where the threshold method says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.method import Method
from intact.calibrate.scales.masked import MaskConstants
from intact.calibrate.scales.roles import is_parameter, refuse_not_finite
from intact.calibrate.statistics import Statistics
from intact.config import Grid, TensorQuantConfig
from intact.errors import CalibrationError
from intact.graph import Graph, constant_array, input_value, is_constant, moves_values
from intact.graph.graph import IMPLICIT_SLOT
from intact.graph.ops import function_options
from intact.numerics.affine_params import QuantParams, params_from_range
from intact.numerics.conversion import SMALLEST, six_decimals
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.logarithmic import scale_from_threshold
from intact.numerics.thresholds import METHODS, estimate_range, fit_scheme, threshold_of
from intact.numerics.weight_range import signed_scales, weight_range
from intact.ops import functions
from intact.ops.operators import Clip, Identity, Max, Min, is_a, types_of
from intact.plan import Note, NoteKind, QuantPoint
from intact.plan.tie import THRESHOLD_RECTIFY, Follows, Range
from intact.targets import Blocks, ScalePrecision, ScaleType


class ChosenRange(NamedTuple):
    """The range of a tensor, and what is to be noted of it.

    Attributes:
        low: Lowest value that codes shall hold.
        high: Highest value.
        is_fallen: The method is not defined for it, the fallback chose.
        masks: Its own mask constants; the key of its scale is 0.
        threshold: What the method gave: the largest magnitude, or the width of an asymmetric range.
    """

    low: float
    high: float
    is_fallen: bool
    masks: MaskConstants
    threshold: float


def range_of(
    point: QuantPoint,
    statistics: Statistics,
    method: Method,
    factors: Mapping[str, float],
    intervals: Mapping[str, Interval] = MappingProxyType({}),
) -> ChosenRange:
    """Return the range of an activation, or of a constant that is none of a layer's parameters.

    Args:
        point: Where it is quantized.
        statistics: The statistics of its tensor, unless that is constant.
        method: Chooses the range.
        factors: How tensors come out at a Softmax (see `MaskConstants`).
        intervals: From `relevant_ranges`.

    Raises:
        CalibrationError: It was not observed, or is NaN; or a method is not defined for it.
    """
    name, masks = str(point.value.name), MaskConstants(factors)
    if point.is_constant and point.value.const_value is not None:
        values = point.value.const_value.numpy().astype(np.float32)
        # Infinity may mask; what is to be done about it is not decided here.
        refuse_not_finite(values[~np.isinf(values)], f"constant {name!r}", point.end.node)
        if name not in factors:  # with a factor infinity is a number
            _refuse_empty(int(np.isfinite(values).sum()), point)
        kept = masks.of_values(name, values, 0)
        levels = point.config.levels
        low, high = kept.widened(kept.distribution.minimum, kept.distribution.maximum, levels)
        return ChosenRange(low, high, False, masks, _threshold(low, high, levels, "minmax"))
    _refuse_empty(statistics[name].samples, point)
    kept = masks.of_statistics(name, statistics[name], 0)
    distribution = kept.distribution
    _refuse_empty(distribution.total, point)
    if name in intervals:
        distribution = within(distribution, intervals[name])
    levels = _levels(point.config, distribution)
    chosen, is_fallen = method.activations, False
    if not METHODS[chosen].fits(levels):
        chosen, is_fallen = method.fallback, True
    options = {
        key: value for key, value in method.options.items() if key in METHODS[chosen].options
    }
    low, high = kept.widened(*estimate_range(distribution, levels, chosen, **options), levels)
    return ChosenRange(low, high, is_fallen, masks, _threshold(low, high, levels, chosen))


def _refuse_empty(count: int, point: QuantPoint) -> None:
    if count == 0:
        raise CalibrationError(
            f"tensor {str(point.value.name)!r}: no finite value was observed",
            remedy=f"check the samples, or --keep-float {quote(point.end.node)}",
        )


def _threshold(low: float, high: float, levels: Levels, method: str) -> float:
    return threshold_of(*fit_scheme(low, high, levels), levels, method)


def _levels(config: TensorQuantConfig, distribution: Distribution) -> Levels:
    """Return the levels as they serve this tensor: all on one side where its values are."""
    levels = config.levels
    # The same codes, but methods defined for one side alone may be used on them.
    if levels.scheme is Scheme.ASYMMETRIC and distribution.minimum >= 0:
        codes = 0, levels.quant_max - levels.quant_min
        return Levels(*codes, Scheme.ONE_SIDED, power_of_two=levels.power_of_two)
    return levels


def weight_params(
    point: QuantPoint, method: Method, *, truncates: bool, blocks: Blocks | None = None
) -> QuantParams:
    """Return the scale and offset of a weight.

    Args:
        point: Where it is quantized.
        method: Chooses the range.
        truncates: The zero point is cut off to an integer (`TensorScheme.truncated_zero_point`).
        blocks: How the target holds weights in blocks.

    Raises:
        CalibrationError: It holds NaN or infinity.
    """
    values = _weight_values(point)
    return params_of_values(
        values, point.config.grid, method.weights, truncates=truncates, blocks=blocks
    )


def params_of_values(
    values: npt.NDArray[np.float32],
    grid: Grid,
    method: str,
    *,
    truncates: bool,
    blocks: Blocks | None = None,
) -> QuantParams:
    """Return the scale and offset of a weight with these values; see `weight_params`."""
    if grid.block is not None and blocks is not None:
        signed = grid.symmetric and blocks.signed_scales and grid.quant_min < -grid.quant_max
        if signed and method in _OF_SIGNED_SCALES:
            scales = signed_scales(values, grid.levels, method, grid.axis or 0, grid.block)
            return grid.check_params(stored_scales(scales, blocks.scale_type), None)
    ends = weight_range(values, grid.levels, method, grid.axis, grid.block)
    found = params_of(grid, *ends, truncates=truncates)
    if grid.block is None or blocks is None:
        return found
    return grid.check_params(stored_scales(found.scale, blocks.scale_type), found.zero_point)


_OF_SIGNED_SCALES = ("minmax", "mse")


def stored_scales(scales: npt.NDArray[Any], scale_type: ScaleType) -> npt.NDArray[np.float32]:
    """Return the scales of blocks as a file holds them: normal numbers of their type.

    Beyond what float16 holds, all scales of a weight are stored in float32.
    """
    # A scale of 0 would divide by zero; its sign is kept, as it says which end has the extra code.
    small = float(np.finfo(np.float32).tiny)
    bounded = np.copysign(np.maximum(np.abs(scales), small), scales)
    exact: npt.NDArray[np.float32] = np.asarray(bounded, np.float32)
    if scale_type is ScaleType.FLOAT32:
        return exact
    if scale_type is ScaleType.BFLOAT16:
        exact = _in_bfloat16(exact)
    half = np.finfo(np.float16)
    if np.abs(exact).max(initial=0) > half.max:
        return exact
    least = np.float32(half.smallest_subnormal)
    held = np.copysign(np.maximum(np.abs(exact), least), exact).astype(np.float16)
    return np.asarray(held, np.float32)


def _in_bfloat16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to the upper half of float32, ties to even."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    ties = bits >> 16 & 1
    return ((bits + (0x7FFF + ties)) & np.uint32(0xFFFF0000)).view(np.float32)


def weight_threshold(point: QuantPoint, method: Method) -> npt.NDArray[np.float64]:
    """Return what the method gave for a weight: ``[channels]`` or 0-d, float64."""
    low, high = _weight_range(point, method)
    return threshold_of(low, high, point.config.levels, method.weights)


def _weight_range(
    point: QuantPoint, method: Method
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    grid = point.config.grid
    return weight_range(_weight_values(point), grid.levels, method.weights, grid.axis, grid.block)


def _weight_values(point: QuantPoint) -> npt.NDArray[np.float32]:
    tensor = point.value.const_value
    values = np.zeros(0, np.float32) if tensor is None else tensor.numpy()
    values = values.astype(np.float32, copy=False)
    refuse_not_finite(values, f"weight {point.value.name!r}", point.end.node)
    return values


def params_of(
    grid: Grid, low: npt.ArrayLike, high: npt.ArrayLike, *, truncates: bool
) -> QuantParams:
    """Return the scale and offset of a grid that hold a range, or one for each channel.

    A power of two never clips the range: whether clipping pays was for the method to decide.
    """
    if grid.exponential:
        threshold = np.maximum(np.abs(low), np.abs(high))
        scale = scale_from_threshold(threshold, grid.quant_max, grid.octave)
        return grid.check_params(scale, None)
    params = params_from_range(
        low,
        high,
        grid.quant_min,
        grid.quant_max,
        symmetric=grid.symmetric,
        power_of_two=grid.power_of_two,
        truncated_zero_point=truncates,
    )
    return grid.check_params(params.scale, params.zero_point)


class TiedRanges(msgspec.Struct):
    """The ranges of one group, gathered in the order of the plan's points.

    Attributes:
        root: The group's dominator.
    """

    root: TensorQuantConfig
    _follows: str = Follows.MASTER
    _bits: list[int] = msgspec.field(default_factory=list)
    _ranges: list[Range] = msgspec.field(default_factory=list)

    def add(self, config: TensorQuantConfig, found: Range) -> None:
        """Take in the range of an end of the group."""
        # The master comes first, since functions take its scale; the others in the order of the
        # plan.
        at = len(self._bits)
        if config is self.root:
            at = 0
        else:
            self._follows = str(config.detail["follows"])
        self._bits.insert(at, config.bits)
        self._ranges.insert(at, found)

    def common(self) -> Range:
        """Return the range of the root that holds for all (``threshold_rectify``)."""
        return THRESHOLD_RECTIFY[self._follows](self._bits, self._ranges)[0]


def store_scales(points: Iterable[QuantPoint], precision: ScalePrecision) -> list[Note]:
    """Round the scales of activations in place, zero points stay; weights are not stored so.

    With ``decimal6`` a scale becomes the float32 that is read from its text of six decimals. One
    that would be read as 0 becomes the smallest that is not: its tensor uses few of the codes, but
    all its values have one.

    Args:
        points: The points of a plan; each has its scale.
        precision: The precision of the target's arithmetic.

    Returns:
        A note, if scales were raised.
    """
    if precision is not ScalePrecision.DECIMAL6:
        return []
    raised: list[str] = []
    seen: set[int] = set()
    for point in points:
        root = point.config.dominator
        if is_parameter(point) or id(root) in seen or root.params is None:
            continue
        seen.add(id(root))
        if _store(root):
            raised.append(str(point.value.name))
    if not raised:
        return []
    return [
        Note(
            NoteKind.CALIBRATION,
            "",
            f"the scales of {len(raised)} tensor(s) are 0 in six decimals, which is how they are "
            f"stored, and were raised to 0.000001 (first: {raised[0]!r})",
            "scale the model's values up there if their accuracy matters",
        )
    ]


def stored(params: QuantParams, precision: ScalePrecision) -> QuantParams:
    """Return the scale as a target stores it, see `store_scales`."""
    if precision is not ScalePrecision.DECIMAL6:
        return params
    return QuantParams(np.maximum(six_decimals(params.scale), SMALLEST), params.zero_point)


def _store(config: TensorQuantConfig) -> bool:
    """Round one scale; return whether it had to be raised."""
    params = config.params
    if params is None:
        return False
    config.set_params(*stored(params, ScalePrecision.DECIMAL6))
    return bool((six_decimals(params.scale) == 0).any())


# Narrows the range of a tensor to the values that its readers can tell apart.
#
# A Max with -0.4 makes -0.4 of everything below, so a tensor that only this Max reads needs no
# codes below -0.4. Where a LeakyRelu of slope 0.2 stands before the Max, its input needs none
# below -2.

Interval: TypeAlias = tuple[float, float]

_ALL: Interval = (-math.inf, math.inf)
_NONE: Interval = (math.inf, -math.inf)
_EXTREMES = types_of(Max, Min)


def relevant_ranges(graph: Graph) -> dict[str, Interval]:
    """Return the intervals within which the readers of tensors tell values apart.

    Only limits that a Max, Min or Clip with constants sets are followed, through LeakyRelu and what
    moves values. A Relu is left out: it is part of the layer before it, or has its scale.

    Returns:
        By name; tensors of which all values count are left out.
    """
    read_elsewhere = (
        value
        for value in graph.values
        if value.is_graph_output() or any(at == IMPLICIT_SLOT for _, at in graph.consumers(value))
    )
    found = {str(value.name): _ALL for value in read_elsewhere}
    # From the outputs: what readers tell apart is known before what gives them their data.
    for node in reversed(graph.nodes):
        behind = [found.get(str(value.name), _NONE) for value in node.outputs]
        before = _before(node, _hull(behind))
        for value in (v for v in node.inputs if v is not None and not is_constant(v)):
            name = str(value.name)
            found[name] = _hull([found.get(name, _NONE), before])
    return {name: each for name, each in found.items() if each not in (_ALL, _NONE)}


def within(distribution: Distribution, interval: Interval) -> Distribution:
    """Return a distribution with its values beyond an interval moved to its ends."""
    low, high = interval
    if low <= distribution.minimum and distribution.maximum <= high:
        return distribution
    lows, highs = (np.clip(each, low, high) for each in (distribution.low, distribution.high))
    points = lows == highs
    # bins that became points of the same place are one
    first = np.append(True, ~(points[1:] & points[:-1] & (lows[1:] == lows[:-1])))
    counts = np.add.reduceat(distribution.count, np.flatnonzero(first))
    lows, highs = lows[first], highs[first]
    middle = 0.5 * (lows + highs)
    minimum, maximum = np.clip((distribution.minimum, distribution.maximum), low, high).tolist()
    means = np.clip((distribution.mean_minimum, distribution.mean_maximum), low, high).tolist()
    return msgspec.structs.replace(
        distribution,
        low=lows,
        high=highs,
        count=counts,
        minimum=minimum,
        maximum=maximum,
        mean_minimum=means[0],
        mean_maximum=means[1],
        mean=float(np.dot(counts, middle) / counts.sum()),
        mean_square=float(np.dot(counts, middle * middle) / counts.sum()),
    )


def _hull(intervals: Sequence[Interval]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def _before(node: ir.Node, behind: Interval) -> Interval:
    """Return the interval that counts in a node's inputs, from that of its output."""
    if node.domain != "":
        return _ALL
    low, high = behind
    if moves_values(node) or is_a(node, Identity):
        return behind
    if is_a(node, functions.leaky_relu):
        slope = float(function_options(node)[0])
        return _unscaled(behind, slope) if slope > 0 else _ALL
    least, most = _limits(node)
    return (max(low, least), min(high, most)) if (least, most) != _ALL else _ALL


def _unscaled(interval: Interval, slope: float) -> Interval:
    """Return the inputs for which a LeakyRelu gives an interval."""
    low, high = (each / slope if each < 0 else each for each in interval)
    return low, high


def _limits(node: ir.Node) -> Interval:
    """Return between which numbers a node limits what it reads."""
    if node.op_type in _EXTREMES:
        arrays = [constant_array(value) for value in node.inputs if is_constant(value)]
        known = [array for array in arrays if array is not None and array.size]
        if not known or np.isnan(known[0]).any():
            return _ALL
        if is_a(node, Max):
            return float(known[0].min()), math.inf
        return -math.inf, float(known[0].max())
    if is_a(node, Clip):
        low, high = (constant_array(input_value(node, slot)) for slot in (1, 2))
        return (
            -math.inf if low is None or not low.size else float(low.min()),
            math.inf if high is None or not high.size else float(high.max()),
        )
    return _ALL
