"""Finds the least and the largest value of each channel, observed or remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intact.data.stream import Samples
from intact.engines.session import make_session, run_session
from intact.graph import Graph
from intact.limits import HELD_AT_ONCE

Doubles = npt.NDArray[np.float64]

MOST_SAMPLES = 128
SPREAD = 6.0
"""Standard deviations that normal values are taken to stay within: one in 1e9 does not."""


@dataclass(frozen=True)
class Channels:
    """What is known of the channels of one tensor, float64 ``[channels]`` each.

    Attributes:
        low: Least value.
        high: Largest value.
        cut: How much of the signal's power the Clip behind takes away, relative to what it leaves.
    """

    low: Doubles
    high: Doubles
    cut: Doubles

    def join(self, other: Channels) -> Channels:
        """Return what is known after more samples; of shares the larger one counts."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        low, high, cut = pairs
        return Channels(np.minimum(*low), np.maximum(*high), np.maximum(*cut))


@dataclass(frozen=True)
class Tensor:
    """A tensor to observe.

    Attributes:
        name: Its name.
        axis: The axis of its channels.
        bounds: What the Clip behind it lets through.
    """

    name: str
    axis: int
    bounds: tuple[float, float] = (-np.inf, np.inf)


def observe_channels(
    graph: Graph,
    samples: Samples,
    tensors: Sequence[Tensor],
    *,
    most: int = MOST_SAMPLES,
    threads: int = 0,
) -> Mapping[str, Channels]:
    """Run the float model and note the channels of tensors, by name.

    Raises:
        DataError: A sample does not fit the model.
    """
    if not tensors:  # a session that is asked for nothing gives everything
        return {}
    copy = graph.clone()
    outputs = copy.model.graph.outputs
    shown = {str(value.name) for value in outputs}
    for tensor in tensors:
        if tensor.name not in shown:
            outputs.append(copy.value(tensor.name))
    session = make_session(copy.model, threads=threads)
    limited = samples.first(most)
    names = [tensor.name for tensor in tensors]
    found: dict[str, Channels] = {}
    for feeds, count in limited.batches(limited.batch_size(HELD_AT_ONCE)):
        arrays = run_session(session, dict(feeds), names)
        for tensor, array in zip(tensors, arrays, strict=True):
            # The last batch may be filled up; a fixed one cannot be cut, as axis 0 may be no batch.
            real = array if limited.fixed_batch is not None else array[:count]
            own = _channels(tensor, real)
            seen = found.get(tensor.name)
            found[tensor.name] = own if seen is None else seen.join(own)
    return found


def _channels(tensor: Tensor, array: npt.NDArray[np.float32]) -> Channels:
    rows = np.moveaxis(array, tensor.axis, 0).reshape(array.shape[tensor.axis], -1)
    low, high = (np.asarray(f(axis=1), np.float64) for f in (rows.min, rows.max))
    below, above = tensor.bounds
    cut = np.zeros(len(rows))
    is_beyond = (low < below) | (high > above)
    if is_beyond.any():
        values = rows[is_beyond]
        inside = np.clip(values, below, above)
        signal = inside if np.isfinite(below) else np.maximum(inside, 0)
        lost, kept = (np.einsum("ci,ci->c", x, x) for x in (values - inside, signal))
        # A channel of which nothing is left has lost infinitely much.
        with np.errstate(divide="ignore"):
            cut[is_beyond] = lost.astype(np.float64) / kept
    return Channels(low, high, cut)


def remembered_channels(graph: Graph, tensors: Sequence[Tensor]) -> Mapping[str, Channels]:
    """Return what folded BatchNormalizations say of tensors: mean ``beta``, deviation ``|gamma|``.

    A Clip is taken to act where a bound is less than `SPREAD` deviations from the mean.
    """
    found = {}
    for tensor in tensors:
        node = graph.value(tensor.name).producer()
        norm = None if node is None else graph.batch_norms.get(str(node.name))
        if norm is None:
            continue
        beta, reach = norm.beta.astype(np.float64), SPREAD * np.abs(norm.gamma.astype(np.float64))
        low, high = beta - reach, beta + reach
        below, above = tensor.bounds
        acts = (high > above) | (low < below)
        found[tensor.name] = Channels(low, high, np.where(acts, np.inf, 0.0))
    return found
