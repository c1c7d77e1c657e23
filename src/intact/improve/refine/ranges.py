"""Chooses ranges of activations by the error of what is computed from them.

A narrower range has finer steps and clips more. Which of both costs more is not seen in the tensor
itself: a rare large value may be what the next layer looks for, or what it hardly weighs. So a few
ranges are tried for each tensor, and what counts is the error of the results of its readers, up to
where these are quantized in turn. The activations before it are quantized, weights are not: how
they are rounded may change after this, and what suits badly rounded weights suits no others.
Tensors are taken in the order in which they are read.

Half of the samples decides what is tried, the other half whether it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.calibrate.scales.bias import rescale_bias
from intact.calibrate.scales.ranges import params_of, stored
from intact.calibrate.scales.roles import is_fixed, is_parameter
from intact.config import QuantState, TensorQuantConfig
from intact.data.stream import Samples
from intact.graph import IMPLICIT_SLOT, bias_slot, is_constant
from intact.improve.refine.walk import Array, Arrays, Run, Walk
from intact.numerics.affine_params import QuantParams, range_from_params
from intact.numerics.metrics import decibels
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd
from intact.plan.gains import Gain, Report, unreported
from intact.plan.given_scales import GIVEN

MOST_SAMPLES = 128
FACTORS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 1.1, 1.25, 1.5, 2.0)
"""What the whole range, or one end of it, is multiplied by."""
POWERS = (0.5, 0.25, 2.0)
"""The same where scales are powers of two."""
OBSERVER = "output-error"
"""What chose the scale, as the plan calls it."""


def refine_ranges(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> QuantizedGraph:
    """Set the ranges of activations to those with the least error of what is computed from them.

    Given and prescribed scales stay, logarithmic ones too, and those that baked biases follow from:
    so this comes before rounding. Tensors with one scale in common are decided together, when the
    last of them is read. Bias scales follow.

    Args:
        plan: A plan with scales; it is not changed.
        samples: The data; the first ``most`` samples are run. With fewer than two nothing changes.
        most: Maximum number of samples. Their activations are kept while needed, for both models.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes what each tensor, or group of tensors with one scale, gained.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    plan = plan.copy()
    search = _Search(plan, report)
    walk = Walk(plan, samples, most=most, threads=threads, before=search.decide, constants=False)
    search.begin(walk)
    if walk.batches > 1:
        for _ in walk:
            pass
    return plan


@dataclass(eq=False)
class _Group:
    """Tensors that share one scale.

    Attributes:
        root: The config that owns it.
        points: Where they are quantized.
        tried: Scales and zero points; the first are the plan's.
        noise: Noise by signal of each, ``[fit or held-out, candidates]``, summed over `blocks`.
        blocks: How many results were compared.
        last: Name of the last node that was.
    """

    root: TensorQuantConfig
    points: list[QuantPoint]
    tried: list[QuantParams] = field(default_factory=list)
    noise: Array = field(default_factory=lambda: np.zeros((2, 0)))
    blocks: int = 0
    last: str = ""


class _Search:
    """The choice of ranges during a walk."""

    def __init__(self, plan: QuantizedGraph, report: Report) -> None:
        self._plan, self._report = plan, report
        self._waiting: dict[ir.Value, list[tuple[_Group, QuantPoint]]] = {}

    def begin(self, walk: Walk) -> None:
        """Find the groups whose scale may change."""
        self._walk = walk
        groups: dict[int, _Group] = {}
        seen: dict[int, QuantPoint] = {}
        for point in (*walk.points.at_output.values(), *walk.points.at_input.values()):
            if id(point) in seen:
                continue
            seen[id(point)] = point  # kept, so that the number stays its own
            if is_parameter(point):
                continue
            root = point.config.dominator
            groups.setdefault(id(root), _Group(root, [])).points.append(point)
        for group in groups.values():
            if not self._is_free(group):
                continue
            group.points = [p for p in group.points if not p.is_passed_on and p.readers]
            for point in group.points:
                self._waiting.setdefault(point.value, []).append((group, point))

    def _is_free(self, group: _Group) -> bool:
        root = group.root
        if is_fixed(root) or root.observer == GIVEN or root.grid.exponential:
            return False
        if root.params is None or root.params.scale.ndim:
            return False
        if any(point.is_constant or point.baked is not None for point in group.points):
            return False
        return not any(
            config.state is QuantState.PASSIVE_BAKED
            for point in group.points
            for node, _ in point.readers
            if (slot := bias_slot(node)) is not None
            for config in (self._plan.input_config(node, slot),)
        )

    def decide(self, node: ir.Node) -> None:
        """Decide the scales of what a node reads, before it reads it."""
        for value in dict.fromkeys(node.inputs):
            waiting = self._waiting.pop(value, ()) if value is not None else ()
            for group, point in waiting:
                if not self._walk.knows(point.value):
                    continue
                self._try(group, point)
                group.points.remove(point)
                if not group.points:
                    self._choose(group)

    def _try(self, group: _Group, point: QuantPoint) -> None:
        """Add the errors of the readers of one tensor to those of its group."""
        before = self._walk.unquantized(point.value)
        if not all(np.isfinite(array).all() for array in before):
            return
        is_alone = not group.tried and len(group.points) == 1
        if not group.tried:
            reach = _reach(before[::2]) if is_alone else (-math.inf, math.inf)
            # Only of a tensor alone is it known how far its values reach: others of its group come
            # later.
            group.tried = list(self._candidates(group.root, *reach))
            group.noise = np.zeros((2, len(group.tried)))
        blocks = self._blocks(point)
        fit, held_out = (range(half, len(before), 2) for half in (0, 1))
        if is_alone:
            group.noise[0] = self._race(group, point, blocks, fit)
            asked = {0, int(np.argmin(group.noise[0]))}
        else:  # what is bad for one tensor of a group may be what the others need
            asked = set(range(len(group.tried)))
            for at in asked:
                group.noise[0, at] += _ratios(self._powers(group, point, blocks, fit, at))
        for at in asked:
            group.noise[1, at] += _ratios(self._powers(group, point, blocks, held_out, at))
        group.blocks += len(blocks)
        group.last = next((b.name for b in blocks if b is not None), point.end.node)

    def _race(
        self, group: _Group, point: QuantPoint, blocks: Sequence[Block | None], batches: range
    ) -> Array:
        """Return the noise of each candidate; infinite where few batches show that it is worse.

        All are tried on one batch, and the best half of them, with the plan's own, on twice as
        many in all, and so on. Source: successive halving (Karnin, Koren, Somekh 2013).
        """
        alive, done = list(range(len(group.tried))), 0
        powers = np.zeros((len(alive), len(blocks), 2))
        while done < len(batches):
            part = batches[done : max(1, 2 * done)]
            for at in alive:
                powers[at] += self._powers(group, point, blocks, part, at)
            done += len(part)
            noise = {at: _ratios(powers[at]) for at in alive}
            best = sorted(alive, key=noise.__getitem__)[: math.ceil(len(alive) / 2)]
            alive = sorted({0, *best})
        found = np.full(len(powers), np.inf)
        found[list(noise)] = list(noise.values())
        return found

    def _blocks(self, point: QuantPoint) -> Sequence[Block | None]:
        """Return the block of each reader; None where an input of it is not known yet."""
        return [
            None if slot == IMPLICIT_SLOT else Block.behind(self._plan, self._walk, reader, slot)
            for reader, slot in point.readers
        ]

    def _powers(
        self,
        group: _Group,
        point: QuantPoint,
        blocks: Sequence[Block | None],
        batches: range,
        at: int,
    ) -> Array:
        """Return signal and noise of the result of each reader, ``[readers, 2]``.

        Of a reader that cannot be run yet, which adds the tensor to another as a rule, the tensor's
        own error is taken.
        """
        powers = np.zeros((len(blocks), 2))
        before, floats = self._walk.unquantized(point.value), self._walk.in_float(point.value)
        for batch in batches:
            array = point.config.grid.fake_quantize(before[batch], group.tried[at])
            for at_block, block in enumerate(blocks):
                if block is not None:
                    powers[at_block] += block.powers(batch, array)
                else:
                    wanted = floats[batch]
                    error = np.subtract(array, wanted, dtype=np.float64)
                    signal = np.square(wanted, dtype=np.float64).sum()
                    powers[at_block] += signal, np.square(error, out=error).sum()
        return powers

    def _candidates(
        self, root: TensorQuantConfig, low: float, high: float
    ) -> Iterator[QuantParams]:
        """Yield scales and zero points; those of the plan first.

        A range that is wider than the values is of no use.
        """
        params, grid = root.params, root.grid
        if params is None:
            return
        yield params
        seen = {(params.scale.tobytes(), params.zero_point.tobytes())}
        ends = range_from_params(params, grid.quant_min, grid.quant_max)
        bottom, top = (float(end) for end in ends)
        target = self._plan.target
        truncates = target.activation.truncated_zero_point
        for lower, upper in _factors(root):
            is_wider = max(lower, upper) > 1
            if is_wider and bottom <= low and high <= top:
                continue
            found = params_of(grid, bottom * lower, top * upper, truncates=truncates)
            # Compared as the target stores it, or a candidate could gain by digits that are lost.
            found = stored(found, target.arithmetic.scale_precision)
            key = found.scale.tobytes(), found.zero_point.tobytes()
            if key not in seen:
                seen.add(key)
                yield found

    def _choose(self, group: _Group) -> None:
        """Take the best range on fit samples, if it is better on held-out ones too."""
        if not group.blocks:
            return
        fit, held_out = group.noise
        best = int(np.argmin(fit))
        is_kept = bool(best and held_out[best] < held_out[0])
        if best:
            before, after = (
                decibels(1.0, noise / group.blocks) for noise in (held_out[0], held_out[best])
            )
            self._report(Gain(group.last, before, after, is_kept))
        if not is_kept:
            return
        group.root.set_checked(group.root.grid.check_params(*group.tried[best]))
        group.root.observer = OBSERVER
        # Scales of biases follow from those of the data.
        for reader in self._plan.graph.nodes:
            ends = (TensorEnd.input(str(reader.name), k) for k in range(len(reader.inputs)))
            configs = (self._plan.configs.get(end) for end in ends)
            if any(c is not None and c.dominator is group.root for c in configs):
                rescale_bias(self._plan, reader)


def _ratios(powers: Array) -> float:
    """Return noise by signal, summed over readers, of their powers, ``[readers, 2]``."""
    signal, noise = powers.T
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(signal > 0, noise / signal, 0.0)
    # NaN would be the least for `argmin`.
    return float(np.where(np.isfinite(ratios), ratios, np.inf).sum())


def _factors(root: TensorQuantConfig) -> Iterator[tuple[float, float]]:
    """Yield factors of the lower and the upper end."""
    if root.grid.power_of_two:
        yield from ((factor, factor) for factor in POWERS)
        return
    yield from ((factor, factor) for factor in FACTORS)
    if not root.grid.symmetric:
        yield from ((1.0, factor) for factor in FACTORS)
        yield from ((factor, 1.0) for factor in FACTORS)


def _reach(arrays: Sequence[Array]) -> tuple[float, float]:
    """Return the lowest and the highest value."""
    lows = [float(array.min(initial=0.0)) for array in arrays]
    return min(lows), max(float(array.max(initial=0.0)) for array in arrays)


_MOST_NODES = 16


@dataclass(frozen=True)
class Block:
    """A reader of a tensor and the nodes behind it, up to the next quantized result.

    Attributes:
        nodes: The nodes, in their order; each reads the one before.
        value: The tensor.
        run: Computes the result of the last node.
        fed: What the nodes read in the quantized model but for the tensor, for each batch.
        wanted: The result in the float model, for each batch.
        signal: Its power, for each batch.
    """

    nodes: tuple[ir.Node, ...]
    value: ir.Value
    run: Run
    fed: list[Arrays]
    wanted: list[Array]
    signal: list[float]

    @staticmethod
    def behind(plan: QuantizedGraph, walk: Walk, reader: ir.Node, slot: int) -> Block | None:
        """Return the block of a reader of a tensor; None where other inputs are not known yet."""
        value = reader.inputs[slot] if slot != IMPLICIT_SLOT else None
        if value is None or not _is_known(walk, reader, value):
            return None
        nodes, read = [reader], set(reader.inputs)
        while (follower := _follower(plan, walk, nodes[-1])) is not None:
            others = {each for each in follower.inputs if each not in nodes[-1].outputs}
            # A value that is read twice is fed once, and may be quantized otherwise for each
            # reader.
            again = {each for each in others & read if each is not None and not is_constant(each)}
            if again or len(nodes) == _MOST_NODES:
                break
            nodes.append(follower)
            read |= others
        return Block._of(walk, tuple(nodes), value)

    @staticmethod
    def _of(walk: Walk, nodes: tuple[ir.Node, ...], value: ir.Value) -> Block:
        fed: list[Arrays] = [{} for _ in range(walk.batches)]
        floats: list[Arrays] = [{} for _ in range(walk.batches)]
        constants: Arrays = {}
        for node in nodes:
            constants |= walk.constants(node)
            for slot, each in enumerate(node.inputs):
                if each is None or is_constant(each) or not walk.knows(each):
                    continue
                for into, array in zip(floats, walk.in_float(each), strict=True):
                    into[each] = array
                if each is not value:
                    for into, array in zip(fed, walk.quantized(node, slot), strict=True):
                        into[each] = array
        own = {v: v.const_value.numpy() for v in constants if v.const_value is not None}
        run = walk.runner(nodes, constants)
        wanted = [run(arrays | own)[0] for arrays in floats]
        signal = [float(np.square(array, dtype=np.float64).sum()) for array in wanted]
        return Block(nodes, value, run, [arrays | constants for arrays in fed], wanted, signal)

    @property
    def name(self) -> str:
        """Name of the last node."""
        return str(self.nodes[-1].name)

    def powers(self, batch: int, array: Array) -> tuple[float, float]:
        """Return signal and noise power of the result for the tensor as it is quantized.

        Args:
            batch: Which one.
            array: The tensor of this batch.
        """
        found = self.run({**self.fed[batch], self.value: array})[0]
        error = np.subtract(found, self.wanted[batch], dtype=np.float64)
        return self.signal[batch], float(np.square(error, out=error).sum())


def _is_known(walk: Walk, node: ir.Node, but: ir.Value) -> bool:
    """Tell whether a node has one output and all its inputs are constants or known."""
    if len([value for value in node.outputs if value.name]) != 1 or not node.outputs[0].name:
        return False
    # A body reads values of the graph that are not among the inputs.
    if any(True for a in node.attributes.values() if a.type in _BODIES):
        return False
    return all(
        value is None or value is but or is_constant(value) or walk.knows(value)
        for value in node.inputs
    )


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _follower(plan: QuantizedGraph, walk: Walk, node: ir.Node) -> ir.Node | None:
    """Return the only reader of a node's result, if it takes the result as it is."""
    value = node.outputs[0]
    point = walk.points.at_output.get(value)
    if value.is_graph_output() or (point is not None and not point.is_passed_on):
        return None
    readers = plan.graph.consumers(value)
    if len(readers) != 1:
        return None
    reader, slot = readers[0]
    is_taken = slot != IMPLICIT_SLOT and (str(reader.name), slot) not in walk.points.at_input
    return reader if is_taken and _is_known(walk, reader, value) else None
