"""Declares what an operator's declaration holds: its table row, the options of its nodes.

Convolutions and pools share the options of a window, and how its pads follow from them. Source: the
ONNX operator specification (AveragePool: output shapes, ``auto_pad``, ``ceil_mode``).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import msgspec

if TYPE_CHECKING:
    import onnx_ir as ir


class Role(enum.StrEnum):
    """The role of an operator input."""

    DATA = "data"
    """An activation."""
    WEIGHT = "weight"
    """The constant operand of a multiply-accumulate operator."""
    BIAS = "bias"
    """The constant added to the accumulator."""
    SHAPE = "shape"
    """A shape, an index, a size, a condition or a resize factor: never quantized."""
    PARAMETER = "parameter"
    """A constant argument of the operator: clip bounds, pad value, slope, norm scale."""


class OpKind(enum.StrEnum):
    """The kind of an operator, as far as quantization depends on it."""

    COMPUTE = "compute"
    """Multiplies and accumulates: has a weight, or two data inputs."""
    ELEMENTWISE = "elementwise"
    """Computes element by element on broadcast inputs."""
    ACTIVATION = "activation"
    """A function of one data input, element by element or along an axis (Softmax)."""
    POOL = "pool"
    """Reduces sliding or global spatial windows."""
    REDUCE = "reduce"
    """Reduces or accumulates along axes."""
    NORMALIZATION = "normalization"
    """Normalizes by statistics, stored or computed."""
    JOIN = "join"
    """Joins values of several inputs, unchanged."""
    MOVE = "move"
    """Reorders, selects or repeats the values of one input."""
    OTHER = "other"
    """Everything else: control flow, shapes, comparisons, recurrent operators."""


class OpSpec(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        kind: The kind of operator.
        roles: The role of each input, by position.
        variadic: The role of the inputs after ``roles``, for operators with any number of inputs.
        moves_values: Every output element is an element of data input 0 (or zero, which every
            integer grid represents exactly), so that output and input can share one scale. It may
            depend on attributes or other inputs: use ``intact.graph.ops.moves_values``.
        reshapes: The elements of the result are those of the input in the same order.
        selects: Every element of the result is an element of a data input, or a bound.
        clamps: It limits each element, and does nothing else.
        adds: It adds or subtracts its operands, and does nothing else.
        converts: It gives the same numbers in another type.
        places: It computes places, or counts on: neighbours need more digits than float16 has.
        decides: The result is another value, and no near one, where inputs change a little.
        keeps_sign: No result is negative where no data input is.
        moves_axes: The axes of the result are others than those of the first input, or hold other
            elements of them.
        fails_by: The input of which some whole numbers make it fail: places outside of the data, a
            divisor of 0.
        low: No result is less.
        high: No result is larger.
        neutral: A second operand that changes nothing.
        commutes: Two operands may change places.
        channel_axis: The axis of the result along which a weight has its output channels.
        numpy: The name that NumPy and torch have for it, where it has no options.
    """

    kind: OpKind
    roles: tuple[Role, ...]
    variadic: Role | None = None
    moves_values: bool = False
    reshapes: bool = False
    selects: bool = False
    clamps: bool = False
    adds: bool = False
    converts: bool = False
    places: bool = False
    decides: bool = False
    keeps_sign: bool = False
    moves_axes: bool = False
    fails_by: int | None = None
    low: float = -math.inf
    high: float = math.inf
    neutral: float | None = None
    commutes: bool = False
    channel_axis: int | None = None
    numpy: str = ""

    @property
    def takes_any(self) -> bool:
        """Whether it joins any number of operands, one after the other."""
        return self.kind is OpKind.ELEMENTWISE and not self.roles

    def role(self, slot: int) -> Role:
        """Return the role of input ``slot``; unlisted positions carry data."""
        if 0 <= slot < len(self.roles):
            return self.roles[slot]
        return self.variadic if self.variadic is not None else Role.DATA


DECLARED: dict[str, OpSpec] = {}
DECLARED_OPERATORS: dict[str, type[Operator]] = {}
"""What `intact.ops.operators` declares."""

UNKNOWN = OpSpec(OpKind.OTHER, ())
"""What is known of an operator that is not in the table."""


class Operator:
    """The options of a node; the class is the declaration of its operator.

    Attributes:
        name: The type of the operator.
        defaults: Its options by name, with ONNX's defaults.
    """

    name: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    _row: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __init_subclass__(cls, *, abstract: bool = False, **row: Any) -> None:
        """Declare an operator: fields of its `OpSpec`, with options and fields of the class above.

        Args:
            abstract: Only several operators have these, this is none.
            row: Fields of its row.
        """
        # Those of the class itself: what it inherits is in `cls.defaults` already.
        own = {name: value for name, value in vars(cls).items() if _is_option(name, value)}
        cls.defaults = MappingProxyType({**cls.defaults, **own})
        cls._row = MappingProxyType({**cls._row, **row})
        if not abstract:
            cls.name = cls.__name__
            DECLARED_OPERATORS[cls.name], DECLARED[cls.name] = cls, OpSpec(**cls._row)

    @classmethod
    def of(cls, node: ir.Node) -> Self:
        """Read the options of a node; an empty word is an absent one.

        What is not declared is left out, so it may be a node of another operator with such options.
        """
        # Defaults are attributes of the class, so an instance holds only what the node says.
        options = cls()
        for name, attribute in node.attributes.items():
            value = attribute.value
            if name in cls.defaults and value is not None and value != "":
                setattr(options, name, tuple(value) if isinstance(value, list) else value)
        return options


def _is_option(name: str, value: object) -> bool:
    return not name.startswith("_") and (
        value is None or isinstance(value, int | float | str | tuple)
    )


def declare(name: str, kind: OpKind, *roles: Role, **facts: Any) -> type[Operator]:
    """Declare an operator without options, or none that matters here."""
    declared: type[Operator] = type(name, (Operator,), {}, kind=kind, roles=roles, **facts)
    return declared


def named(name: str) -> type[Operator]:
    """Name an operator of which nothing is known: it has no row in the table."""
    declared: type[Operator] = type(name, (Operator,), {"name": name}, abstract=True)
    return declared


Integers: TypeAlias = tuple[int, ...]
"""A list of integers as an option: empty where it is absent."""

Pads: TypeAlias = tuple[tuple[int, int], ...]
"""Elements before and behind, by axis."""


class Window(Operator, abstract=True):
    """What convolutions and pools share; data is ``[N, C, *S]``.

    Lists have one entry for each spatial axis, ``pads`` two.
    """

    kernel_shape: Integers = ()
    strides: Integers = ()
    dilations: Integers = ()
    pads: Integers = ()
    auto_pad: str = "NOTSET"

    def steps(self, rank: int) -> tuple[Integers, Integers]:
        """Return strides and dilations by spatial axis."""
        return self.strides or (1,) * rank, self.dilations or (1,) * rank

    @property
    def pads_to_same(self) -> bool:
        """Whether the pads follow from the lengths of the axes."""
        return self.auto_pad in ("SAME_UPPER", "SAME_LOWER")

    def padding(self, sizes: Sequence[int], kernel: Integers) -> Pads:
        """Return the pads by spatial axis, without what rounding up adds.

        Args:
            sizes: Lengths of the spatial axes; read only where the pads follow from them.
            kernel: Lengths of the window.
        """
        rank = len(kernel)
        if self.pads_to_same:
            upper = self.auto_pad == "SAME_UPPER"
            return same_pads(sizes, kernel, *self.steps(rank), upper=upper)
        if self.auto_pad == "VALID" or not self.pads:
            return ((0, 0),) * rank
        return tuple(zip(self.pads[:rank], self.pads[rank:], strict=True))


class Pool(Window, abstract=True):
    """The options of all pools: their lengths may be rounded up."""

    ceil_mode: int = 0

    def added(self, sizes: Sequence[int], kernel: Integers, pads: Pads) -> Integers:
        """Return by how much rounding up lengthens the pads behind."""
        if not self.ceil_mode:
            return (0,) * len(kernel)
        found = []
        axes = zip(sizes, kernel, *self.steps(len(kernel)), pads, strict=True)
        for size, width, stride, dilation, (before, behind) in axes:
            span = (width - 1) * dilation + 1
            steps = steps_rounded_up(size, span, stride, before, behind)
            # Below 0 where data is left over behind the last window.
            found.append(max(steps * stride + span - size - before - behind, 0))
        return tuple(found)


def steps_rounded_up(size: int, span: int, stride: int, before: int, behind: int) -> int:
    """Return how many steps a window makes of which the last may end behind the pads.

    One that would begin in the pads behind is left out.

    Args:
        size: Length of the axis.
        span: How far the window reaches.
        stride: Length of a step.
        before: Pads before the data.
        behind: Pads behind it.
    """
    room = size + before + behind - span
    # Runtimes drop a window that sees pads alone, so the last begins in the data at the latest.
    return min(-(-room // stride), (size + before - 1) // stride)


def lacking_for_same(size: int, span: int, stride: int) -> int:
    """Return the pads of an axis for one window at each stride; negative where data is left over.

    Arguments as of `steps_rounded_up`.
    """
    return (-(-size // stride) - 1) * stride + span - size


def same_pads(
    sizes: Sequence[int],
    kernel: Integers,
    strides: Integers,
    dilations: Integers,
    *,
    upper: bool,
) -> Pads:
    """Return pads that make as many windows as strides fit into an axis.

    Args:
        sizes: Lengths of the axes.
        kernel: Lengths of the window.
        strides: Steps of the window.
        dilations: Steps within the window.
        upper: An odd pad is longer behind, else before.
    """
    pads = []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        # Strides longer than the window leave data over, and pads are never negative.
        total = max(lacking_for_same(size, (width - 1) * dilation + 1, stride), 0)
        less = total // 2
        pads.append((less, total - less) if upper else (total - less, less))
    return tuple(pads)
