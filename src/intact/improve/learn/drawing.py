"""Draws images whose activations have the statistics that BatchNormalizations remember.

Gradient descent on the input, not on weights: what is learned are the pixels. A step compares the
mean and the deviation of each channel, over all images, with those that are remembered.

Source: Cai et al. 2020, "ZeroQ: A Novel Zero Shot Quantization Framework"; Yin et al. 2020,
"Dreaming to Distill".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from intact.calibrate.noise import Floats
from intact.calibrate.remembered import Remembered
from intact.data.progress import Progress
from intact.graph import Graph, is_constant
from intact.graph.graph import values_read_inside
from intact.improve.learn.constants import numbers_of
from intact.improve.learn.slices import multiply_adds, rule_for
from intact.improve.learn.training import with_threads

_Moments = tuple[Tensor, Tensor]
_PASSES = 3
"""A step costs a forward pass and about two more backward."""
_EPSILON = 1e-12
"""Added to variances: the root has no slope at 0."""


@dataclass(frozen=True)
class Drawing:
    """How images are drawn.

    Attributes:
        steps: Steps, if there is time.
        fewest: Steps at least.
        rate: Learning rate at the start, in deviations of the input; it falls as a cosine.
        work: Multiply-adds of all steps at most. Counted, not measured: results do not depend on
            time.
        threads: Torch's threads. Results depend on it, and therefore not on the machine's.
    """

    steps: int = 80
    fewest: int = 20
    rate: float = 0.1
    work: float = 5e12
    threads: int = 1


@dataclass(frozen=True)
class Drawn:
    """What came of it.

    Attributes:
        images: The inputs.
        before: By how much the statistics of the start differed from what is remembered: root mean
            square over layers, in deviations of the channel.
        after: By how much those of the images do.
        steps: How many were taken.
    """

    images: Floats
    before: float
    after: float
    steps: int


def drawn(
    graph: Graph,
    known: Mapping[ir.Value, Remembered],
    start: tuple[Floats, Floats, float],
    chunk: int,
    *,
    options: Drawing = Drawing(),
    progress: Progress | None = None,
) -> Drawn:
    """Draw images from a start.

    Args:
        graph: The float model, with one input.
        known: What BatchNormalizations remember; some.
        start: Noise of mean 0 and deviation 1, shape ``[N, ...]``, the mean and the deviation of
            the input, as of `intact.calibrate.noise.matched_noise`.
        chunk: Images that the model takes at once.
        options: How.
        progress: Takes the steps done.
    """
    noise, mean, deviation = start
    offset = torch.from_numpy(mean)
    with with_threads(options.threads):
        network = _Network(graph, known, chunk)
        learned = torch.from_numpy(np.array(noise))
        with torch.no_grad():
            first = float(network.loss(learned * deviation + offset))
        # The first loss has counted what a forward pass costs.
        steps = int(options.work / max(_PASSES * network.cost, 1.0))
        steps = max(min(options.steps, steps), options.fewest)
        # The start counts too: steps that only lose leave it as it is.
        best, least = learned, first
        learned = learned.clone().requires_grad_()
        optimizer = torch.optim.Adam([learned])
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = options.rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            loss = network.loss(learned * deviation + offset)
            if float(loss.detach()) < least:
                best, least = learned.detach().clone(), float(loss.detach())
            if not bool(torch.isfinite(loss)) or not loss.requires_grad:
                break  # what was best until here is what there is
            loss.backward()
            optimizer.step()
            if progress is not None:
                progress(step + 1, steps)
    images = (best * deviation + offset).numpy()
    return Drawn(images, math.sqrt(first), math.sqrt(least), steps)


class _Network:
    """The float model up to the last tensor that a BatchNormalization remembers.

    Attributes:
        cost: Multiply-adds of the last pass.
    """

    def __init__(self, graph: Graph, known: Mapping[ir.Value, Remembered], chunk: int) -> None:
        self._input, self._chunk = str(graph.inputs[0].name), chunk
        rule = rule_for(graph)
        nodes = list(graph.nodes)
        # What follows the last of them has no part in the loss.
        last = max((i for i, n in enumerate(nodes) if set(n.outputs) & known.keys()), default=-1)
        self._steps = [(node, rule(node)) for node in nodes[: last + 1]]
        self._unused = _unused([node for node, _ in self._steps])
        self._constants = {
            str(value.name): torch.from_numpy(np.array(array))
            for value in graph.values
            if is_constant(value) and (array := numbers_of(graph, value)) is not None
        }
        self._known = {str(value.name): _Known.of(each) for value, each in known.items()}
        self.cost = 0.0

    def loss(self, images: Tensor) -> Tensor:
        """Return the mean square of what statistics are off, over layers and their channels."""
        self.cost = 0.0
        found: dict[str, list[_Moments]] = {}
        for chunk in images.split(self._chunk):
            for name, tensor in self._run(chunk):
                others = [axis for axis in range(tensor.ndim) if axis != 1]
                variance, mean = torch.var_mean(tensor, others, correction=0)
                found.setdefault(name, []).append((mean, variance))
        losses = []
        for name, parts in found.items():
            known = self._known[name]
            means, variances = (
                torch.stack(each)[:, known.live] for each in zip(*parts, strict=True)
            )
            mean = means.mean(0)  # chunks are of one size
            # The variance over all is that within chunks and that between their means.
            variance = variances.mean(0) + (means - mean).square().mean(0)
            spread = (variance + _EPSILON).sqrt() / known.deviation
            off = (mean - known.mean) / known.deviation
            losses.append((off.square() + (spread - 1).square()).mean() / 2)
        return torch.stack(losses).mean()

    def _run(self, images: Tensor) -> list[tuple[str, Tensor]]:
        held = {**self._constants, self._input: images}
        found = [(self._input, images)] if self._input in self._known else []
        for (node, apply), unused in zip(self._steps, self._unused, strict=True):
            operands = [held[each] if each else None for each in _reads(node)]
            made = apply(*operands)
            results = made if isinstance(made, tuple) else (made,)
            names = [str(value.name) if value.name else "" for value in node.outputs]
            weight = operands[1] if len(operands) > 1 else None
            self.cost += multiply_adds(node, weight, sum(each.numel() for each in results))
            for name, result in zip(names, results, strict=False):
                held[name] = result
                if name in self._known:
                    found.append((name, result))
            for name in unused:
                held.pop(name, None)
        return found


@dataclass(frozen=True)
class _Known:
    """What is remembered, as tensors.

    Attributes:
        mean: Means of the live channels, float32 ``[live]``.
        deviation: Deviations of the same channels.
        live: Their numbers.
    """

    mean: Tensor
    deviation: Tensor
    live: Tensor

    @staticmethod
    def of(known: Remembered) -> _Known:
        mean, deviation = (
            torch.from_numpy(each[known.live].astype(np.float32))
            for each in (known.mean, known.deviation)
        )
        return _Known(mean, deviation, torch.from_numpy(np.flatnonzero(known.live)))


def _reads(node: ir.Node) -> list[str]:
    """Name what a node reads: by slot, then what its bodies read from outside them."""
    own = ["" if value is None else str(value.name) for value in node.inputs]
    inside = (value for value in values_read_inside(node) if value.graph is node.graph)
    return own + [str(value.name) for value in inside]


def _unused(nodes: list[ir.Node]) -> list[list[str]]:
    """List for each node what no later one reads."""
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        names = [str(value.name) for value in node.outputs if value.name]
        last |= dict.fromkeys((*_reads(node), *names), index)
    found: list[list[str]] = [[] for _ in nodes]
    for name, index in last.items():
        found[index].append(name)
    return found
