"""Rounds weights so that the results of layers change little: GPTQ over a whole plan.

Layers are rounded in their order, each on the inputs that the quantized layers before give it: what
those lose is made good as far as this layer can. Weight scales are chosen together with the
rounding, and biases follow in closed form: the mean of each channel's result stays as in float.

Half of the samples decides what is tried, the other half what is kept: of several strengths of
damping, and of rounding to nearest, the one with the least error on samples that it was not made
of. So a layer's result never gets worse on these. Weights in blocks have a procedure of their own
(`rounding_blocks.py`).

Source: `intact.numerics.second_order`. The bias: [dfq], section 4.2, with means of samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.outputs import FloatRuns
from intact.calibrate.scales.bias import rescale_bias
from intact.config import Granularity, PerBlock, QuantState, TensorQuantConfig
from intact.data.stream import Samples
from intact.errors import Unsupported
from intact.graph import bias_slot, output_channel_axis
from intact.improve.layers import Doubles, Layer
from intact.improve.presets import FEW_BITS
from intact.improve.refine.moments import LastMoments, Moments
from intact.improve.refine.rounding_blocks import BlockTrial, LastInput, enough_samples
from intact.improve.refine.tied import copy_rounded, scale_tables, tables_of_layers
from intact.improve.refine.walk import Array, LazySequence, Stop, Walk, bake
from intact.improve.refine.weight_scales import is_free, zoom_scale
from intact.limits import CHOSEN, TRIED_AT_ONCE
from intact.numerics.metrics import decibels
from intact.numerics.second_order import Levels, Turns, descend, squared_error
from intact.ops.operators import Gemm
from intact.plan import QuantizedGraph, QuantPoint
from intact.plan.gains import Gain, Report, unreported
from intact.program.lower.chains import Points
from intact.targets.blocks import Blocks

MOST_SAMPLES = 512
ZOOMS = tuple(1 - step / 40 for step in range(21))
"""Factors of the weight scales that are tried; the first keeps them. They lie close: where an
output has few weights, its error jumps from one scale to the next."""
POWERS = (1.0, 0.5, 0.25, 2.0)
"""The same where scales are powers of two: of the best one both neighbours are tried."""
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
"""What is added to the diagonals of second moments, as shares of their mean."""
_MANY = 1 << 24
"""Weights that are rounded at once if there are several trials, each 8 bytes several times over."""
_JUDGES = 4
"""Batches on which outputs tell whether a table is better."""
OBSERVER = "second-order"
"""What chose the scale, as the plan calls it."""
_DATA, _WEIGHT = 0, 1

Scales = npt.NDArray[np.float32]
Means: TypeAlias = tuple[Doubles, Doubles, Doubles]
"""Means of x by x, x by z and z by z: see `Moments.means`."""


def refine_rounding(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
    report: Report = unreported,
) -> QuantizedGraph:
    """Round the weights of Conv, ConvTranspose, Gemm and MatMul by second moments of their inputs.

    The plan then holds the integers of these weights, and of their biases where the target has
    integer ones. A bias that stays float cannot be changed by a plan: the weights are then rounded
    so that the means of results are kept too. Weights with given scales or codes, and logarithmic
    ones, are not changed.

    Args:
        plan: A plan with scales; it is not changed.
        samples: The data; the first ``most`` samples are run.
        most: Maximum number of samples. Their activations are kept while needed, for both models;
            where all weights are in blocks, no more samples of text are run than tell enough.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes what each layer gained.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model.
    """
    plan = plan.copy()
    points = Points.of(plan)
    enough = enough_samples(plan, points, samples)
    scale_tables(plan, points, OBSERVER, report)
    most = most if enough is None else min(most, enough)
    walk = Walk(plan, samples, most=most, threads=threads, ends=False, together=enough is not None)
    tables = _round_layers(plan, walk, report)
    del walk  # and the activations that it holds
    for layer, choice in tables:
        plan, is_kept = with_table(plan, layer, choice, samples.first(most))
        report(Gain(str(layer.name), choice.before, choice.after, is_kept))
    return plan


def _round_layers(
    plan: QuantizedGraph, walk: Walk, report: Report
) -> list[tuple[ir.Node, RoundingChoice]]:
    """Round the layers of a plan in place; return what is found for those with a tied table."""
    tied = tables_of_layers(plan, walk.points)
    moments, last = LastMoments(), LastInput()
    tables: list[tuple[ir.Node, RoundingChoice]] = []
    for stop in walk:
        if stop.node in tied and tied[stop.node] is None:
            continue
        site = RoundingSite.of(plan, walk.points, stop.node)
        if site is None:
            continue
        found = site.choose(site.moments(walk.points, stop, moments), last)
        if found is None:
            continue
        if stop.node in tied and found.is_better:
            tables.append((stop.node, found))
            continue
        is_kept = found.is_better and _keep(plan, walk.points, site, found)
        report(Gain(str(stop.node.name), found.before, found.after, is_kept))
    return tables


def with_table(
    plan: QuantizedGraph, layer: ir.Node, found: RoundingChoice, samples: Samples
) -> tuple[QuantizedGraph, bool]:
    """Give a table that is looked up too the integers of its layer, where the outputs gain.

    The layer alone does not tell: what is looked up is the input of all layers.
    """
    tried = plan.copy()
    points = Points.of(tried)
    site, table = RoundingSite.of(tried, points, layer), tables_of_layers(tried, points).get(layer)
    if site is None or table is None or not _keep(tried, points, site, found):
        return plan, False
    copy_rounded(tried, points, site.weight, table)
    batches = islice(samples.real_batches(samples.batch_size(TRIED_AT_ONCE)), 2 * _JUDGES)
    held_out = list(batches)[1::2]
    runs = FloatRuns(plan.graph, held_out).first(CHOSEN)
    before, after = runs.simulated(plan), runs.simulated(tried)
    is_better = after.mean > before.mean and not after.loses(before)
    return (tried, True) if is_better else (plan, False)


class RoundingChoice(msgspec.Struct, frozen=True):
    """How the weight of a layer is rounded.

    Attributes:
        scale: The weight's scale, ``[]``, ``[channels]`` or that of each block.
        weight: The numbers that its integers stand for, shaped as it is stored; in single
            precision where they are in blocks.
        shift: What its bias moves by, shaped like it, so that the means of results stay; None
            where the bias is not changed.
        before: Signal to noise of the layer's result on held-out samples by the plan, dB.
        after: The same with this weight.
    """

    scale: Scales
    weight: npt.NDArray[np.floating]
    shift: Doubles | None
    before: float
    after: float

    @property
    def is_better(self) -> bool:
        """Whether it is better than rounding to nearest with the plan's scale."""
        return self.after > self.before


class InputsSeen(NamedTuple):
    """The inputs of a layer.

    Attributes:
        fit: Moments of the samples that decide what is tried.
        held_out: Moments of those that decide what is best.
        judges: These themselves, in float and quantized.
    """

    fit: Moments
    held_out: Moments
    judges: Sequence[tuple[Array, Array]]


@dataclass(frozen=True)
class RoundingSite:
    """A layer whose weight may be rounded.

    Attributes:
        layer: The layer.
        weight: Where its weight is quantized.
        bias: Where its bias is, if that is in integers and may be changed.
        blocks: How the target holds weights in blocks.
    """

    layer: Layer
    weight: QuantPoint
    bias: QuantPoint | None
    blocks: Blocks | None = None

    @staticmethod
    def of(plan: QuantizedGraph, points: Points, node: ir.Node) -> RoundingSite | None:
        """Return the site of a node; None where its weight is not to be changed."""
        name = str(node.name)
        weight = points.at_input.get((name, _WEIGHT))
        if weight is None or not is_free(plan, node, _WEIGHT, weight):
            return None
        if weight.config.grid.block is not None and weight.config.bits > FEW_BITS:
            return None  # nearest is as good
        layer = Layer.of(plan.graph, node)
        if layer is None or not _fits(layer, weight.config.granularity):
            return None
        slot = bias_slot(node)
        bias = None if slot is None else points.at_input.get((name, slot))
        is_own = bias is not None and bias.config.state is QuantState.PASSIVE
        is_whole = layer.bias is not None and layer.bias.size == layer.outputs
        # With a factor of 0 a Gemm leaves its bias out, whatever that is.
        is_added = Gemm.of(node).beta != 0
        own_bias = bias if is_own and is_whole and is_added else None
        return RoundingSite(layer, weight, own_bias, plan.target.blocks)

    def moments(self, points: Points, stop: Stop, last: LastMoments) -> InputsSeen | None:
        """Count its inputs: of the samples that it is fitted on, and of the others.

        Args:
            points: Quantization points of the plan that the walk runs.
            stop: The walk at its node.
            last: What was counted last.

        Returns:
            None where the windows of the layer are not known.
        """
        value = self.layer.node.inputs[_DATA]
        if value is None or not stop.in_float or value not in stop.in_float[0]:
            return None
        numbers = range(len(stop.in_float))
        pairs = LazySequence(
            lambda at: (stop.in_float[at][value], stop.quantized[at][value]), numbers
        )
        end = points.at_input.get((str(self.layer.node.name), _DATA))
        # What is in blocks is judged by results, as there are few outputs to judge by.
        of_float = self.weight.config.grid.block is None
        try:
            return InputsSeen(*last.of(self.layer, end, pairs, of_float=of_float), pairs[1::2])
        except Unsupported:
            return None

    def choose(
        self, seen: InputsSeen | None, last: LastInput | None = None
    ) -> RoundingChoice | None:
        """Choose scale and integers; None where nothing could be tried.

        Args:
            seen: Its inputs.
            last: What layers before have found out of the same input.
        """
        if seen is None:
            return None
        fit, held_out = seen.fit, seen.held_out
        if not (fit.count and held_out.count and fit.is_finite() and held_out.is_finite()):
            return None
        config = self.weight.config
        if config.grid.block is not None:
            shared = (last or LastInput()).of(fit, held_out)
            tried = BlockTrial.of(self.layer, config, self.blocks, shared, seen.judges).best()
            if tried is None:
                return None
            scale, rounded, before, after = tried
            weight = self.layer.lay_out(rounded[..., None])
            return RoundingChoice(scale, weight, None, before, after)
        is_centred = self.bias is not None
        means = [each.means(centred=is_centred) for each in (fit, held_out)]
        trial = _Trial.of(self.layer, config, *means)
        best = trial.best()
        if np.isneginf(best.after):
            return None
        weight = self.layer.lay_out(trial.unfold(best.rounded))
        shift = None
        if is_centred and self.layer.bias is not None:
            # Of all samples: the choice is made, and a mean is better the more it is of.
            shift = trial.shift(best.rounded, fit + held_out).reshape(self.layer.bias.shape)
        return RoundingChoice(best.scale, weight, shift, best.before, best.after)


def _keep(plan: QuantizedGraph, points: Points, site: RoundingSite, found: RoundingChoice) -> bool:
    """Write what was found into the plan; tell whether that was possible."""
    config = site.weight.config
    # Before it is known to stay: whether the bias fits its integers only `rescale_bias` tells.
    config.set_params(found.scale, config.offset)
    config.observer = OBSERVER
    rescale_bias(plan, site.layer.node)
    if not np.array_equal(np.asarray(config.scale), found.scale):
        return False  # raised for the bias: nearest at that scale
    bake(plan, points, site.weight, QuantState.BAKED, found.weight)
    if site.bias is not None and site.layer.bias is not None and found.shift is not None:
        bias = site.layer.bias.astype(np.float64) + found.shift
        bake(plan, points, site.bias, QuantState.PASSIVE_BAKED, bias)
    return True


class _Attempt(msgspec.Struct, frozen=True):
    """What was tried for one layer.

    Attributes:
        scale: The weight's scale.
        rounded: Levels, ``[groups, outputs, inputs * taps]``.
        before: Signal to noise of the layer's result on held-out samples by the plan, dB.
        after: The same with these levels.
    """

    scale: Scales
    rounded: Doubles
    before: float = 0.0
    after: float = 0.0


@dataclass(frozen=True)
class _Trial:
    """What is tried for one layer.

    Attributes:
        layer: The layer.
        weight: In float, ``[groups, outputs, inputs * taps]``.
        config: How the weight is quantized.
        fit: Means of the samples that decide what is tried: x by x, x by z, z by z.
        held_out: Those of the samples that decide what is kept.
    """

    layer: Layer
    weight: Doubles
    config: TensorQuantConfig
    fit: Means
    held_out: Means

    @staticmethod
    def of(
        layer: Layer,
        config: TensorQuantConfig,
        fit: Means,
        held_out: Means,
    ) -> _Trial:
        wide = layer.view(layer.weight.astype(np.float64))
        weight = wide.reshape(*wide.shape[:2], -1)
        return _Trial(layer, weight, config, fit, held_out)

    def best(self) -> _Attempt:
        """Return the scale and the levels with the least error on held-out samples.

        Of those that were tried: they may be worse than rounding to nearest with the plan's scale.
        """
        wanted = self.held_out[0]
        power = float(np.einsum("goi,goi->", self.weight @ wanted, self.weight))
        own = self._nearest()
        before = decibels(power, self._held_out_error(own.rounded))
        best = msgspec.structs.replace(own, before=before, after=-np.inf)
        for tried in self._try_all():
            after = decibels(power, self._held_out_error(tried.rounded))
            if after > best.after:
                best = msgspec.structs.replace(tried, before=before, after=after)
        return best

    def _try_all(self) -> Iterator[_Attempt]:
        """Try each strength of damping, side by side; those that cannot be are left out."""
        workers = 1 if self.weight.size * len(ZOOMS) > _MANY else len(DAMPINGS)
        with ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(self._try_damping, damping) for damping in DAMPINGS]
        # In their order: of equal errors the weakest damping wins.
        for job in jobs:
            # inputs that hardly vary leave rounding errors alone
            with contextlib.suppress(np.linalg.LinAlgError):
                yield job.result()

    def _nearest(self) -> _Attempt:
        """Round to nearest with the plan's scale."""
        scale = np.asarray(self.config.scale, np.float32)
        return _Attempt(scale, self._levels(scale).nearest(self.weight))

    def _try_damping(self, damping: float) -> _Attempt:
        """Choose scale and levels with one strength of damping.

        What is rounded is the weight that is best in real numbers on the quantized inputs.
        """
        damped, wanted = self._damped(damping)
        solved = np.linalg.solve(damped, wanted.transpose(0, 2, 1))
        aim = np.asarray(solved.transpose(0, 2, 1), np.float64)
        turns = Turns.from_moments(damped, 0.0)
        scale = self._scale(turns, aim)
        levels = self._levels(scale)
        rounded = descend(turns.round(aim, levels)[0], wanted, damped, levels)
        return _Attempt(scale, rounded)

    def _damped(self, damping: float) -> tuple[Doubles, Doubles]:
        """Return second moments with a ridge, and the wanted results times the inputs."""
        _, cross, moments = self.fit
        count = self.weight.shape[2]
        mean = np.trace(moments, axis1=1, axis2=2)[:, None, None] / count
        # Inputs that are always 0 would leave a matrix without an inverse.
        ridge = np.where(mean > 0, damping * mean, 1.0) * np.eye(count)
        # The ridge pulls towards the weight as it was, not towards 0.
        return moments + ridge, self.weight @ (cross + ridge)

    def _scale(self, turns: Turns, aim: Doubles) -> Scales:
        """Choose the scale of each channel, or of all, with which least is lost.

        Args:
            turns: In which the weight is rounded.
            aim: The weight to be rounded.
        """
        own = np.asarray(self.config.scale, np.float32)
        zooms = POWERS if self.config.grid.power_of_two else ZOOMS
        scales = np.stack([zoom_scale(self.config, own, zoom) for zoom in zooms])
        # Several scales at once as long as they fit into memory.
        some = max(_MANY // max(self.weight.size, 1), 1)
        parts = (scales[at : at + some] for at in range(0, len(scales), some))
        errors = [self._errors(turns, aim, part) for part in parts]
        best = self._least(np.concatenate(errors, axis=1))
        scale = np.take_along_axis(scales, self._by_scale(best)[None], axis=0)[0]
        return np.asarray(scale, np.float32)

    def _errors(self, turns: Turns, aim: Doubles, scales: Scales) -> Doubles:
        """Return the error of each output with each of some scales: ``[groups, scales, outputs]``.

        Args:
            turns: In which the weight is rounded.
            aim: The weight to be rounded.
            scales: One for each trial, along the first axis.
        """
        groups, outputs, _ = self.weight.shape
        levels = _beside([self._levels(scale) for scale in scales], outputs)
        _, errors = turns.round(np.tile(aim, (1, len(scales), 1)), levels)
        return errors.reshape(groups, len(scales), outputs)

    def _least(self, errors: Doubles) -> npt.NDArray[np.intp]:
        """Return which scale is best: ``[groups, outputs]`` of ``[groups, scales, outputs]``.

        Where all outputs have one scale, their errors are added.
        """
        groups, _, outputs = errors.shape
        if np.asarray(self.config.scale).ndim == 0:
            errors = errors.sum(axis=(0, 2), keepdims=True)
        return np.broadcast_to(errors.argmin(axis=1), (groups, outputs))

    def _by_scale(self, best: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Bring ``[groups, outputs]`` into the shape of the scale."""
        shape = np.asarray(self.config.scale).shape
        return best.reshape(-1)[: int(np.prod(shape))].reshape(shape)

    def _levels(self, scale: Scales) -> Levels:
        config, params = self.config, self.config.params
        zero = np.zeros(scale.shape) if params is None else params.zero_point
        groups, outputs, _ = self.weight.shape
        shape = (groups, outputs, 1) if scale.ndim else (1, 1, 1)
        scales, zeros = (np.asarray(each, np.float64).reshape(shape) for each in (scale, zero))
        return Levels(scales, zeros, config.quant_min, config.quant_max)

    def _held_out_error(self, rounded: Doubles) -> float:
        return float(squared_error(self.weight, rounded, *self.held_out).sum())

    def unfold(self, rounded: Doubles) -> Doubles:
        """Return levels as ``[groups, outputs, inputs, taps]``."""
        return rounded.reshape(self.layer.view(self.layer.weight).shape)

    def shift(self, rounded: Doubles, seen: Moments) -> Doubles:
        """Return by what a bias moves so that the mean of each channel's result stays."""
        x, z = seen.x / seen.count, seen.z / seen.count
        lost = np.einsum("goi,gi->go", self.weight, x) - np.einsum("goi,gi->go", rounded, z)
        options = Gemm.of(self.layer.node)
        return np.asarray(lost * (options.alpha / options.beta))


def _fits(layer: Layer, grain: Granularity) -> bool:
    """Tell whether scales lie along the outputs of a layer, or in blocks along its inputs."""
    outputs = output_channel_axis(layer.node)
    if isinstance(grain, PerBlock):
        return layer.is_dense and outputs is not None and grain.axis == 1 - outputs
    return grain.axis in (None, outputs)


def _beside(levels: list[Levels], outputs: int) -> Levels:
    """Return the levels of weights that lie beside each other along the axis of outputs."""
    first = levels[0]
    scales, zeros = (
        np.concatenate(
            [np.broadcast_to(each, (each.shape[0], outputs, 1)) for each in arrays], axis=1
        )
        for arrays in ([each.scale for each in levels], [each.zero_point for each in levels])
    )
    return Levels(scales, zeros, first.low, first.high)
