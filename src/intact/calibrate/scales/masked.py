"""Leaves mask constants such as -1e9 out of ranges: they only switch positions off.

What is added to scores in front of a Softmax may hold -10000, -65504, -1e9, -3.4e38 or -inf where
attention is forbidden; so may what a maximum is taken of, or a Relu. A range that held them would
leave no code for the other values. Statistics keep them as they are; when ranges are chosen they
are left out, and the range is made just wide enough that what is cut off there is still nothing
after the Softmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.statistics import TensorStatistics
from intact.graph import (
    Graph,
    OpKind,
    OpSpec,
    constant_array,
    data_slots,
    input_value,
    is_constant,
    op_spec,
)
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels
from intact.ops import functions
from intact.ops.operators import (
    ArgMax,
    ArgMin,
    Div,
    Einsum,
    GlobalMaxPool,
    MatMul,
    Max,
    MaxPool,
    Min,
    Mul,
    ReduceMax,
    ReduceMin,
    Relu,
    Softmax,
    Sub,
    is_a,
    types_of,
)

_SOFTMAX = {Softmax.name: 1.0}

_ENDS = {
    **_SOFTMAX,
    **dict.fromkeys(types_of(functions.exp, functions.sigmoid, functions.softplus), 1.0),
    **dict.fromkeys(types_of(ArgMax, GlobalMaxPool, MaxPool, ReduceMax, Relu), math.inf),
    **dict.fromkeys(types_of(ArgMin, ReduceMin), -math.inf),
}
"""Operators for which a value far below others (a negative factor: above) is as good as any there,
and how far below it has to stay: ``NEGLIGIBLE`` over the factor."""

_CONSTANT_ENDS = {Max.name: math.inf, Min.name: -math.inf}
"""The same of their constant operands."""


def softmax_factors(graph: Graph) -> dict[str, float]:
    """Return the values from which a Softmax is reached, and how they come out there.

    The way leads through operators that add, choose, scale by a constant or move values. A
    Softmax reads a value times its factor (plus other things): 1 for what is added as it is, 0.125
    for scores that are scaled by that afterwards, -1 for what is subtracted. Where several ways
    lead there, the factor of the least magnitude counts.
    """
    return _factors(graph, _SOFTMAX, {})


def mask_factors(graph: Graph) -> dict[str, float]:
    """Return what `softmax_factors` does, for all that makes nothing of masked values.

    A maximum needs no room below its other values: its factor is infinite.
    """
    return _factors(graph, _ENDS, _CONSTANT_ENDS)


def _factors(
    graph: Graph, ends: Mapping[str, float], of_constants: Mapping[str, float]
) -> dict[str, float]:
    factors: dict[str, float] = {}
    for node in reversed(graph.nodes):
        if node.op_type in ends and node.domain == "":
            _note(factors, node.inputs[0], ends[node.op_type])
            continue
        if node.op_type in of_constants and node.domain == "":
            for value in filter(is_constant, node.inputs):
                _note(factors, value, of_constants[node.op_type])
        found = [factors[str(v.name)] for v in node.outputs if str(v.name) in factors]
        if found:
            factor = min(found, key=abs)
            for slot, own in _ways(node, factor).items():
                _note(factors, input_value(node, slot), own)
    return factors


def attention_values(graph: Graph) -> frozenset[str]:
    """Return the names of attention scores, ``[..., queries, keys]``, before and after Softmax.

    Attention is a Softmax whose result is multiplied with a computed matrix.
    """
    read = _read_by_products(graph)
    softmaxes = [n for n in graph.nodes if is_a(n, Softmax) and n.outputs[0] in read]
    found = {value for node in softmaxes for value in (node.inputs[0], node.outputs[0])}
    for node in reversed(graph.nodes):
        if any(value in found for value in node.outputs) and not is_a(node, Softmax):
            found |= {input_value(node, slot) for slot in _ways(node, 1.0)}
    for node in graph.nodes:  # and what is made of the result on its way, Dropout and the like
        if _ways(node, 1.0) and node.outputs[0] in read:
            found |= {node.outputs[0]} if node.inputs[0] in found else set()
    return frozenset(str(value.name) for value in found if value is not None)


def _note(factors: dict[str, float], value: ir.Value | None, factor: float) -> None:
    name = "" if value is None else str(value.name)
    # The least magnitude needs most room below: it is safe for the other ways too.
    if name and (name not in factors or abs(factor) < abs(factors[name])):
        factors[name] = factor


def _ways(node: ir.Node, factor: float) -> dict[int, float]:
    """Return the input slots that reach a node's output of that factor, each with its own."""
    spec = op_spec(node)
    if spec is None:
        return {}
    match node.op_type:
        case functions.negative.name:
            ways = {0: -factor}
        case Sub.name:
            ways = {0: factor, 1: -factor}
        case Mul.name:
            first, second = (_scalar(input_value(node, slot)) for slot in (0, 1))
            ways = {0: factor * second, 1: factor * first}
        case Div.name:
            ways = {0: factor / _scalar(input_value(node, 1))}
        case _ if _hands_on(spec):
            ways = dict.fromkeys(data_slots(node), factor)
        case _:
            ways = {}
    return ways


def _hands_on(spec: OpSpec) -> bool:
    """Tell whether an operator hands a masked value on as it is, far below 0."""
    if spec.kind in (OpKind.MOVE, OpKind.JOIN) or spec.adds or spec.converts:
        return True
    return spec.selects and spec.low < 0


def _scalar(value: ir.Value | None) -> float:
    """Return the number that a constant holds everywhere; 1 for anything else."""
    array = constant_array(value)
    if array is None or not array.size or array.dtype.kind not in "iuf":
        return 1.0
    number = float(array.flat[0])
    same = bool(np.all(array == array.flat[0]))
    return number if same and number and math.isfinite(number) else 1.0


def _read_by_products(graph: Graph) -> set[ir.Value]:
    """Return the values that reach a product of two computed matrices."""
    found: set[ir.Value | None] = set()
    for node in reversed(graph.nodes):
        if is_a(node, MatMul, Einsum):
            if not any(is_constant(value) for value in node.inputs):
                found |= set(node.inputs)
        elif any(value in found for value in node.outputs):
            found |= {input_value(node, slot) for slot in _ways(node, 1.0)}
    return {value for value in found if value is not None}


MASKED_BEYOND = 4096.0

"""Magnitude from which values may be mask constants. The smallest in use is 10000 (BERT), to which
the score is added; no score that matters to a Softmax is so large. An edge of the histogram."""

_NEAREST = MASKED_BEYOND / 2

"""Where other values reach further than this, they are taken for what they are, and all is kept."""

NEGLIGIBLE = 16.0

"""How far below another input of a Softmax a masked one stays, at least: exp(-16) is 1e-7."""

ALONE = 1024.0

"""What is left of a mask constant in a tensor with nothing but zeros beside it: far below any sum
of scores, and representable on every grid. Where such a tensor shares its scale with others, it
is as far below 0 as they reach above, and ``NEGLIGIBLE`` more."""

_INFINITE_BINS = (0x7F80, 0xFF80)

"""Bins of the histogram in which +inf and -inf are counted."""

_LARGEST = float(np.finfo(np.float32).max)


class Trimmed(msgspec.Struct, frozen=True):
    """A tensor without its mask constants.

    Attributes:
        distribution: The other values; a single 0 where there are none.
        low: How far down the range has to reach at least, not above 0.
        high: How far up, not below 0.
        is_alone: There was a mask constant, and nothing but zeros besides.
    """

    distribution: Distribution
    low: float = 0.0
    high: float = 0.0
    is_alone: bool = False

    def widened(self, low: float, high: float, levels: Levels) -> tuple[float, float]:
        """Return a range that reaches as far as it has to."""
        part = _needed_room(levels)
        return min(low, part * self.low), max(high, part * self.high)


class MaskConstants(msgspec.Struct):
    """What is known of mask constants while the ranges of a plan are chosen.

    Attributes:
        factors: From `mask_factors`.
        found: The tensors that had some, with the largest.
        alone: How tensors with nothing else come out at the Softmax, by the key of their scale.
    """

    factors: Mapping[str, float]
    found: dict[str, float] = msgspec.field(default_factory=dict)
    alone: dict[int, float] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> MaskConstants:
        """Find the masked tensors of a graph."""
        return cls(mask_factors(graph))

    def of_values(self, name: str, values: npt.NDArray[np.float32], key: int) -> Trimmed:
        """Return a constant tensor of the model without its mask constants.

        Args:
            name: The tensor.
            values: What it holds.
            key: The key of the scale that it will have, for ``shared``.
        """
        if name in self.factors:  # -inf is as good as the largest number
            values = np.clip(values, -_LARGEST, _LARGEST)
        return self._trim(name, Distribution.from_values(values), key)

    def of_statistics(self, name: str, statistics: TensorStatistics, key: int) -> Trimmed:
        """Return an observed tensor without its mask constants; arguments as above."""
        bin_ = _INFINITE_BINS[self.factors.get(name, 1.0) > 0]
        infinite = bool(statistics.counts[bin_])
        return self._trim(name, statistics.distribution(), key, infinite=infinite)

    def _trim(
        self, name: str, distribution: Distribution, key: int, *, infinite: bool = False
    ) -> Trimmed:
        factor = self.factors.get(name)
        trimmed = None if factor is None else trim(distribution, factor, infinite=infinite)
        if trimmed is None or factor is None:
            return Trimmed(distribution)
        ends = (distribution.minimum, distribution.maximum)
        self.found[name] = math.copysign(math.inf, -factor) if infinite else max(ends, key=abs)
        if trimmed.is_alone:
            self.alone[key] = factor
        return trimmed

    def shared(self, key: int, low: float, high: float, levels: Levels) -> tuple[float, float]:
        """Return the range of a scale with room for the tensors that hold nothing else.

        Args:
            key: The key of the scale.
            low: Lower end of the range of all tensors that share it.
            high: Upper end.
            levels: The levels of the scale.
        """
        if key not in self.alone:
            return low, high
        factor = self.alone[key]
        room = _needed_room(levels) * NEGLIGIBLE / abs(factor)
        margin = room if low < high else ALONE * max(1.0, 1.0 / abs(factor))
        return (min(low, -high - margin), high) if factor > 0 else (low, max(high, margin - low))

    def note(self) -> str:
        """Make the notes for the user; none if there is nothing to say."""
        if not self.found:
            return ""
        name, value = next(iter(self.found.items()))
        return (
            f"{len(self.found)} tensor(s) in front of a Softmax, a maximum or the like hold mask "
            f"constants, which set no range (first: {name}, {value:g})"
        )


def _needed_room(levels: Levels) -> float:
    """Return which part of the room for masked values is needed.

    The smallest power of two that holds a range may be twice as wide, which would cost the scores a
    bit; with this part it is the nearest one, and at least 11 of the 16 below stay.
    """
    return math.sqrt(0.5) if levels.power_of_two else 1.0


def trim(distribution: Distribution, factor: float, *, infinite: bool = False) -> Trimmed | None:
    """Take the mask constants out of a tensor.

    They are beyond ``MASKED_BEYOND`` on the side that its reader takes for 0, apart from all else.
    The range then reaches ``NEGLIGIBLE`` below the median of the other values (of the numbers that
    the Softmax reads): hardly a largest value of a row lies below that.

    Args:
        distribution: What the tensor holds.
        factor: What the Softmax reads of it, times this.
        infinite: Whether it holds infinity besides.

    Returns:
        None if there are none.
    """
    # Mirrored, so that all below is about values far below 0.
    if factor < 0:
        mirrored = trim(_mirror(distribution), -factor, infinite=infinite)
        return mirrored and msgspec.structs.replace(
            mirrored, distribution=_mirror(mirrored.distribution), low=0.0, high=-mirrored.low
        )
    masked = distribution.high <= -MASKED_BEYOND
    rest = ~masked
    # Apart from the rest by a factor of two at least, or else the tail of a distribution would be
    # cut off as a mask.
    if not (masked.any() or infinite) or distribution.low[rest].min(initial=0) < -_NEAREST:
        return None
    if not distribution.high[rest].any() and not distribution.low[rest].any():
        return Trimmed(_ZERO, is_alone=True)
    kept = _bins_to_keep(distribution, rest)
    return Trimmed(kept, low=min(kept.quantile(0.5) - NEGLIGIBLE / factor, 0.0))


def _bins_to_keep(distribution: Distribution, rest: npt.NDArray[np.bool_]) -> Distribution:
    """Return the distribution of some bins; its minimum is that of a bin, 0.8 % off at most."""
    low, high = distribution.low[rest], distribution.high[rest]
    count = distribution.count[rest]
    minimum, maximum = float(low[0]), float(high[-1])
    middle, total = 0.5 * low + 0.5 * high, count.sum()
    lowest, highest = distribution.mean_minimum, distribution.mean_maximum
    return msgspec.structs.replace(
        distribution,
        low=low,
        high=high,
        count=count,
        magnitudes=None,  # they have the mask constants
        minimum=minimum,
        maximum=maximum,
        mean_minimum=lowest if minimum <= lowest else minimum,
        mean_maximum=highest if minimum <= highest else maximum,
        mean=float(np.dot(count, middle) / total),
        mean_square=float(np.dot(count, middle * middle) / total),
    )


def _mirror(distribution: Distribution) -> Distribution:
    """Return the distribution of the same values with the other sign."""
    return msgspec.structs.replace(
        distribution,
        low=0.0 - distribution.high[::-1],
        high=0.0 - distribution.low[::-1],
        count=distribution.count[::-1],
        minimum=-distribution.maximum,
        maximum=-distribution.minimum,
        mean_minimum=-distribution.mean_maximum,
        mean_maximum=-distribution.mean_minimum,
        mean=-distribution.mean,
    )


_ZERO = Distribution(
    low=np.zeros(1),
    high=np.zeros(1),
    count=np.ones(1, np.int64),
    minimum=0.0,
    maximum=0.0,
    mean_minimum=0.0,
    mean_maximum=0.0,
    mean=0.0,
    mean_square=0.0,
    samples=1,
    zeros=1,
)
