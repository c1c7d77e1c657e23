"""Declares the figures of a report's graph: nodes, places, errors, tensors."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class _Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Plain values; what has its default is left out of the JSON."""


class Histogram(_Figures, frozen=True):
    """The values of a tensor that calibration observed.

    Attributes:
        low: Lower end of the first bin.
        high: Upper end of the last.
        bins: Values in each of equally wide bins, in millionths of all.
        values: How many values were observed.
        mean: Their mean.
        deviation: Their standard deviation.
        zeros: Part of them that is exactly 0.
    """

    low: float
    high: float
    bins: tuple[int, ...]
    values: int
    mean: float
    deviation: float
    zeros: float = 0.0


class Tensor(_Figures, frozen=True):
    """A tensor that is quantized, or was observed.

    Attributes:
        name: Its name.
        low: The value of the lowest code, the lowest of all channels.
        high: The value of the highest code, the highest of all channels.
        clipped: Part of the observed values that lies outside of these.
        histogram: What calibration observed.
    """

    name: str
    low: float | None = None
    high: float | None = None
    clipped: float | None = None
    histogram: Histogram | None = None


class Channels(_Figures, frozen=True):
    """A weight before and after quantization, by output channel.

    Attributes:
        count: Channels; entries are of several neighbours where there are fewer entries.
        unit: What the integers of the ranges are multiples of.
        low: Least value of each entry, float.
        high: Largest value, float.
        quantized_low: Least value, quantized.
        quantized_high: Largest value, quantized.
        sqnr_db: Signal to quantization noise of each entry, dB, its worst channel; None where the
            channel is exact.
    """

    count: int
    unit: float
    low: tuple[int, ...]
    high: tuple[int, ...]
    quantized_low: tuple[int, ...]
    quantized_high: tuple[int, ...]
    sqnr_db: tuple[int | None, ...]


class End(_Figures, frozen=True):
    """How a node reads or writes a tensor.

    Attributes:
        slot: Which of the node's: ``input 0``, ``weight``, ``bias``, ``output``.
        tensor: The tensor.
        state: What the configuration says is done, in the words of `QuantState`.
        shape: The tensor's, with names of open lengths; empty where it is not known.
        bits: Width of the codes; 0 where it is float.
        codes: The lowest and the highest.
        scale: Least and largest scale of the channels, or the only one; empty where it is float.
        zero_point: The same of the zero points.
        channels: Number of scales.
        axis: Their axis; None where there is one scale.
        method: What chose the scale.
        shares: The end whose scale it has; "" where it has its own.
        logarithmic: Whether codes are exponents.
    """

    slot: str
    tensor: str
    state: str
    shape: tuple[int | str, ...] = ()
    bits: int = 0
    codes: tuple[int, ...] = ()
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    channels: int = 1
    axis: int | None = None
    method: str = ""
    shares: str = ""
    logarithmic: bool = False


class Errors(_Figures, frozen=True):
    """The errors of a layer, as `intact.analyze.layers` measures them.

    Attributes:
        accumulated: In the quantized model, dB.
        own: By itself, dB.
        weights: By itself with only weights and bias quantized, dB.
        activations: What quantizing activations adds, dB.
        bias: With only the bias quantized, dB; left out without one.
        alone: The model's outputs where this layer alone is quantized, dB; left out where no
            output depends on it.
        cosine: Cosine of the result in both models.
        channels: ``own`` of each channel, or the worst of neighbours where there are many.
    """

    accumulated: float | None
    own: float | None
    weights: float | None
    activations: float | None
    bias: float | UnsetType | None = UNSET
    alone: float | UnsetType | None = UNSET
    cosine: float | None = None
    channels: tuple[float | None, ...] = ()


class Node(_Figures, frozen=True):
    """One node of the model.

    Attributes:
        name: Its name.
        op: Its operator.
        x: Centre in the drawing, in pixels.
        y: Centre in the drawing, in pixels.
        kind: ``integer``, ``float``, ``stored`` (weights are integers, the operator is float),
            ``input`` or ``output`` (of the model).
        bits: Width of its result, or else of its first quantized input; 0 for float.
        weight_bits: Width of its weight; 0 where it has none, or it is float.
        half: Whether its floats are float16.
        reason: Why it is quantized or not.
        given: What it was in the given model, or has taken in: each node with its operator.
        layer: Index of the first node of its layer, a chain that is fused; None where no errors of
            it were measured.
        errors: Its layer's errors, at the first node.
        ends: Its inputs and outputs.
        weight: Its weight by channel, where that is quantized.
        weights: Number of its weights.
        notes: What the plan says of it, with the remedy.
        findings: Indices of what the diagnosis found here.
        time_ms: What its kernel takes of a batch; the first node of a fused chain has that of all.
    """

    name: str
    op: str
    x: int
    y: int
    kind: str
    bits: int = 0
    weight_bits: int = 0
    half: bool = False
    reason: str = ""
    given: tuple[str, ...] = ()
    layer: int | None = None
    errors: Errors | None = None
    ends: tuple[End, ...] = ()
    weight: Channels | None = None
    weights: int = 0
    notes: tuple[str, ...] = ()
    findings: tuple[int, ...] = ()
    time_ms: float | None = None


class Edge(_Figures, frozen=True, array_like=True):
    """A tensor from one node to another.

    Attributes:
        source: Index of the node that writes it.
        reader: Index of the node that reads it.
        bends: Points between, x and y in turn.
    """

    source: int
    reader: int
    bends: tuple[int, ...] = ()


class Network(_Figures, frozen=True):
    """The graph of a model, laid out from top to bottom.

    Attributes:
        width: The drawing's width, in pixels.
        height: The drawing's height.
        nodes: The nodes, in topological order, after the model's inputs and before its outputs.
        edges: Between them.
        tensors: That are quantized or were observed.
    """

    width: int
    height: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    tensors: tuple[Tensor, ...] = ()
