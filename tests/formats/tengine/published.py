"""Tengine's quantization as its analysis and tool publish it, number by number.

Written from the posted analysis of the min-max algorithm (table, pass through operators in place,
weights, biases) and from the formulas of the tool's other algorithms, in plain loops; nothing of
intact is used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper

Array = npt.NDArray[Any]
Finish = Callable[[Array], Array]
F = np.float32

CODES = 127
BINS = 2048
GROUPS = 128
ZOOMS = [1.3 / 200 * (step + 1) for step in range(0, 200, 20)]
IN_PLACE = ("Flatten", "Reshape", "Squeeze", "Clip", "Slice", "MaxPool", "Relu")


def activations(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every activation of the float model by name, inputs first."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output]
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(
        whole.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(names, dict(feeds))
    return {**feeds, **dict(zip(names, found, strict=True))}


def softmaxes(model: onnx.ModelProto) -> set[str]:
    return {node.output[0] for node in model.graph.node if node.op_type == "Softmax"}


def absmax(values: Array) -> np.float32:
    return F(max(abs(F(values.max())), abs(F(values.min()))))


def decimals(scale: float) -> np.float32:
    """What is read from the table's text."""
    return F(float("%f" % scale))  # noqa: UP031 - the tool's format


# ---- activations --------------------------------------------------------------------------------


def minmax(values: Array) -> float:
    return float(absmax(values) / F(CODES))


def aciq(values: Array) -> float:
    """The first axis is that of the images."""
    elements = values[0].size
    constant = 0.5 * 0.35 * (1 + math.sqrt(math.pi * math.log(4)))
    deviation = float(absmax(values)) * 2 * constant / math.sqrt(2 * math.log(elements))
    return float(F(3.92403714 * deviation) / F(CODES))


def histogram(values: Array) -> list[int]:
    """2048 bins of absmax / 2047; zeros are skipped."""
    width = float(absmax(values)) / (BINS - 1)
    counts = [0] * BINS
    for value in values.reshape(-1).tolist():
        if value != 0:
            counts[int(abs(value) / width)] += 1
    return counts


def divergence(shares: Sequence[float], kept: int) -> float:
    """Of the first bins, the rest added to the last of them, and of these in 128 groups."""
    reference = list(shares[:kept])
    reference[-1] += sum(shares[kept:])
    spread = [0.0] * kept
    width = kept / GROUPS
    for group in range(GROUPS):
        start, end = group * width, (group + 1) * width
        parts = []
        for position in range(int(start), min(math.ceil(end), kept)):
            part = min(end, position + 1) - max(start, position)
            if shares[position] and part > 1e-9:
                parts.append((position, part))
        filled = sum(part for _, part in parts)
        mass = sum(shares[position] * part for position, part in parts)
        for position, part in parts:
            spread[position] += mass / filled * part
    result = 0.0
    for p, q in zip(reference, spread, strict=True):
        if p:
            result += p * math.log(p / q) if q else 1.0
    return result


def spread_histogram(values: Array) -> list[float]:
    """The same from counts of floats whose upper 16 bits agree, spread evenly over their interval.

    That is what is left of the values where they are collected in one pass.
    """
    width = float(absmax(values)) / (BINS - 1)
    alike = Counter((np.abs(values).view(np.uint32).reshape(-1) >> 16).tolist())
    counts = [0.0] * BINS
    for pattern, count in alike.items():
        ends = np.array([pattern << 16, (pattern + 1) << 16], np.uint32).view(np.float32)
        low, high = float(ends[0]), min(float(ends[1]), float(absmax(values)))
        if high == 0:
            continue
        for position in range(int(low / width), min(int(high / width), BINS - 1) + 1):
            part = min(high, (position + 1) * width) - max(low, position * width)
            counts[position] += count * (max(part, 0.0) / (high - low) if high > low else 1.0)
    return counts


def shares_of(counts: Sequence[float]) -> list[float]:
    """The bins' shares without the first bin."""
    total = sum(counts[1:])
    return [0.0, *(count / total for count in counts[1:])]


def kl_scale(kept: int, values: Array) -> float:
    return (kept + 0.5) * float(absmax(values)) / BINS / CODES


def kl_of_tool(values: Array, choose: Callable[[Sequence[int]], int]) -> float:
    """The scale in float32 numbers, of all images; ``choose`` is `threshold_bin`, or faster."""
    largest, counts = absmax(values), [0] * BINS
    width = largest / F(BINS - 1)
    for value in np.abs(values.reshape(-1)):
        if value != 0:
            counts[math.floor(value / width)] += 1
    return float(largest / F(BINS) * (F(choose(counts)) + F(0.5)) / F(CODES))


def threshold_bin(counts: Sequence[int], groups: int = GROUPS) -> int:
    """`threshold_distribution`; 10 s for 2048 bins."""
    total = F(0)
    for count in counts[1:]:
        total = total + F(count)
    shares = [F(0), *(F(count) / total for count in counts[1:])]
    beyond = F(0)
    for share in shares[groups:]:
        beyond = beyond + share
    chosen, least = groups, F(np.finfo(F).max)
    for kept in range(groups, len(shares)):
        reference = [*shares[: kept - 1], shares[kept - 1] + beyond]
        beyond = beyond - shares[kept]
        found = float32_divergence(reference, expanded(shares, kept, groups))
        if found < least:
            chosen, least = kept, found
    return chosen


def expanded(shares: Sequence[np.float32], kept: int, groups: int) -> list[np.float32]:
    """The kept bins in groups, each spread over those of its bins that are not empty."""
    result, width = [F(0)] * kept, F(kept) / F(groups)
    for group in range(groups):
        start = F(group) * width
        end = start + width
        upper, lower = math.ceil(start), math.floor(end)
        parts = [(upper - 1, F(upper) - start), (lower, end - F(lower))]
        parts = [(bin_, part) for bin_, part in parts if part > 0]
        parts += [(bin_, F(1)) for bin_ in range(upper, lower)]
        mass, filled = F(0), F(0)
        for bin_, part in parts:
            mass = mass + part * shares[bin_]
            filled = filled + (part if shares[bin_] else F(0))
        for bin_, part in parts:
            if shares[bin_]:
                result[bin_] = result[bin_] + mass / filled * part
    return result


def float32_divergence(reference: Sequence[np.float32], found: Sequence[np.float32]) -> np.float32:
    result = F(0)
    for p, q in zip(reference, found, strict=True):
        if p and not q:
            result = result + F(1)
        elif p:
            ratio = p / q
            term = math.log(ratio) if ratio > 0 else math.nan
            result = F(float(result) + float(p) * term)
    return result


def table(model: onnx.ModelProto, scales: Mapping[str, float]) -> str:
    fixed = softmaxes(model)
    return "".join(
        "%s %f %d\n" % (name, 1 / 127 if name in fixed else scale, 0)  # noqa: UP031
        for name, scale in scales.items()
    )


def passed(model: onnx.ModelProto, scales: Mapping[str, np.float32]) -> dict[str, np.float32]:
    """The scales after operators in place gave theirs to inputs that are used once."""
    producers = {name: node for node in model.graph.node for name in node.output}
    used = Counter(name for node in model.graph.node for name in node.input)
    result, done = dict(scales), set()

    def give(source: str) -> None:
        node = producers.get(source)
        if node is None or node.op_type not in IN_PLACE:
            return
        target = node.input[0]
        if target not in done and used[target] < 2:
            result[target] = result[source]
            give(target)
            done.add(target)

    for name in reversed(list(scales)):
        if name not in done:
            give(name)
            done.add(name)
    return result


# ---- weights and biases -------------------------------------------------------------------------


def away(value: np.float32) -> int:
    """C's ``round``."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), float(value)))


def quantized_weight(weight: Array) -> tuple[list[np.float32], Array]:
    """Scales and codes by output channel."""
    scales, codes = [], np.zeros(weight.shape, np.int8)
    for channel, values in enumerate(weight):
        scales.append(F(absmax(values) / F(CODES)))
        for index, value in np.ndenumerate(values):
            if value != 0 and scales[channel] != 0:
                code = away(F(value) / scales[channel])
                codes[(channel, *index)] = max(-CODES, min(CODES, code))
    return scales, codes


def quantized_bias(
    bias: Array, weights: Sequence[np.float32], data: np.float32
) -> tuple[list[np.float32], list[int]]:
    scales = [F(scale * data) for scale in weights]
    codes = [
        0 if value == 0 or scale == 0 else away(F(value) / scale)
        for value, scale in zip(bias, scales, strict=True)
    ]
    return scales, codes


def line(name: str, scales: Sequence[np.float32]) -> str:
    return f"{name} " + "".join("%8.8f " % scale for scale in scales) + "\n"  # noqa: UP031


def constants(model: onnx.ModelProto) -> dict[str, Array]:
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


# ---- EQ: the zoom of each weight scale ----------------------------------------------------------


def requantized(values: Array, scale: np.float32) -> Array:
    found = np.empty(values.shape, np.float32)
    for index, value in np.ndenumerate(values):
        found[index] = F(max(-CODES, min(CODES, away(F(value) / scale)))) * scale
    return found


def convolution(x: Array, weight: Array, bias: Array) -> Array:
    """3x3, padded by one."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    rows, columns = x.shape[2:]
    found = np.zeros((len(x), len(weight), rows, columns))
    for o, c, i, j in np.ndindex(*weight.shape):
        found[:, o] += padded[:, c, i : i + rows, j : j + columns] * float(weight[o, c, i, j])
    return (found + np.asarray(bias, np.float64).reshape(1, -1, 1, 1)).astype(np.float32)


def cosine(first: Array, second: Array) -> float:
    a, b = first.astype(np.float64).reshape(-1), second.astype(np.float64).reshape(-1)
    norm = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / norm if norm > 1e-7 else float(a @ b)


def zoomed_cosines(
    x: Array, reference: Array, weight: Array, bias: Array, data: np.float32, finish: Finish
) -> list[dict[float, float]]:
    """By channel, the cosine of a Conv's result for each zoom, and for the scale as it is.

    Biases are on the scales before any zoom; ``finish`` clamps and requantizes a result.
    """
    scales, _ = quantized_weight(weight)
    fixed = fake_bias(bias, scales, data)
    found: list[dict[float, float]] = [{} for _ in scales]
    for zoom in (1.0, *ZOOMS):
        fake = fake_weight(weight, [F(scale * F(zoom)) for scale in scales])
        result = finish(convolution(x, fake, fixed))
        for channel in range(len(scales)):
            found[channel][zoom] = cosine(reference[:, channel], result[:, channel])
    return found


def fake_weight(weight: Array, scales: Sequence[np.float32]) -> Array:
    pairs = zip(weight, scales, strict=True)
    return np.stack([requantized(values, scale) if scale else values for values, scale in pairs])


def fake_bias(bias: Array, scales: Sequence[np.float32], data: np.float32) -> Array:
    own, codes = quantized_bias(bias, scales, data)
    return np.array([code * scale for code, scale in zip(codes, own, strict=True)], np.float32)


def pooled(x: Array) -> Array:
    """The largest of each 2x2."""
    found = np.empty((*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2), np.float32)
    for n, c, i, j in np.ndindex(*found.shape):
        found[n, c, i, j] = x[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max()
    return found
