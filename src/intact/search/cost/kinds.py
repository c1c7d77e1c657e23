"""Computes the costs of candidates by name: size, bit-operations, target, latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import onnx_ir as ir

from intact.config import PerBlock, QuantState
from intact.engines.session import Feeds
from intact.errors import DataError, UsageError, nearest
from intact.graph import (
    IMPLICIT_SLOT,
    OpKind,
    data_slots,
    is_constant,
    op_spec,
)
from intact.ops.declaration import Window
from intact.ops.operators import Conv, ConvTranspose, DeformConv, Gemm, is_a
from intact.plan import QuantizedGraph, TensorEnd, quantizes
from intact.plan.inference import declared_signatures, factor_slots, infer_signature
from intact.plan.points import is_joined
from intact.search.cost.model import Choice, CostModel, Measure, Term, sum_terms
from intact.search.cost.structure import Shapes, Structure, is_signed
from intact.search.space import GroupKind, Space, tied_in_blocks
from intact.targets import DType


def is_product(node: ir.Node) -> bool:
    """Tell whether a node multiplies and accumulates."""
    spec = op_spec(node)
    return spec is not None and spec.kind is OpKind.COMPUTE


def products(node: ir.Node, shapes: Shapes) -> int:
    """Count the multiply-accumulates of a node.

    Raises:
        DataError: A shape depends on the sample, and ``feeds`` is missing.
    """
    # Each input element is multiplied by the whole kernel of its channel; counted at the output, a
    # stride would be paid for several times.
    if is_a(node, ConvTranspose):
        kernel = shapes.of(node.inputs[1])
        return math.prod(shapes.of(node.inputs[0])) * math.prod(kernel[1:])
    outputs = math.prod(shapes.of(node.outputs[0]))
    if is_a(node, Conv, DeformConv):
        return outputs * math.prod(shapes.of(node.inputs[1])[1:])
    first = shapes.of(node.inputs[0])
    # Other products have no such attribute and read the default.
    transposed = Gemm.of(node).transA != 0
    return outputs * first[-2 if transposed else -1]


def elements(node: ir.Node, shapes: Shapes) -> int:
    """Count the elements that a node without products processes.

    A pool with a kernel: output elements times kernel size. A global pool or a reduction: input
    elements. Operators that only change the shape: none. Others: output elements.

    Raises:
        DataError: A shape depends on the sample, and ``feeds`` is missing.
    """
    spec = op_spec(node)
    if spec is not None and spec.reshapes:
        return 0
    kernel = Window.of(node).kernel_shape
    if spec is not None and spec.kind is OpKind.POOL and kernel:
        return math.prod(shapes.of(node.outputs[0])) * math.prod(kernel)
    if spec is not None and spec.kind in {OpKind.POOL, OpKind.REDUCE}:
        return math.prod(shapes.of(node.inputs[0]))
    return sum(math.prod(shapes.of(value)) for value in node.outputs if value.name)


def bit_operations(structure: Structure, shapes: Shapes) -> Iterator[Term]:
    """Yield the bit-operations of each node that multiplies and accumulates.

    These are MACs times the bits of both factors (weight and activation, or two activations). A
    float counts as 32 bits. Operators without products count as zero.

    Source: van Baalen et al., "Bayesian Bits: Unifying Quantization and Pruning", NeurIPS 2020:
    BOPs(l) = MACs(l) b_w b_a.

    Raises:
        DataError: A shape depends on the sample, and ``feeds`` is missing.
    """
    for node in structure.plan.graph.nodes:
        if is_product(node):
            ends = _factors(node)
            count = partial(_bit_operations, structure, ends, products(node, shapes))
            yield structure.table(structure.concerned(ends), count)


def target_operations(structure: Structure, shapes: Shapes) -> Iterator[Term]:
    """Yield each node's cost: the cost in the target's file times its products or elements.

    The costs in the file are relative; the unit is one product of an operator with cost 1. A node
    computes in the widest type of the first signature whose inputs hold its operands' codes
    (`infer_signature`), or else in float32. Nodes that are fused behind another one, only change
    the shape, or compute shapes cost nothing.

    Raises:
        DataError: A shape depends on the sample, and ``feeds`` is missing.
    """
    graph = structure.plan.graph
    shape_values = graph.shape_or_index_values
    for node in graph.nodes:
        computes_shapes = all(str(value.name) in shape_values for value in node.outputs)
        if op_spec(node) is None or computes_shapes or _is_fused(structure, node):
            continue
        count = products(node, shapes) if is_product(node) else elements(node, shapes)
        groups = structure.concerned(_operands(node), [str(node.name)])
        yield structure.table(groups, partial(_price_of, structure, node, count))


def _factors(node: ir.Node) -> list[TensorEnd]:
    return [TensorEnd.input(str(node.name), slot) for slot in (0, 1)]


def _bit_operations(
    structure: Structure, ends: list[TensorEnd], count: int, choice: Choice
) -> float:
    return count * math.prod(structure.bits(end, choice) for end in ends)


def _is_fused(structure: Structure, node: ir.Node) -> bool:
    """Tell whether a node is fused with its producer: an operand is never stored."""
    plan = structure.plan
    for slot in data_slots(node):
        value = node.inputs[slot]
        config = None if value is None else plan.producer_config(value)
        # What a join governs is written where it is made: it is on a grid of another node, and not
        # fused.
        if value is None or config is None or is_joined(plan, value):
            continue
        if config.state is QuantState.OVERLAPPED:
            return True
    return False


def _operands(node: ir.Node) -> list[TensorEnd]:
    return [TensorEnd.input(str(node.name), slot) for slot in factor_slots(node)]


def _price_of(structure: Structure, node: ir.Node, count: int, choice: Choice) -> float:
    target, rule, dtype = structure.plan.target, structure.plan.target.rule_for(node), DType.FLOAT32
    if rule is not None and not structure.is_float(node, choice):
        ends = _operands(node)
        # 0 fits every signature: an end without a group decides nothing.
        widths = [structure.bits(end, choice) if end in structure.group_of else 0 for end in ends]
        taken = infer_signature(declared_signatures(node, rule, target), widths)
        if taken is not None:
            dtype = max(taken.inputs, key=lambda each: each.bits, default=dtype)
    return count * target.cost_of(node.op_type, dtype, rule)


_SCALE_BYTES = 4

_ZERO_POINT_BYTES = 1


def storage_terms(structure: Structure) -> Iterator[Term]:
    """Yield the size in bytes of each constant, and of the scales of the activations."""
    # Constants that share a scale store it once: with the first of them.
    scaled: set[int] = set()
    twins = {weight for _, weight in tied_in_blocks(structure.plan)}
    for value in structure.plan.graph.values:
        readers = structure.plan.graph.consumers(value)
        ends = {TensorEnd.input(str(node.name), slot) for node, slot in readers}
        if is_constant(value) and not (ends and ends <= twins):  # stored with its table
            stored = _StoredConstant(structure, value, scaled)
            scaled.update(stored.points)
            yield structure.table(stored.groups, stored.nbytes)
    activations = [group for group in structure.space.groups if group.kind is GroupKind.ACTIVATION]
    parameters = len(activations) * (_SCALE_BYTES + _ZERO_POINT_BYTES)
    yield structure.table((), lambda _: parameters)


class _StoredConstant:
    """The stored size of one constant.

    Args:
        structure: The structure of the space.
        value: The constant.
        scaled: Dominators whose scales are counted with another constant.

    Attributes:
        points: Ends that share a grid, by ``id`` of their dominator.
    """

    def __init__(self, structure: Structure, value: ir.Value, scaled: set[int]) -> None:
        self._structure = structure
        self._value = value
        self._scaled = frozenset(scaled)
        # An output is handed out in float, and bodies of loops read values as they are.
        self._is_always_float = value.is_graph_output()
        self.points: dict[int, list[TensorEnd]] = {}
        configs = structure.plan.configs
        for node, slot in structure.plan.graph.consumers(value):
            end = TensorEnd.input(str(node.name), slot)
            # A body of a control operator reads the value as it is.
            if slot == IMPLICIT_SLOT or not _holds_codes(structure, end):
                self._is_always_float = True
            else:
                self.points.setdefault(id(configs[end].dominator), []).append(end)

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups on which the size depends."""
        return self._structure.concerned(end for ends in self.points.values() for end in ends)

    def nbytes(self, choice: Choice) -> int:
        """Compute the bytes of codes and scales, and of the floats if any node reads them."""
        total, is_float = 0, self._is_always_float
        for key, ends in self.points.items():
            floats = [self._structure.holds_floats(end, choice) for end in ends]
            is_float |= any(floats)
            if not all(floats):
                end = ends[floats.index(False)]
                # Float and integer readers of one constant: both copies are in the file.
                total += self._codes(end, choice, has_scales=key not in self._scaled)
        tensor = self._value.const_value
        return total + (tensor.nbytes if is_float and tensor is not None else 0)

    def _codes(self, end: TensorEnd, choice: Choice, *, has_scales: bool) -> int:
        bits, tensor = self._structure.bits(end, choice), self._value.const_value
        if tensor is None:
            return 0
        config = self._structure.plan.configs[end]
        blocks = self._structure.plan.target.blocks
        if blocks is not None and isinstance(config.granularity, PerBlock):
            stored, codes = blocks.stored_bits(bits), tuple(tensor.shape.numpy())
            count = math.prod(config.granularity.scales_shape(codes))
            zeros = 0 if config.grid.symmetric else stored
            return tensor.size * stored // 8 + count * blocks.scale_type.bytes + count * zeros // 8
        signed = is_signed(self._structure.plan, end)
        # Zero points are never packed, so they are of the type with 8 bits at least.
        in_bytes = DType.holding(max(bits, 8), signed=signed)
        dtype = DType.holding(bits, signed=signed) if self._structure.packs else in_bytes
        axis = self._structure.plan.configs[end].granularity.axis
        channels = 1 if axis is None else int(tensor.shape.numpy()[axis])
        scales = channels * _SCALE_BYTES + packed_bytes(channels, in_bytes)
        return packed_bytes(tensor.size, dtype) + (scales if has_scales else 0)


def packed_bytes(size: int, dtype: DType) -> int:
    """Compute the bytes of an integer array; 4-bit integers are stored two per byte.

    >>> packed_bytes(3, DType.INT4), packed_bytes(3, DType.INT8)
    (2, 3)
    """
    # Floor division of the negative rounds up, exactly and in integers.
    return -(-size * dtype.bits // 8)


def _holds_codes(structure: Structure, end: TensorEnd) -> bool:
    return end in structure.group_of or quantizes(structure.plan.configs[end])


@dataclass(frozen=True)
class CostKind:
    """An entry of the table.

    Attributes:
        unit: Unit of the cost.
        help: One line of help.
        terms: Makes the tables, from the structure of a space and the shapes of its values.
        is_measured: The cost is measured; the tables are only an estimate.
    """

    unit: str
    help: str
    terms: Callable[[Structure, Shapes], Iterable[Term]]
    is_measured: bool = False


def make_cost(
    name: str,
    space: Space,
    feeds: Feeds | None = None,
    measure: Measure | None = None,
    *,
    packs: bool = True,
) -> CostModel:
    """Make the cost model of a space.

    Args:
        name: A key of ``COSTS``.
        space: The candidates.
        feeds: One sample, for models whose shapes depend on it.
        measure: Measures a candidate; for measured kinds.
        packs: The deployed file stores 4-bit codes two per byte.

    Raises:
        UsageError: The kind is unknown, or measured and ``measure`` is missing, or the target's
            costs are the same for every candidate.
        DataError: A shape depends on the sample, and ``feeds`` is missing.
    """
    if name not in COSTS:
        raise UsageError(f"unknown cost {name!r}", remedy=nearest(name, COSTS))
    kind = COSTS[name]
    if kind.is_measured and measure is None:
        raise UsageError(
            f"the cost {name!r} is measured", remedy="pass a function that measures it"
        )
    # Measured kinds have tables too: samplers guess by them which candidate is worth measuring.
    terms = kind.terms(Structure(space, packs=packs), Shapes(space.plan.graph, feeds))
    constant, found = sum_terms(terms)
    choices = tuple(group.choices for group in space.groups)
    return CostModel(
        name, kind.unit, constant, found, choices, measure if kind.is_measured else None
    )


def _width_terms(structure: Structure, _: Shapes) -> Iterator[Term]:
    """Yield the width of each group; 32 for a float one.

    [tvm] ranks by the sum over quantized edges. Here the edges of one group have one quantizer and
    count once.
    """
    for index in range(len(structure.space.groups)):
        yield structure.table((index,), lambda choice, index=index: choice[index])  # type: ignore[misc]


def _size_terms(structure: Structure, _: Shapes) -> Iterator[Term]:
    return storage_terms(structure)


def _target_terms(structure: Structure, shapes: Shapes) -> Iterable[Term]:
    terms = list(target_operations(structure, shapes))
    # Without a term that varies every candidate would be the best.
    if structure.space.open and not sum_terms(terms)[1]:
        raise UsageError(
            f"target {structure.plan.target.name} has the same cost for all data types",
            remedy="minimize another cost, or "
            + (
                "let operators stay float, in a --format that has floats (onnx_qdq)"
                if structure.plan.target.cost
                else "give its file a [cost] table"
            ),
        )
    return terms


def _latency_terms(structure: Structure, shapes: Shapes) -> Iterable[Term]:
    """Estimate latency by the target's costs, or by bit-operations if it has none."""
    terms = list(target_operations(structure, shapes))
    return terms if sum_terms(terms)[1] else bit_operations(structure, shapes)


COSTS: Mapping[str, CostKind] = MappingProxyType(
    {
        "bytes": CostKind(
            "bytes", "size of the parameters: integers as stored, scales, biases", _size_terms
        ),
        "bitops": CostKind(
            "bit-operations",
            "products of one sample, times the bits of both factors (float: 32)",
            bit_operations,
        ),
        "target": CostKind(
            "operations",
            "the target file's cost of each operator and data type, times its operations",
            _target_terms,
        ),
        "latency": CostKind(
            "ms", "measured in ONNX Runtime, 32 samples at once", _latency_terms, is_measured=True
        ),
        "bits": CostKind("bits", "sum of the widths of all groups (HAGO's)", _width_terms),
    }
)

"""The kinds by name."""

_COMPUTED = ("bytes", "bitops")
"""Costs that need no target's prices and no measurement."""


def plan_costs(
    plan: QuantizedGraph, feeds: Feeds | None = None, *, packs: bool = True
) -> dict[str, float]:
    """Compute the costs of a plan by name: ``bytes`` of the parameters, and ``bitops``.

    Args:
        plan: The plan.
        feeds: Inputs of one sample by name, for models whose shapes depend on it. A cost that
            needs them is left out without.
        packs: The deployed file stores 4-bit codes two per byte.
    """
    space = Space.of_plan(plan)
    found = {}
    for name in _COMPUTED:
        try:
            found[name] = make_cost(name, space, feeds, packs=packs).of(space.default)
        except DataError:
            continue
    return found
