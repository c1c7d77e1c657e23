"""Reconstructs block by block: a quantized network learns the float one's results.

Blocks are learned in their order, each on the inputs that the quantized blocks before it give. What
is learned is the rounding of weights, the scales of activations and biases in integers; the float
weights stay, and the plan holds the integers.

Half of the samples decides what is learned, the other half whether it is kept: a block whose
results are no better on samples that it did not learn from stays as it was.

Sources: blocks, Li et al. 2021, "BRECQ"; the rounding, `intact.improve.learn.block_learning`; the
scales, `intact.improve.learn.fake_quantize` (LSQ); elements that stay in float while learning, Wei
et al. 2022, "QDrop".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from intact.calibrate.scales.bias import rescale_bias
from intact.config import QuantState
from intact.data.stream import Samples
from intact.errors import UsageError
from intact.graph import data_slots
from intact.improve.learn.block_learning import (
    BlockLearner,
    Learned,
    decibels,
    learnable_scales,
)
from intact.improve.learn.blocks import Block
from intact.improve.learn.checkpoints import damaged_error, read_checkpoint, write_checkpoint
from intact.improve.learn.constants import without_integers
from intact.improve.learn.instructions import quantizer_keys
from intact.improve.learn.losses import named_device
from intact.improve.learn.segments import Values
from intact.improve.learn.slices import FLOAT, QUANTIZED, Slices
from intact.improve.learn.streams import Source, Stream
from intact.improve.learn.training import with_threads
from intact.improve.learn.work import DEFAULTS, Reconstruction, Work
from intact.improve.refine.weight_scales import is_free
from intact.plan import Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.gains import Gain, Report, unreported
from intact.plan.plan_file import plan_to_json
from intact.program.lower.chains import Points

OBSERVER = "reconstruction"
"""What chose the scale, as the plan calls it."""
_SMALL_STEP = 1e8
"""Multiply-adds of a step, some 10 ms, below which one thread learns: several would wait for each
other longer than they compute, ten times as long where other programs run beside."""
_WEIGHT = 1


def adaround(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    options: Reconstruction = DEFAULTS,
    report: Report = unreported,
) -> QuantizedGraph:
    """Learn the rounding of weights a layer at a time: `reconstruct` with layers for blocks."""
    chosen = replace(options, layers=1, largest=1, drop=0.0, scales=False)
    return reconstruct(plan, samples, options=chosen, report=report)


def reconstruct(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    options: Reconstruction = DEFAULTS,
    report: Report = unreported,
) -> QuantizedGraph:
    """Learn the rounding of weights and the scales of activations, block by block.

    The plan then holds the integers of the weights that were learned, and of their biases where the
    target has integer ones. Given and fixed scales stay, and those that several blocks share, and
    weights that several nodes read. Plans of quantized models that were read are not changed.

    Args:
        plan: A plan with scales; it is not changed.
        samples: The data; fewer than two samples change nothing. Their progress counts steps.
        options: How.
        report: Takes what each block gained.

    Raises:
        PlanError: An end has no scale yet.
        DataError: A sample does not fit the model, or the state in the folder is damaged.
        UsageError: The state in the folder is of other options, data or another plan; or there is
            no such device.
    """
    if plan.provenance.source:
        return plan
    source = Source.of(samples, options.most, options.batch)
    if not source.fit.units or not source.held_out.units:
        return plan
    made = _Run(plan, samples, source, options, report)
    with with_threads(made.threads):
        return made.run()


def by_blocks(
    plan: QuantizedGraph, samples: Samples, *, report: Report = unreported, **options: Any
) -> QuantizedGraph:
    """Learn block by block; the options are those of `Reconstruction`."""
    return reconstruct(plan, samples, options=_options(options), report=report)


def by_layers(
    plan: QuantizedGraph, samples: Samples, *, report: Report = unreported, **options: Any
) -> QuantizedGraph:
    """Learn layer by layer; the options are those of `Reconstruction`."""
    return adaround(plan, samples, options=_options(options), report=report)


def _options(options: dict[str, Any]) -> Reconstruction:
    """Read the options; the threads stay what they are, because results depend on them."""
    known = {name: value for name, value in options.items() if name != "threads"}
    folder = known.pop("folder", None)
    return Reconstruction(**known, folder=None if folder is None else Path(folder))


class _Run:
    """The reconstruction of one plan."""

    def __init__(
        self,
        plan: QuantizedGraph,
        samples: Samples,
        source: Source,
        options: Reconstruction,
        report: Report,
    ) -> None:
        self._plan, self._options, self._report = plan, options, report
        self._progress = samples.progress
        free, rounded = without_integers(plan)
        self._slices = Slices(free, rounded, named_device(options.device))
        self._work = Work.of(self._slices, source.fit, _layers(free), options)
        self._source = source
        self._kept: dict[int, Learned] = {}
        self._gains: list[Gain] = []
        self._notes: list[Note] = []
        self._done = 0

    @property
    def threads(self) -> int:
        """How many threads learn."""
        return 1 if self._work.largest_step < _SMALL_STEP else self._options.threads

    def run(self) -> QuantizedGraph:
        """Learn all blocks that are not done yet."""
        resumed = self._resume()
        floats = quantized = self._source.fit
        floats_held = quantized_held = self._source.held_out
        for index, block in enumerate(self._work.blocks):
            # Blocks that are resumed are run too: those behind need their activations.
            wanted = floats.advance(self._slices, block, FLOAT)
            wanted_held = floats_held.advance(self._slices, block, FLOAT)
            if index < resumed:
                self._restore(index)
            else:
                fit = quantized, floats, _results(wanted, block)
                self._learn(index, fit, (quantized_held, _results(wanted_held, block)))
                self._save(index)
            quantized = quantized.advance(self._slices, block, QUANTIZED)
            quantized_held = quantized_held.advance(self._slices, block, QUANTIZED)
            floats, floats_held = wanted, wanted_held
            for stream in (floats, floats_held, quantized, quantized_held):
                stream.forget(block)
            self._tell(index)
        return self._result()

    # ---- a block -----------------------------------------------------------------------------

    def _learn(
        self, index: int, fit: tuple[Stream, Stream, Stream], held_out: tuple[Stream, Stream]
    ) -> None:
        """Learn a block, and keep what is better on held-out samples."""
        block, slices = self._work.blocks[index], self._slices
        scales = learnable_scales(slices, block) if self._options.scales else frozenset()
        # A seed of each block's own, so that blocks draw the same whether those before were
        # resumed.
        seed = np.random.SeedSequence((self._options.seed, index)).generate_state(1)
        random = torch.Generator().manual_seed(int(seed[0]))
        before = decibels(slices, block, *held_out)
        if not (block.layers or scales) or before == math.inf or math.isnan(before):
            return
        begun, after, highest = dict(slices.values), before, -math.inf
        best, done = Learned({}, {}, {}), 0
        try:
            for rounds, steps in _stages(self._work.paces[index].steps, block, scales):
                learner = BlockLearner(
                    slices, block, scales, self._options.drop, random, rounds=rounds
                )
                pace = replace(self._work.paces[index], steps=steps)
                for step in learner.run(*fit, pace, self._work.by_sample):
                    self._tell(index, done + step)
                done += steps
                for each in learner.learned().candidates(best):
                    reached = self._measure(block, each, scales, held_out, begun)
                    highest = max(highest, reached)
                    if reached > after:
                        after, best = reached, each
                self._put(best, scales, begun)
        except FloatingPointError:
            self._put(Learned({}, {}, {}), scales, begun)
            self._notes.append(_not_finite(block))
            self._gain(Gain(block.node, before, math.nan, kept=False))
            return
        is_kept = after > before
        self._gain(Gain(block.node, before, highest, kept=is_kept))
        if is_kept:
            self._kept[index] = best

    def _measure(
        self,
        block: Block,
        learned: Learned,
        scales: frozenset[str],
        held_out: tuple[Stream, Stream],
        begun: Values,
    ) -> float:
        """Return what a block reaches on held-out samples, dB, with what it may have learned."""
        self._put(learned, scales, begun)
        reached = decibels(self._slices, block, *held_out)
        # A bias that the target clips would be another one than was learned.
        is_out = self._slices.overflows(block) or math.isnan(reached)
        return -math.inf if is_out else reached

    def _put(self, learned: Learned, scales: frozenset[str], begun: Values) -> None:
        """Let what was learned be in force, beside the constants that there were."""
        self._slices.values = {**begun, **learned.weights, **learned.biases}
        self._set(learned.scales, scales)

    def _set(self, learned: Mapping[str, Tensor], scales: frozenset[str]) -> None:
        """Set scales of activations to what was learned, or where nothing was to the plan's."""
        for key in scales:
            quantizer = self._slices.quantizers[key].requires_grad_(requires_grad=False)
            quantizer.forget()
            if quantizer.size is not None and key in learned:
                with torch.no_grad():
                    quantizer.size.copy_(learned[key])

    def _gain(self, gain: Gain) -> None:
        self._gains.append(gain)
        self._report(gain)

    def _tell(self, index: int, steps: int | None = None) -> None:
        if self._progress is not None:
            paces = self._work.paces
            done = sum(pace.steps for pace in paces[:index])
            now = paces[index].steps if steps is None else steps
            self._progress(done + now, sum(pace.steps for pace in paces))

    # ---- the state on disk -------------------------------------------------------------------

    @property
    def _path(self) -> Path | None:
        folder = self._options.folder
        return None if folder is None else folder / "reconstruction.pt"

    def _identity(self) -> dict[str, Any]:
        # A folder may be moved between runs.
        options = {k: v for k, v in asdict(self._options).items() if k != "folder"}
        plan = hashlib.blake2b(plan_to_json(self._plan), digest_size=16)
        # The plan's text has no integers, which decide what is learned as well.
        for end in sorted(self._plan.baked):
            plan.update(str(end).encode() + self._plan.baked[end].tobytes())
        digest = self._source.digest
        return {
            "plan": [self._plan.graph.hash, plan.hexdigest()],
            "data": digest,
            "options": options,
        }

    def _save(self, index: int) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            str(number): {part: dict(getattr(each, part)) for part in _PARTS}
            for number, each in self._kept.items()
        }
        write_checkpoint(
            self._path,
            {
                "of": self._identity(),
                "blocks": index + 1,
                "kept": kept,
                "gains": msgspec.to_builtins(
                    [(g.node, float(g.before), float(g.after), g.kept) for g in self._gains]
                ),
                "notes": [note.node for note in self._notes],
            },
        )

    def _resume(self) -> int:
        """Return how many blocks are done; what they learned is read."""
        kept = None if self._path is None else read_checkpoint(self._path)
        if kept is None or self._path is None:
            return 0
        if kept["of"] != self._identity():
            raise UsageError(
                f"{self._path}: is of a reconstruction with other options, data or another plan",
                remedy="give the same, or remove the file",
            )
        try:
            self._kept = {
                int(number): Learned(*(each[part] for part in _PARTS))
                for number, each in kept["kept"].items()
            }
            by_node = {block.node: block for block in self._work.blocks}
            self._notes = [_not_finite(by_node[node]) for node in kept["notes"]]
            for node, before, after, is_kept in kept["gains"]:
                self._gain(Gain(node, before, after, is_kept))
            return int(kept["blocks"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_error(self._path, "it does not fit the model") from error

    def _restore(self, index: int) -> None:
        learned = self._kept.get(index)
        if learned is not None:
            device = self._slices.device
            parts = ({k: t.to(device) for k, t in getattr(learned, p).items()} for p in _PARTS)
            self._put(Learned(*parts), frozenset(learned.scales), self._slices.values)

    # ---- the result --------------------------------------------------------------------------

    def _result(self) -> QuantizedGraph:
        """Return the plan with what was kept."""
        if not self._kept:
            return self._plan.with_notes(tuple(self._notes)) if self._notes else self._plan
        plan = self._slices.plan.copy()
        moved = {key for each in self._kept.values() for key in each.scales}
        roots = set()
        for key, point in quantizer_keys(self._slices.plan).values():
            if key in moved:
                root = plan.configs[point.end].dominator
                params = self._slices.quantizers[key].params()
                root.set_params(params.scale, params.zero_point)
                root.observer = OBSERVER
                roots.add(id(root))
        for node in plan.graph.nodes:
            slots = [*data_slots(node)]
            if any(id(plan.input_config(node, slot).dominator) in roots for slot in slots):
                rescale_bias(plan, node)
        self._bake(plan)
        return plan.with_notes(tuple(self._notes))

    def _bake(self, plan: QuantizedGraph) -> None:
        """Put integers into the plan: those that were there, and those that were learned."""
        learned = {name for each in self._kept.values() for name in (*each.weights, *each.biases)}
        for node in plan.graph.nodes:
            for slot, value in enumerate(node.inputs):
                end = TensorEnd.input(str(node.name), slot)
                name = "" if value is None else str(value.name)
                config = plan.configs.get(end)
                if config is None or not name:
                    continue
                if name not in learned and end not in self._plan.baked:
                    continue
                is_bias = config.state is QuantState.PASSIVE
                codes = self._plan.baked.get(end)
                # A bias follows the scales of its layer, which may have moved: its old integers
                # mean others.
                if codes is None or name in learned or is_bias:
                    codes = config.quantize(self._slices.values[name].cpu().double().numpy())
                config.transition(QuantState.PASSIVE_BAKED if is_bias else QuantState.BAKED)
                plan.baked[end] = codes


_PARTS = ("weights", "biases", "scales")


def _stages(steps: int, block: Block, scales: frozenset[str]) -> list[tuple[bool, int]]:
    """Return whether roundings are learned in each stage, and for how many steps.

    Scales of activations are few and settle soon: they come first, with the plan's integers, so
    that what they gain does not hang on the rounding.
    """
    if not (block.layers and scales):
        return [(bool(block.layers), steps)]
    first = steps // 4
    return [(False, first), (True, steps - first)]


def _results(stream: Stream, block: Block) -> Stream:
    """Return what a block gives of a stream that it has gone through."""
    units = [{key: unit[key] for key in block.writes} for unit in stream.units]
    return replace(stream, units=units)


def _layers(plan: QuantizedGraph) -> frozenset[str]:
    """Return the nodes whose weights can be rounded up or down, for themselves alone."""
    points = Points.of(plan)
    found = set()
    for node in plan.graph.nodes:
        point = points.at_input.get((str(node.name), _WEIGHT))
        value = None if point is None else plan.graph.constant(point.value)
        if point is None or value is None or not is_free(plan, node, _WEIGHT, point):
            continue
        if len(plan.graph.consumers(point.value)) == 1 and np.isfinite(value).all():
            found.add(str(node.name))
    return frozenset(found)


def _not_finite(block: Block) -> Note:
    return Note(
        NoteKind.CALIBRATION,
        block.node,
        "learning its block gave numbers that are not finite: the block stays as it was",
    )
