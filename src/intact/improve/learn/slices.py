"""Runs blocks of a network in torch, in float or fake-quantized, while their weights are learned.

Block-wise reconstruction (`reconstruct`) learns the rounding of weights one block after the other.
For that it needs the results of a block three ways: in float (`FLOAT`), quantized as the plan says
(`QUANTIZED`), and with the weights and biases that are being learned in the place of the plan's (a
`Mode` of its own). `Slices` has the instructions of the whole plan and runs any block of them::

    wanted = slices.run(block, float_inputs, FLOAT)
    found = slices.run(block, quantized_inputs, QUANTIZED)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from intact.engines.integer.islands import compiled_nodes
from intact.errors import Unsupported
from intact.graph import Graph, is_constant, output_channel_axis
from intact.graph.graph import values_read_inside
from intact.improve.learn.blocks import Block, Steps
from intact.improve.learn.constants import numbers_of
from intact.improve.learn.fake_quantize import straight_through
from intact.improve.learn.instructions import (
    Compute,
    Instruction,
    Quantize,
    QuantizeBias,
    compile_plan,
    quantizer_keys,
)
from intact.improve.learn.module import divided_in, quantizers_of
from intact.improve.learn.operators import Apply, prepare
from intact.improve.learn.quantizers import Learning, Quantizer, bias_codes
from intact.improve.learn.segments import Values
from intact.ops.operators import MatMul, is_a
from intact.plan import QuantizedGraph
from intact.plan.given_scales import GIVEN
from intact.program.operations import FloatNodes

Mix: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Mixes a quantized and a float activation into the one that a learning block goes on with."""


@dataclass(frozen=True)
class Mode:
    """How a part of a plan is run.

    Attributes:
        weights: Whether constants are quantized.
        activations: Whether activations are.
        softened: Weights that are being learned, whose rounding is not yet hard, by the key that
            their quantizer writes.
        biases: Biases that are being learned, by name.
        mix: Combines quantized and float activations while a block learns, as QDrop does; None
            takes the quantized ones.
    """

    weights: bool = True
    activations: bool = True
    softened: Mapping[str, Tensor] = field(default_factory=dict)
    biases: Mapping[str, Tensor] = field(default_factory=dict)
    mix: Mix | None = None


FLOAT = Mode(weights=False, activations=False)
QUANTIZED = Mode()


@dataclass(frozen=True)
class Profile:
    """What a plan computes for some samples.

    Attributes:
        shapes: The shape of each tensor, by key.
        floats: Which of them hold floats.
        costs: What each step takes, in multiply-adds.
    """

    shapes: Mapping[str, tuple[int, ...]]
    floats: frozenset[str]
    costs: tuple[int, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The elements of each tensor of floats, by key."""
        return {key: math.prod(self.shapes[key]) for key in self.floats}


class Slices:
    """A plan as torch instructions, of which any block can be run by itself.

    Args:
        plan: A plan with scales and without integers of its own, see `without_integers`.
        rounded: The real numbers of the integers that the plan had for constants, by name.
        device: Where it is computed.

    Attributes:
        plan: The plan.
        steps: Its instructions.
        in_float: The constants of the float model by name.
        values: The constants that the quantized model starts from: those of the float model, and
            ``rounded`` where there are any.
        rounded: Names of constants of which the plan had integers.
        quantizers: The modules that fake-quantize, by key.
        given: The keys of quantizers whose scale a user gave.
    """

    def __init__(
        self, plan: QuantizedGraph, rounded: Mapping[str, np.ndarray], device: torch.device
    ) -> None:
        self.plan, self.device = plan, device
        graph = plan.graph
        arrays = {
            str(value.name): array
            for value in graph.values
            if is_constant(value) and (array := numbers_of(graph, value)) is not None
        }
        self.in_float = {n: torch.from_numpy(np.array(a)).to(device) for n, a in arrays.items()}
        self.rounded = frozenset(rounded)
        self.values = self.in_float | {
            n: torch.from_numpy(np.array(a, np.float32).reshape(arrays[n].shape)).to(device)
            for n, a in rounded.items()
            if n in arrays
        }
        names = [str(value.name) for value in graph.values if is_constant(value)]
        self.steps = Steps.of(compile_plan(plan, rule=rule_for(graph)), names)
        self.quantizers: dict[str, Quantizer] = {
            key: each.to(device).requires_grad_(requires_grad=False)
            for key, each in quantizers_of(plan, Learning.LSQ, in_logarithms=True).items()
        }

        self.given = {
            key
            for key, point in quantizer_keys(plan).values()
            if point.config.dominator.observer == GIVEN
        }

    def weights_of(self, node: str) -> int:
        """Count the elements of a layer's weight."""
        value = self.plan.graph.node(node).inputs[1]
        return 0 if value is None else self.in_float[str(value.name)].numel()

    def readers(self, name: str) -> list[Instruction]:
        """Return the instructions that read a constant."""
        every = (*self.steps.constants, *self.steps.steps)
        return [step for step in every if name in step.reads]

    def run(self, block: Block, values: Values, mode: Mode) -> Values:
        """Run a block.

        Args:
            block: The block.
            values: What it reads by key; not changed.
            mode: How.

        Returns:
            What it and later blocks read and what it gives, by key.
        """
        held = dict(values)
        own = self.values if mode.weights else self.in_float
        held |= {key: own[key] for key in self._read_constants(block) if key in own}
        # Over those of the model: these are the ones that are being learned.
        held |= mode.biases
        for each in self.steps.constants_for(block.first, block.end):
            self._step(each, held, mode)
        for each in self.steps.steps[block.first : block.end]:
            self._step(each, held, mode)
        # The rest is let go, so that memory holds what one block computes.
        return {key: held[key] for key in {*block.keeps, *block.writes}}

    def _read_constants(self, block: Block) -> Collection[str]:
        inside = self.steps.steps[block.first : block.end]
        read = [*self.steps.constants_for(block.first, block.end), *inside]
        return {key for step in read for key in step.reads if key}

    def _step(self, step: Instruction, held: Values, mode: Mode) -> None:
        operands = [held[key] if key else None for key in step.reads]
        value = operands[0] if operands else None
        if isinstance(step, Compute):
            result = step.apply(*operands)
            results = result if isinstance(result, tuple) else (result,)
        elif value is None:
            raise TypeError(step)
        elif isinstance(step, QuantizeBias):
            results = (self._bias(step, value) if mode.weights else value,)
        elif isinstance(step, Quantize):
            results = (self._quantize(step, value, mode),)
        else:
            raise TypeError(step)
        held.update(zip(step.writes, results, strict=False))

    def _quantize(self, step: Quantize, value: Tensor, mode: Mode) -> Tensor:
        if step.is_constant:
            if step.writes[0] in mode.softened:
                return mode.softened[step.writes[0]]
            quantizer = self.quantizers[step.quantizer]
            return quantizer(value, divided_in(step.bits)) if mode.weights else value
        if not mode.activations:
            return value
        quantized: Tensor = self.quantizers[step.quantizer](value)
        return quantized if mode.mix is None else mode.mix(quantized, value)

    def _bias(self, step: QuantizeBias, bias: Tensor) -> Tensor:
        codes, scale = bias_codes(bias, self.quantizers[step.data], self.quantizers[step.weight])
        codes = codes.clamp(step.quant_min, step.quant_max)
        return straight_through(bias, codes * scale)

    def overflows(self, block: Block) -> bool:
        """Tell whether a bias of a block does not fit the target's integers."""
        for step in self.steps.constants_for(block.first, block.end):
            if isinstance(step, QuantizeBias) and step.reads[0] in self.values:
                data, weight = self.quantizers[step.data], self.quantizers[step.weight]
                codes, _ = bias_codes(self.values[step.reads[0]], data, weight)
                if bool(((codes < step.quant_min) | (codes > step.quant_max)).any()):
                    return True
        return False

    def profile(self, values: Values) -> Profile:
        """Run all steps on some samples in float, to know the shapes and costs of their results.

        Args:
            values: The inputs by name.
        """
        held = {**self.in_float, **values}
        shapes = {n: tuple(t.shape) for n, t in values.items()}
        floats = {n for n, t in values.items() if t.is_floating_point()}
        costs = []
        with torch.no_grad():
            for each in self.steps.constants:
                self._step(each, held, FLOAT)
            for each in self.steps.steps:
                self._step(each, held, FLOAT)
                made = {key: held[key] for key in each.writes if key}
                shapes |= {k: tuple(t.shape) for k, t in made.items()}
                floats |= {k for k, t in made.items() if t.is_floating_point()}
                results = sum(t.numel() for t in made.values())
                costs.append(self._cost(each, held, results))
        return Profile(shapes, frozenset(floats), tuple(costs))

    def _cost(self, step: Instruction, held: Values, results: int) -> int:
        if not isinstance(step, Compute):
            return _ANY * results
        second = step.reads[1] if len(step.reads) > 1 else ""
        return multiply_adds(
            self.plan.graph.node(step.node), held[second] if second else None, results
        )


def multiply_adds(node: ir.Node, weight: Tensor | None, results: int) -> int:
    """Count multiply-adds of a node: of a layer by its weight, of others some for each result.

    Args:
        node: The node.
        weight: Its second operand; None if it has none.
        results: Elements of its results.
    """
    cost = _ANY * results
    if weight is not None:
        axis = output_channel_axis(node)
        if axis is not None and weight.ndim > 1:
            cost += results * (weight.numel() // max(weight.shape[axis], 1))
        elif is_a(node, MatMul):
            cost += results * int(weight.shape[-2] if weight.ndim > 1 else weight.shape[0])
    return cost


_ANY = 20
"""Multiply-adds that take about as long as passing one number through an operation of its own."""


def rule_for(graph: Graph) -> Callable[[ir.Node], Apply]:
    """Return the function that makes a torch function of a node.

    An operator without a rule in torch is run by ONNX Runtime, and passes no gradient.
    """

    def rule(node: ir.Node) -> Apply:
        try:
            return prepare(node)
        except Unsupported:
            return _outside(graph, node)

    return rule


def _outside(graph: Graph, node: ir.Node) -> Apply:
    """Make a torch function that runs a node in ONNX Runtime."""
    inside = [value for value in values_read_inside(node) if value.graph is node.graph]
    slots = [*node.inputs, *inside]
    read = list(dict.fromkeys(value for value in slots if value is not None))
    outputs = [value for value in node.outputs if value.name]
    functions = tuple(graph.model.functions.values())
    operation = FloatNodes((node,), tuple(read), tuple(outputs), functions)
    # One thread, so that results do not depend on their number.
    run = compiled_nodes(str(node.name), operation, threads=1)

    def apply(*tensors: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        given, device = {}, torch.device("cpu")
        for value, tensor in zip(slots, tensors, strict=True):
            if value is not None and tensor is not None:
                device = tensor.device
                given[value] = tensor.detach().cpu().numpy()
        found = dict(zip(outputs, run(given[value] for value in read), strict=True))
        # An output without a name keeps its place among the results.
        empty = torch.zeros(0)
        results = tuple(
            torch.from_numpy(np.array(found[v])).to(device) if v.name else empty
            for v in node.outputs
        )
        return results[0] if len(results) == 1 else results

    return apply
