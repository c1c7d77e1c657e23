"""Declares ``QuantizedModule``: a ``torch.nn.Module`` that computes a plan, to be trained.

An interpreter: it runs the nodes of the plan's graph by the rules of
`intact.improve.learn.operators`, with a fake quantizer at each quantization point of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from intact.config import TensorQuantConfig
from intact.data.preprocess import Preprocess
from intact.errors import DataError, UsageError
from intact.graph import Graph, bias_slot, output_channel_axis, weight_slot
from intact.graph.batch_norm import BatchNorm
from intact.improve.learn.batch_norm import FoldedNorm, Folding, Statistics, dead_channels
from intact.improve.learn.bits import Difference, TargetBits, differing_codes
from intact.improve.learn.constants import constants_of, free_key, without_integers
from intact.improve.learn.fake_quantize import straight_through
from intact.improve.learn.float_state import float_state_dict
from intact.improve.learn.instructions import (
    Compute,
    Fold,
    Instruction,
    Normalize,
    Program,
    Quantize,
    QuantizeBias,
    compile_plan,
    quantizer_keys,
)
from intact.improve.learn.operators import unsupported
from intact.improve.learn.packed import PackedPlan
from intact.improve.learn.quantizers import Learning, Quantizer, bias_codes, quantizer_of
from intact.improve.learn.segments import Values, run_in_segments
from intact.plan import QuantizedGraph, TensorEnd, refuse_unready
from intact.plan.points import has_logarithmic_levels
from intact.program.unsupported import UnsupportedNodes
from intact.targets import ScalePrecision


@dataclass(frozen=True)
class _Pass:
    """What one forward pass goes by.

    Attributes:
        codes: What quantized tensors are to be; where there are none, quantizers decide.
        statistics: What the BatchNormalizations that are kept normalize by, by layer.
    """

    codes: Mapping[TensorEnd, Tensor]
    statistics: Mapping[str, Statistics]


class Origin(NamedTuple):
    """What a module was made of, as far as it does not compute with it.

    Attributes:
        formats: The formats that it is deployed as; none for the best of the target.
        preprocess: What is done to samples before the model sees them.
    """

    formats: tuple[str, ...] = ()
    preprocess: Preprocess = Preprocess()


class QuantizedModule(nn.Module):
    """A plan as a module.

    In training and in float32 it computes with fake quantizers: real numbers, rounded as the target
    rounds. In evaluation in float64 (``module.eval().double()``) every quantized tensor has the
    codes that the target's own arithmetic gives, those of the integer engine (`arithmetic`).

    Args:
        plan: A plan with scales; it is not changed.
        learning: What quantizers learn, or its name; see `Learning`.
        batch_norm: What becomes of folded BatchNormalizations, or its name; see `Folding`.
        in_logarithms: Whether the parameters of scales are logarithms, see `Quantizer`.

    Attributes:
        constants: Weights and other constants of the graph.
        quantizers: By the end of their first quantization point.
        norms: The BatchNormalizations that are kept, by layer.
        arithmetic: ``"auto"``, ``"simulated"`` or ``"target"``. With ``"target"`` each quantized
            tensor takes the codes of the integer engine, in training too: the gradient stays that
            of the fake quantizer. ``"auto"`` does that in evaluation in float64.
        segments: Into how many parts the network is cut of which only the ends are kept for the
            backward pass, which computes the rest again (gradient checkpointing); 1 keeps all.
        origin: What a result takes over from where the module was made, beside the plan.

    Raises:
        PlanError: An end has no scale.
        ExportError: Operators have no rule; it names them all.
    """

    _kind: Tensor

    def __init__(
        self,
        plan: QuantizedGraph,
        *,
        learning: Learning | str = Learning.LSQ,
        batch_norm: Folding | str = Folding.FOLDED,
        in_logarithms: bool = False,
    ) -> None:
        super().__init__()
        refuse_unready(plan)
        _refuse_unsupported(plan.graph)
        plan, rounded = without_integers(plan)
        self._packed = PackedPlan(plan)
        self.learning, self.folding = Learning.of(learning), Folding.of(batch_norm)
        self.arithmetic = "auto"
        self.segments = 1
        self.origin = Origin()
        self.constants = constants_of(plan, rounded)
        self.quantizers = nn.ModuleDict(
            quantizers_of(plan, self.learning, in_logarithms=in_logarithms)
        )
        self.norms = nn.ModuleDict()
        self._normed: dict[str, str] = {}
        if self.folding is not Folding.FOLDED:
            self._keep_norms()
        # Converted with the module: what it computes in, where there are no weights to tell.
        self.register_buffer("_kind", torch.zeros(()), persistent=False)
        self._bits: TargetBits | None = None
        self._program: Program | None = None
        self._observed: dict[TensorEnd, Tensor] | None = None

    @property
    def plan(self) -> QuantizedGraph:
        """The plan that the module was made of."""
        return self._packed.plan

    # ---- running -----------------------------------------------------------------------------

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run a batch.

        Args:
            *inputs: The model's inputs in their order.
            **named: Inputs by name, beside or instead of these.

        Returns:
            The output; a tuple where the model has several.

        Raises:
            DataError: An input is missing, unknown or given twice.
            UsageError: A batch of one that a live BatchNormalization is to normalize.
        """
        fed = self._name_inputs(inputs, named)
        each_pass = self._begin(self._target_codes(fed) if self._uses_target() else {})
        program = self.program
        values = {name: self.constants[name] for name in self.constants.keys}
        run, count = partial(self._run, each_pass), len(program.instructions)
        if self.segments > 1 and torch.is_grad_enabled():
            values |= run_in_segments(run, count, self.segments, fed, values)
        else:
            values |= fed
            run(0, count, values)
        # Only after the pass: what runs again for the backward pass must not count twice.
        for key, found in each_pass.statistics.items():
            self._norm(key).keep(found)
        outputs = tuple(values[key] for key in program.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def differing_codes(self, *inputs: Tensor, **named: Tensor) -> dict[TensorEnd, Difference]:
        """Count by quantization point where fake quantizers give other codes than the target.

        Each layer gets the target's own inputs, so that one difference is counted once. In float32
        what differs are ties and what float32 rounds across them.
        """
        return differing_codes(self, *inputs, **named)

    @property
    def program(self) -> Program:
        """The instructions, compiled when they are first asked for."""
        if self._program is None:
            self._program = compile_plan(self.plan, self._normed)
        return self._program

    @contextmanager
    def observing(self) -> Iterator[dict[TensorEnd, Tensor]]:
        """Collect the codes of every quantized tensor, int64, of the last forward pass within.

        Where the codes are the target's, what is collected is what the fake quantizer would have
        made of the same inputs: see `differing_codes`.
        """
        self._observed = {}
        try:
            yield self._observed
        finally:
            self._observed = None

    def codes(self, *inputs: Tensor, **named: Tensor) -> dict[TensorEnd, Tensor]:
        """Return the codes of every quantized tensor for a batch, int64, by quantization point."""
        with torch.no_grad():
            if self._uses_target():
                return dict(self._target_codes(self._name_inputs(inputs, named)))
            with self.observing() as found:
                self.forward(*inputs, **named)
                return dict(found)

    def first_not_finite(self, *inputs: Tensor, **named: Tensor) -> str:
        """Name the first tensor of a forward pass that is not finite; "" if all are."""
        with torch.no_grad():
            values = {name: self.constants[name] for name in self.constants.keys}
            values |= self._name_inputs(inputs, named)
            for name, tensor in values.items():
                if not _is_finite(tensor):
                    return name
            each_pass = self._begin({})
            for instruction in self.program.instructions:
                results = self._step(instruction, values, each_pass)
                for key, tensor in zip(instruction.writes, results, strict=False):
                    if not _is_finite(tensor):
                        return key
                    values[key] = tensor
        return ""

    # ---- state -------------------------------------------------------------------------------

    def freeze_batch_norms(self, frozen: bool = True) -> None:
        """Let batches no longer count for the BatchNormalizations that are kept."""
        for norm in self._norms():
            norm.frozen = frozen or norm.strategy is Folding.FROZEN

    def enable_quantizers(self, enabled: bool = True) -> None:
        """Switch all quantizers on or off; off, the module computes the float model."""
        for each in self.quantizers.values():
            each.enabled = enabled

    def rescale(self, plan: QuantizedGraph) -> None:
        """Take the scales of another calibration of the same plan; what was learned of them goes.

        Args:
            plan: A plan of the same graph and structure, with scales.
        """
        self._packed = PackedPlan(plan)
        for key, point in quantizer_keys(plan).values():
            quantizer = self.quantizers[key]
            if isinstance(quantizer, Quantizer):
                quantizer.rescale(point.config.dominator)

    def scale_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of quantizers, for an optimizer that treats them apart."""
        return list(self.quantizers.parameters())

    def weight_parameters(self) -> list[nn.Parameter]:
        """Return all other parameters."""
        return [*self.constants.parameters(), *self.norms.parameters()]

    def float_state_dict(self, *, partial: bool = False) -> dict[str, Tensor]:
        """Return the trained weights by their names in the model that was read.

        An ``nn.Module`` that was exported takes them back with ``load_state_dict(...,
        strict=False)``, and computes then what this module does with its quantizers off. Where its
        BatchNormalizations were folded, their ``bias`` has what training changed of the layer's.

        Args:
            partial: Leave out what such a module cannot take back.

        Raises:
            UsageError: It cannot take back something that was trained.
        """
        return float_state_dict(self, partial)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again when it is needed."""
        # Rules are closures and the engine is compiled: neither can be pickled.
        return {**self.__dict__, "_program": None, "_bits": None, "_observed": None}

    def extra_repr(self) -> str:
        """Name the target."""
        return f"target={self.plan.target.name}, learning={self.learning}"

    def norm_of(self, node: str) -> FoldedNorm | None:
        """Return the BatchNormalization that is kept for a layer; None where there is none."""
        norm = self.norms[self._normed[node]] if node in self._normed else None
        return norm if isinstance(norm, FoldedNorm) else None

    # ---- inside ------------------------------------------------------------------------------

    def _keep_norms(self) -> None:
        """Take the folded BatchNormalizations out of weights and biases again."""
        graph, learned = self.plan.graph, self.constants.learned()
        for node in graph.nodes:
            norm = graph.batch_norms.get(str(node.name))
            weight, bias, axis = weight_slot(node), bias_slot(node), output_channel_axis(node)
            if norm is None or weight is None or bias is None or axis is None:
                continue
            values = [node.inputs[slot] for slot in (weight, bias)]
            names = [str(value.name) for value in values if value is not None]
            is_own = all(len(graph.consumers(graph.value(name))) == 1 for name in names)
            is_finite = bool(np.isfinite([norm.ratio, norm.offset]).all())
            if is_own and is_finite and all(name in learned for name in names):
                self._keep_norm(str(node.name), norm, [learned[name] for name in names], axis)

    def _keep_norm(self, node: str, norm: BatchNorm, layer: Sequence[Tensor], axis: int) -> None:
        """Take a BatchNormalization out of a layer's weight and bias, in place."""
        weight, bias = layer
        dead = dead_channels(norm)
        folded = bias.detach().numpy().reshape(-1)  # which such a channel has for its result
        alive = msgspec.structs.replace(
            norm, gamma=np.where(dead, 1, norm.gamma), beta=np.where(dead, folded, norm.beta)
        )
        _unfold(weight, bias, alive, axis)
        key = free_key(node, self.norms)
        self.norms[key] = FoldedNorm(alive, self.folding, axis, ~dead)
        self._normed[node] = key

    def _norms(self) -> Iterator[FoldedNorm]:
        for norm in self.norms.values():
            if isinstance(norm, FoldedNorm):
                yield norm

    def _uses_target(self) -> bool:
        if self.arithmetic == "auto":
            exact = not self.training and self._kind.dtype is torch.float64
            return exact and not has_logarithmic_levels(self.plan)
        if self.arithmetic not in ("simulated", "target"):
            raise UsageError(
                f"arithmetic {self.arithmetic!r}", remedy="set auto, simulated or target"
            )
        return self.arithmetic == "target"

    def _target_codes(self, fed: Values) -> Mapping[TensorEnd, Tensor]:
        if self._bits is None:
            self._bits = TargetBits()
        return self._bits.codes(self, fed)

    def _name_inputs(self, inputs: Sequence[Tensor], named: Mapping[str, Tensor]) -> Values:
        """Return the inputs by name, floats in the module's dtype."""
        names = [str(value.name) for value in self.plan.graph.inputs]
        if len(inputs) > len(names):
            raise DataError(
                f"{len(inputs)} inputs are given, the model has {len(names)}: {', '.join(names)}",
                remedy="give one tensor for each",
            )
        given: Values = dict(zip(names, inputs, strict=False))
        for name, tensor in named.items():
            if name in given or name not in names:
                why = "is given twice" if name in given else "is no input of the model"
                raise DataError(f"{name!r} {why}", remedy=f"give {', '.join(names)}")
            given[name] = tensor
        missing = [name for name in names if name not in given]
        if missing:
            raise DataError(f"input {missing[0]!r} is missing", remedy="give a tensor for it")
        dtype = self._kind.dtype
        return {n: t.to(dtype) if t.is_floating_point() else t for n, t in given.items()}

    def _begin(self, codes: Mapping[TensorEnd, Tensor]) -> _Pass:
        return _Pass(codes, {node: self._norm(node).statistics() for node in self._normed})

    def _run(self, each_pass: _Pass, first: int, end: int, values: Values) -> None:
        """Run some of the instructions, and forget what nothing reads afterwards."""
        program = self.program
        for index in range(first, end):
            instruction = program.instructions[index]
            results = self._step(instruction, values, each_pass)
            values.update(zip(instruction.writes, results, strict=False))
            for key in program.unused[index]:
                values.pop(key, None)

    def _step(self, instruction: Instruction, values: Values, each_pass: _Pass) -> Sequence[Tensor]:
        operands = [values[key] if key else None for key in instruction.reads]
        match instruction:
            case Quantize():
                return (self._quantize(instruction, operands[0], each_pass.codes),)
            case QuantizeBias():
                return (self._quantized_bias(instruction, operands[0]),)
            case Compute():
                result = instruction.apply(*operands)
                return result if isinstance(result, tuple) else (result,)
            case Fold():
                data, weight, bias = operands
                layer = partial(_layer, instruction.apply, data)
                found = each_pass.statistics[instruction.node]
                return self._norm(instruction.node).fold(weight, bias, layer, found)
            case Normalize():
                result, bias = operands
                found = each_pass.statistics[instruction.node]
                norm = self._norm(instruction.node)
                return (norm.after(result, bias, _CHANNELS, found),)

    def _norm(self, node: str) -> FoldedNorm:
        norm = self.norm_of(node)
        if norm is None:
            raise TypeError(node)
        return norm

    def _quantize(
        self, step: Quantize, value: Tensor | None, codes: Mapping[TensorEnd, Tensor]
    ) -> Tensor:
        quantizer = self.quantizers[step.quantizer]
        if value is None or not isinstance(quantizer, Quantizer):
            raise TypeError(step.quantizer)
        result = quantizer(value, divided_in(step.bits) if step.is_constant else None)
        if self._observed is not None and quantizer.enabled:
            self._observed[step.end] = quantizer.codes(result.detach())
        exact = codes.get(step.end) if quantizer.enabled else None
        if exact is not None and not step.is_constant:
            return straight_through(result, quantizer.values(exact).reshape(result.shape))
        return result

    def _quantized_bias(self, step: QuantizeBias, bias: Tensor | None) -> Tensor:
        data, weight = self.quantizers[step.data], self.quantizers[step.weight]
        if bias is None or not (isinstance(data, Quantizer) and isinstance(weight, Quantizer)):
            raise TypeError(step.end)
        if not (data.enabled and weight.enabled):
            return bias
        codes, scale = bias_codes(bias, data, weight)
        codes = codes.clamp(step.quant_min, step.quant_max)
        if self._observed is not None:
            self._observed[step.end] = codes.long()
        return straight_through(bias, codes * scale)


def _refuse_unsupported(graph: Graph) -> None:
    """Name all operators that cannot be trained.

    Raises:
        ExportError: There are some.
    """
    found = UnsupportedNodes("torch cannot compute", "cut the model before them, and train that")
    for node, reason in unsupported(graph).items():
        found.add(repr(node.name), reason)
    found.raise_any()


_CHANNELS = 1
"""Axis of the channels in the result of a Conv, a ConvTranspose or a Gemm."""
_NARROW = 16
"""Codes of more bits are divided in float64: float32 does not hold them."""


def divided_in(bits: int) -> torch.dtype:
    """Return the dtype in which constants are divided by their scale, as plans do."""
    return torch.float64 if bits > _NARROW else torch.float32


def _layer(apply: Callable[..., Any], data: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    result: Tensor = apply(data, weight, bias)
    return result


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _unfold(weight: Tensor, bias: Tensor, norm: BatchNorm, axis: int) -> None:
    """Divide a normalization out of a layer's constants, in place."""
    factor, added = torch.tensor(norm.ratio), torch.tensor(norm.offset)
    shape = [1] * weight.ndim
    shape[axis] = -1
    with torch.no_grad():
        # In float64, so that folding them again gives the deployed constants.
        weight.copy_(weight.double() / factor.reshape(shape))
        bias.copy_((bias.double() - added) / factor)


def quantizers_of(
    plan: QuantizedGraph, learning: Learning, *, in_logarithms: bool
) -> dict[str, Quantizer]:
    """Make one quantizer for each scale of a plan."""
    from intact.calibrate.scales.roles import is_fixed, is_parameter

    precision = plan.target.arithmetic.scale_precision
    found = {}
    for key, point in quantizer_keys(plan).values():
        root = point.config.dominator
        own = Learning.FIXED if _is_settled(root) or is_fixed(root) else learning
        decimal6 = precision is ScalePrecision.DECIMAL6 and not is_parameter(point)
        found[key] = quantizer_of(root, own, in_logarithms=in_logarithms, decimal6=decimal6)
    return found


def _is_settled(root: TensorQuantConfig) -> bool:
    """Tell whether a scale belongs to integers that were read."""
    from intact.config import MEANING, StateMeaning

    return any(MEANING[each.state] is StateMeaning.BAKED for each in root.group())
