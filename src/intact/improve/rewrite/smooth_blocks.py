"""Scales the input channels of weights in blocks, so that those that matter are rounded finer.

Activations stay float there, so only weights are rounded, and a channel whose activations are large
makes more of the same error of its weights. Multiplied with a factor, such a weight takes more of
its block's steps; what is in front of the layer is divided by the factor (`pairs.py`).

The factors of a channel are ``mean|x|^alpha``. Several alphas are tried; the error of the results
decides, with weights rounded as the plan does: on one half of the samples which is best, on the
other half whether it is kept.

Source: [awq], section 3.2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from intact.calibrate.method import Method
from intact.calibrate.scales.ranges import params_of_values
from intact.config import TensorQuantConfig
from intact.data.batching import groups_within
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.graph import Graph
from intact.graph.tied_tables import tied_tables
from intact.improve.layers import Doubles, Layer
from intact.improve.rewrite.pairs import Floats, Pair, pairs_of
from intact.limits import CHANCE_DB
from intact.numerics.metrics import decibels
from intact.numerics.thresholds import METHODS
from intact.plan import QuantizedGraph, TensorEnd
from intact.plan.gains import Gain, Report
from intact.targets import Target

ALPHAS = tuple(step / 10 for step in range(1, 10))
_FEW_BITS = 6
"""Up to so many bits rounding to nearest is felt."""
_ROWS = 512
"""Rows of each half of the samples that errors are measured on."""
_ROWS_OF_SAMPLE = 128
"""As many of one sample: rows of a text are alike."""
_OUTPUTS = 512
"""Outputs of a layer that errors are measured on, evenly spread."""
_HELD = 1 << 28
"""Bytes of activations that are kept; for more the model runs again."""
_LEAST = 1e-2
"""What a channel counts at least, as a share of the mean: with other samples it may be used."""


def smooth_blocks(
    plan: QuantizedGraph, samples: Samples, *, most: int, threads: int, report: Report
) -> Graph:
    """Scale the input channels of the weights of a plan that are in blocks of few bits.

    A table that is looked up and multiplied with stays: a file has it once.

    Args:
        plan: A plan with scales; it is not changed.
        samples: The data; with fewer than two nothing changes.
        most: Maximum number of samples; fewer are run where they have rows enough.
        threads: Threads inside one operator; 0 lets the runtime choose.
        report: Takes what each tensor gained.

    Returns:
        The graph of the plan where nothing gains.

    Raises:
        DataError: A sample does not fit the model.
    """
    twin, is_changed = plan.graph.clone(), False
    tied = {str(layer.name) for _, layer, _ in tied_tables(twin)}
    pairs = [pair for pair in pairs_of(twin) if not tied & _names(pair)]
    pairs = [pair for pair in pairs if any(_readers(plan, pair))]
    for group in _groups(pairs):
        names = [str(pair.value.name) for pair in group]
        # Of the graph as it was: what another pair moves is moved back before it gets here.
        seen = _observe(plan.graph, names, samples.first(most), threads)
        for pair, (fit, held_out) in zip(group, seen, strict=True):
            now = pair.renewed(twin)
            if now is None or not (fit.any() and held_out.any()):
                continue
            if not (np.isfinite(fit).all() and np.isfinite(held_out).all()):
                continue
            name, readers = str(now.readers[-1].node.name), list(_readers(plan, now))
            factors = _best_factors(name, readers, fit, held_out, threads, report)
            if factors is not None:
                now.divide(twin, factors)
                is_changed = True
                # Viewed anew, because constants were replaced.
                twin = Graph(twin.model)
    return twin if is_changed else plan.graph


def _names(pair: Pair) -> set[str]:
    layers = [*pair.readers, *([] if pair.producer is None else [pair.producer])]
    return {str(layer.node.name) for layer in layers}


def _groups(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Group pairs whose activations can be kept at once."""
    size = 2 * _ROWS * np.dtype(np.float32).itemsize
    return groups_within(pairs, lambda pair: size * pair.channels, _HELD)


def _observe(
    graph: Graph, names: Sequence[str], samples: Samples, threads: int
) -> list[tuple[Floats, Floats]]:
    """Run the float model; return rows of tensors, of every other batch and of those between."""
    model = FloatModel(graph, names, threads=threads)
    kept: Mapping[str, tuple[list[Floats], list[Floats]]] = {name: ([], []) for name in names}
    rows = [0, 0]
    for number, (feeds, _) in enumerate(samples.real_batches(samples.batch_size(1))):
        half = number % 2
        results = model.run(feeds, names)
        for name in names:
            array = np.asarray(results[name], np.float32)
            own = array.reshape(-1, array.shape[-1])
            # A copy, or all of it would be held.
            kept[name][half].append(own[:: -(-len(own) // _ROWS_OF_SAMPLE) or 1].copy())
        rows[half] += len(kept[names[0]][half][-1])
        if min(rows) >= _ROWS:
            break
    return [(_joined(first), _joined(second)) for first, second in kept.values()]


def _joined(rows: Sequence[Floats]) -> Floats:
    return np.concatenate(rows)[:_ROWS] if rows else np.zeros((0, 0), np.float32)


@dataclass(frozen=True)
class _Reader:
    """Some outputs of a weight in blocks.

    Attributes:
        weight: As it is stored.
        config: How it is quantized.
        method: Chooses the scales.
        target: Says how blocks are held.
    """

    weight: Floats
    config: TensorQuantConfig
    method: str
    target: Target

    @staticmethod
    def of(layer: Layer, config: TensorQuantConfig, target: Target) -> _Reader:
        outputs = 1 - (config.grid.axis or 0)
        some = np.linspace(0, layer.outputs - 1, min(_OUTPUTS, layer.outputs)).astype(np.intp)
        method = config.observer if config.observer in METHODS else Method.of(target).weights
        return _Reader(np.take(layer.weight, some, outputs), config, method, target)

    def product(self, weight: Floats, rows: Floats) -> Floats:
        """Multiply rows with a weight that is stored as this one."""
        found: Floats = rows @ (weight if self.config.grid.axis == 0 else weight.T)
        return found

    def lost(self, factors: Floats, rows: Floats) -> float:
        """Return noise by signal of the results with factors."""
        grid = self.config.grid
        by_input = factors[:, None] if grid.axis == 0 else factors
        scaled = self.weight * by_input
        truncates = self.target.weight.truncated_zero_point
        params = params_of_values(
            scaled, grid, self.method, truncates=truncates, blocks=self.target.blocks
        )
        error = grid.fake_quantize(scaled, params) / by_input - self.weight
        noise = np.square(self.product(error, rows)).sum(dtype=np.float64)
        signal = np.square(self.product(self.weight, rows)).sum(dtype=np.float64)
        return float(noise / signal) if signal > 0 else 0.0


def _readers(plan: QuantizedGraph, pair: Pair) -> Iterator[_Reader]:
    """Yield the readers whose weights are in blocks of few bits."""
    for layer in pair.readers:
        config = plan.configs.get(TensorEnd.input(str(layer.node.name), 1))
        if config is not None and config.grid.block is not None and config.bits <= _FEW_BITS:
            yield _Reader.of(layer, config, plan.target)


def _best_factors(
    name: str,
    readers: Sequence[_Reader],
    fit: Floats,
    held_out: Floats,
    threads: int,
    report: Report,
) -> Doubles | None:
    """Try the alphas for one tensor; None where none gains."""
    magnitudes = np.abs(fit).mean(axis=0, dtype=np.float64)
    ones = np.ones_like(magnitudes)
    tried = [ones, *(_factors(magnitudes, alpha) for alpha in ALPHAS)]

    def lost(rows: Floats, factors: Doubles) -> float:
        return sum(each.lost(factors.astype(np.float32), rows) for each in readers) / len(readers)

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        errors = list(pool.map(partial(lost, fit), tried))
    # Without factors comes first: of equal errors it wins.
    best = int(np.argmin(errors))
    if not best:
        return None
    before, after = (decibels(1.0, lost(held_out, tried[at])) for at in (0, best))
    is_kept = after > before + CHANCE_DB
    report(Gain(name, before, after, is_kept))
    return tried[best] if is_kept else None


def _factors(magnitudes: Doubles, alpha: float) -> Doubles:
    """Return by what the weights of each channel are multiplied, 1 on average."""
    found = np.maximum(magnitudes, _LEAST * magnitudes.mean()) ** alpha
    return np.asarray(found / np.exp(np.log(found).mean()))
