"""Compiles a plan into the instructions that a module runs in a forward pass.

Values are known by keys: a tensor by its name, what a quantizer makes of it by the name of the
quantization point. Instructions hold names only, no tensors and no modules, so that one list serves
copies of a module on several devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import bias_slot, data_slots, weight_slot
from intact.graph.graph import values_read_inside
from intact.improve.learn.operators import Apply, prepare
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd, quantization_points


@dataclass(frozen=True)
class Quantize:
    """Fake-quantizes a tensor.

    Attributes:
        end: The quantization point.
        quantizer: Key of the quantizer.
        is_constant: The tensor is a weight or another constant.
        bits: Width of the codes.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    end: TensorEnd
    quantizer: str
    is_constant: bool
    bits: int


@dataclass(frozen=True)
class QuantizeBias:
    """Fake-quantizes a bias at the product of the scales of data and weight.

    Attributes:
        end: The quantization point.
        data: Key of the quantizer of the data.
        weight: Key of that of the weight.
        quant_min: Smallest code.
        quant_max: Largest code.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    end: TensorEnd
    data: str
    weight: str
    quant_min: int
    quant_max: int


@dataclass(frozen=True)
class Compute:
    """Computes a node."""

    reads: tuple[str, ...]
    """By slot; "" where there is nothing. Then what bodies of the node read from outside them."""
    writes: tuple[str, ...]
    node: str
    apply: Apply


@dataclass(frozen=True)
class Fold:
    """Folds a BatchNormalization into weight and bias of the layer in front of it.

    Reads data, weight and bias; writes weight and bias.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    node: str
    apply: Apply


@dataclass(frozen=True)
class Normalize:
    """Applies what of a BatchNormalization is not in the weights. Reads result and bias."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    node: str


Instruction: TypeAlias = Quantize | QuantizeBias | Compute | Fold | Normalize


@dataclass(frozen=True)
class Program:
    """What a module runs.

    Attributes:
        instructions: The instructions, in order.
        unused: By instruction, the keys that nothing reads afterwards.
        outputs: The keys of the graph's outputs.
    """

    instructions: tuple[Instruction, ...]
    unused: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]


def compile_plan(
    plan: QuantizedGraph,
    normed: Iterable[str] = (),
    rule: Callable[[ir.Node], Apply] = prepare,
) -> Program:
    """Compile a plan.

    Args:
        plan: A plan with scales.
        normed: Names of layers whose BatchNormalization is kept.
        rule: Gives what computes a node.
    """
    builder = _Builder(plan, frozenset(normed), rule)
    for node in plan.graph.nodes:
        builder.add(node)
    outputs = tuple(builder.current[str(value.name)] for value in plan.graph.outputs)
    instructions = tuple(builder.instructions)
    return Program(instructions, tuple(_unused(instructions, outputs)), outputs)


def quantizer_keys(plan: QuantizedGraph) -> dict[int, tuple[str, QuantPoint]]:
    """Return the key of each dominator's quantizer, with its first point, by identity.

    Biases that follow the scales of data and weight have none.
    """
    found: dict[int, tuple[str, QuantPoint]] = {}
    taken: set[str] = set()
    for point in quantization_points(plan):
        root = id(point.config.dominator)
        if root not in found and bias_scale_sources(plan, point) is None:
            key = str(point.end).replace(".", "/")  # PyTorch takes no points in names
            # Names that differ in points and slashes alone come to one key.
            while key in taken:
                key += "_"
            taken.add(key)
            found[root] = key, point
    return found


def bias_scale_sources(
    plan: QuantizedGraph, point: QuantPoint
) -> tuple[TensorQuantConfig, TensorQuantConfig] | None:
    """Return the configs of data and weight whose scales make that of a bias; None for others."""
    if point.config.state is not QuantState.PASSIVE or point.at_output or not point.readers:
        return None
    node, slot = point.readers[0]
    weight, data = weight_slot(node), next(iter(data_slots(node)), None)
    if slot != bias_slot(node) or weight is None or data is None:
        return None
    configs = plan.input_config(node, data), plan.input_config(node, weight)
    return None if any(each.scale is None for each in configs) else configs


class _Builder:
    """Adds the instructions of nodes, each behind those of what it reads."""

    def __init__(
        self, plan: QuantizedGraph, normed: frozenset[str], rule: Callable[[ir.Node], Apply]
    ) -> None:
        self.instructions: list[Instruction] = []
        self.current: dict[str, str] = {str(v.name): str(v.name) for v in plan.graph.values}
        self._plan = plan
        self._normed = normed
        self._rule = rule
        self._keys = {name: key for name, (key, _) in quantizer_keys(plan).items()}
        self._points: dict[str, list[QuantPoint]] = {}
        for point in quantization_points(plan):
            self._points.setdefault(str(point.value.name), []).append(point)
        self._read: dict[tuple[str, int], str] = {}
        self._quantized: set[str] = set()

    def add(self, node: ir.Node) -> None:
        """Add a node with the quantizers of its operands and results."""
        name = str(node.name)
        weight, bias = weight_slot(node), bias_slot(node)
        late = (
            # Weights are quantized as deployed, with the normalization in them: after folding.
            {slot for slot in (weight, bias) if slot is not None} if name in self._normed else set()
        )
        for slot, value in enumerate(node.inputs):
            if value is not None and slot not in late:
                self._quantize(value)
        if late:
            self._fold(node, weight or 1, bias or 2)
        reads = self._reads(node)
        writes = tuple(str(value.name) if value.name else "" for value in node.outputs)
        self.instructions.append(Compute(reads, writes, name, self._rule(node)))
        if late:
            own = str(node.inputs[bias or 2].name)  # type: ignore[union-attr]
            self._move(writes[0], f"{writes[0]}/normalized")
            written = (self.current[writes[0]],)
            self.instructions.append(Normalize((writes[0], own), written, name))
        for value in node.outputs:
            if value.name:
                self._quantize(value)

    def _reads(self, node: ir.Node) -> tuple[str, ...]:
        """Name what a node reads: by slot, and then what its bodies read from outside them."""
        name = str(node.name)
        own = tuple(
            "" if value is None else self._read.get((name, slot), self.current[str(value.name)])
            for slot, value in enumerate(node.inputs)
        )
        inside = (value for value in values_read_inside(node) if value.graph is node.graph)
        return own + tuple(self.current[str(value.name)] for value in inside)

    def _move(self, value: str, key: str) -> None:
        self.current[value] = key

    def _quantize(self, value: ir.Value) -> None:
        """Add the quantizers of a value, once; those of its producer first."""
        name = str(value.name)
        if name in self._quantized:
            return
        self._quantized.add(name)
        for point in self._points.get(name, ()):
            key = str(point.end)
            if not point.is_passed_on:
                source = self.current[name]
                self.instructions.append(self._quantizer(point, (source,), (key,)))
                # A point at the output serves all readers; one at an input only those that it
                # names.
                if point.at_output:
                    self._move(name, key)
                else:
                    self._read |= {(str(n.name), slot): key for n, slot in point.readers}

    def _quantizer(
        self, point: QuantPoint, reads: tuple[str, ...], writes: tuple[str, ...]
    ) -> Instruction:
        config = point.config
        found = bias_scale_sources(self._plan, point)
        if found is None:
            quantizer = self._keys[id(config.dominator)]
            return Quantize(reads, writes, point.end, quantizer, point.is_constant, config.bits)
        data, weight = (self._keys[id(each.dominator)] for each in found)
        ends = config.quant_min, config.quant_max
        return QuantizeBias(reads, writes, point.end, data, weight, *ends)

    def _fold(self, node: ir.Node, weight: int, bias: int) -> None:
        """Fold a BatchNormalization into a layer's constants before they are quantized."""
        name = str(node.name)
        values = [node.inputs[slot] for slot in (weight, bias)]
        names = [str(value.name) for value in values if value is not None]
        (data,) = (self._reads(node)[slot] for slot in data_slots(node))
        written = tuple(f"{each}/folded/{name}" for each in names)
        rule = self._rule(node)
        self.instructions.append(Fold((data, *names), written, name, rule))
        for each, key in zip(names, written, strict=True):
            self._move(each, key)
        for value in values:
            if value is not None:
                self._quantize(value)


def _unused(
    instructions: Sequence[Instruction], outputs: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield for each instruction the keys that are read or written there for the last time."""
    kept = set(outputs)
    last: dict[str, int] = {}
    for index, each in enumerate(instructions):
        # Written keys too: what nothing reads is let go where it was made.
        last |= dict.fromkeys((*each.reads, *each.writes), index)
    by_index: dict[int, list[str]] = {}
    for key, index in last.items():
        if key and key not in kept:
            by_index.setdefault(index, []).append(key)
    for index in range(len(instructions)):
        yield tuple(by_index.get(index, ()))
