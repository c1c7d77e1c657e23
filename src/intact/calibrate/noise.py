"""Draws images of noise to calibrate on where there are no samples.

Natural images are smooth: the amplitude of a frequency falls with its inverse. Noise of that
spectrum gets, for each channel, the mean with which the first BatchNormalizations behind the input
have the means that they remember, and a deviation by theirs. Both follow from running these first
layers on constants and on the noise, since they are linear.

Source of the spectrum: Field 1987, "Relations between the statistics of natural images and the
response properties of cortical cells".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.remembered import Doubles, Remembered
from intact.data.signature import InputSpec
from intact.engines.integer.islands import compiled_nodes
from intact.graph import Graph, is_constant
from intact.graph.graph import values_read_inside
from intact.program.operations import FloatNodes

Floats = npt.NDArray[np.float32]
_Moments = tuple[Doubles, Doubles]

_MOST_CHANNELS = 64
"""Of more the mean is the same in all: each costs a run of the first layers."""
_LEAST_SINGULAR = 1e-2
"""Part of the largest; what is beneath it would be a guess."""


def matched_noise(
    graph: Graph, known: Mapping[ir.Value, Remembered], spec: InputSpec, sizes: tuple[int, ...]
) -> tuple[Floats, Floats, float]:
    """Draw noise for a model of one input.

    Args:
        graph: The float model.
        known: What BatchNormalizations remember; some.
        spec: The input.
        sizes: Shape of the samples, ``[N, ...]``.

    Returns:
        Noise of mean 0 and deviation 1, shape ``sizes``; and the mean, which broadcasts against it,
        and the deviation that the input should have.
    """
    first = _First(graph, known, spec.fixed_batch)
    noise = smooth_noise(sizes)
    axis = channel_axis(sizes)
    channels = sizes[axis]
    own = channels if channels <= _MOST_CHANNELS else 1
    along = tuple(own if each == axis else 1 for each in range(len(sizes)))
    steps = [np.zeros(sizes[1:], np.float32)]
    for place in range(own):
        basis = np.zeros(own, np.float32)
        basis[place] = 1
        steps.append(np.broadcast_to(basis.reshape(along)[0], sizes[1:]))
    # Each constant alone: what matters is the mean over the positions of its result.
    means = [first.moments(np.stack([step] * first.least))[0] for step in steps]
    # The first layers are linear: means of the result are those for zeros plus the slope times the
    # constant of each channel.
    slope = np.stack([mean - means[0] for mean in means[1:]], axis=1)
    wanted, deviation = first.wanted
    left, right = slope / deviation[:, None], (wanted - means[0]) / deviation
    mean = np.linalg.lstsq(left, right, rcond=_LEAST_SINGULAR)[0]
    offset = mean.reshape(along).astype(np.float32)
    flat = np.broadcast_to(offset, (first.least, *sizes[1:]))
    at_borders = first.moments(np.ascontiguousarray(flat))[1]  # where zeros are padded
    with np.errstate(all="ignore"):
        ratio = np.sqrt((deviation**2 - at_borders) / first.moments(noise)[1])
    # The median in the logarithm: channels that see little of the noise give ratios without bound.
    usable = ratio[np.isfinite(ratio) & (ratio > 0)]
    scale = float(np.exp(np.median(np.log(usable)))) if usable.size else 1.0
    return noise, offset, scale


def channel_axis(sizes: tuple[int, ...]) -> int:
    """Tell which axis of samples has the channels: the last where it is shorter than axis 1."""
    return len(sizes) - 1 if len(sizes) > 2 and sizes[-1] < sizes[1] else 1


def smooth_noise(sizes: tuple[int, ...], seed: int = 0) -> Floats:
    """Draw noise of which each frequency's amplitude falls with its inverse.

    Args:
        sizes: Shape ``[N, ...]``; the axes but the first and that of the channels are smooth.
        seed: What the draw begins with.
    """
    white = np.random.default_rng(seed).standard_normal(sizes)
    axes = [axis for axis in range(1, len(sizes)) if axis != channel_axis(sizes)]
    if axes:
        square = np.zeros((1,) * len(sizes))
        for axis in axes:
            along = [-1 if each == axis else 1 for each in range(len(sizes))]
            square = square + np.fft.fftfreq(sizes[axis]).reshape(along) ** 2
        # The constant part has frequency 0, whose inverse is no number: it gets the weight of the
        # lowest one.
        lowest = square[square > 0].min(initial=1.0)
        weight = 1 / np.sqrt(np.maximum(square, lowest))
        white = np.fft.ifftn(np.fft.fftn(white, axes=axes) * weight, axes=axes).real
    return np.asarray((white - white.mean()) / max(float(white.std()), 1e-12), np.float32)


class _First:
    """The layers from the input up to the first tensors that BatchNormalizations remember.

    Attributes:
        wanted: Mean and deviation of all their live channels.
        least: Samples that the model takes at least.
    """

    def __init__(
        self, graph: Graph, known: Mapping[ir.Value, Remembered], fixed_batch: int | None
    ) -> None:
        ends = {value: each for value, each in known.items() if not _behind(value, known)}
        values = _cone(ends)
        nodes = tuple(node for node in graph.nodes if values & set(node.outputs))
        # The input itself is one where a BatchNormalization reads it first.
        self._itself = [value for value in ends if value in graph.inputs]
        self._computed = [value for value in ends if value not in graph.inputs]
        self._known = [ends[value] for value in (*self._itself, *self._computed)]
        self._run: Callable[[Iterable[Floats]], list[Floats]] | None = None
        if self._computed:
            operation = FloatNodes(
                nodes,
                tuple(graph.inputs),
                tuple(self._computed),
                tuple(graph.model.functions.values()),
            )
            self._run = compiled_nodes("first", operation, threads=1)
        self.least = fixed_batch or 1
        live = [each.live for each in self._known]
        self._live = np.concatenate(live)
        self.wanted: _Moments = (
            np.concatenate([each.mean for each in self._known])[self._live],
            np.concatenate([each.deviation for each in self._known])[self._live],
        )

    def moments(self, samples: Floats) -> _Moments:
        """Run them; return mean and variance of all live channels."""
        parts: list[list[Floats]] = []
        for start in range(0, len(samples), self.least):
            feed = np.ascontiguousarray(samples[start : start + self.least])
            found = [feed] * len(self._itself)
            if self._run is not None:
                found += self._run([feed])
            parts.append(found)
        means, variances = [], []
        for results in zip(*parts, strict=True):
            rows = np.concatenate(results).astype(np.float64)
            others = tuple(axis for axis in range(rows.ndim) if axis != 1)
            means.append(rows.mean(axis=others))
            variances.append(rows.var(axis=others))
        return np.concatenate(means)[self._live], np.concatenate(variances)[self._live]


def _behind(value: ir.Value, known: Collection[ir.Value]) -> bool:
    """Tell whether another known tensor is computed on the way to one."""
    return bool((_cone([value]) - {value}) & set(known))


def _cone(ends: Collection[ir.Value]) -> set[ir.Value]:
    """Return what tensors are computed from, themselves included; no constants."""
    found: set[ir.Value] = set()
    waiting = list(ends)
    while waiting:
        value = waiting.pop()
        if value in found or is_constant(value):
            continue
        found.add(value)
        node = value.producer()
        if node is not None:
            waiting += [each for each in node.inputs if each is not None]
            waiting += [each for each in values_read_inside(node) if each.graph is node.graph]
    return found
