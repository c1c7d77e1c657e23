"""Faults that are drawn anew from each seed: which model, where, how much.

Nothing here is what the checks were written for: a kind is drawn in turn, and all else at random.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import intact
from intact.graph import normalize, weight_slot
from tests.faults.case import Build, Case
from tests.faults.generated import TFLITE
from zoo import CALIBRATION, MODELS, ZOO
from zoo_faults import MEAN, RIGHT, RIGHT_UNIT, SCALE, Arrays, Change, Options, lay_down

Draw = Callable[[random.Random, str], Case | None]
"""From a source of random numbers and a model's name to a case; None where it has no such place."""

NORMALIZED = tuple(each.name for each in MODELS if each.preprocess.mean)
LEAST = 3.0
"""What a fault costs at least to be one, dB or points."""


def drawn(seed: int, count: int) -> list[Case]:
    """Draw cases of all kinds in turn, healthy ones among them.

    Args:
        seed: Of all that is drawn.
        count: How many.
    """
    source, cases = random.Random(seed), list[Case]()
    kinds = list(KINDS)
    while len(cases) < count:
        if len(cases) % len(kinds) == 0:
            source.shuffle(kinds)
        kind = kinds[len(cases) % len(kinds)]
        found = KINDS[kind](source, source.choice(NORMALIZED))
        if found is not None:
            cases.append(found)
    return cases


# ---- where a model has what -------------------------------------------------------------------


@functools.cache
def _layers(name: str) -> tuple[str, ...]:
    """Name the layers that have a constant weight, as intact does."""
    graph = normalize(ZOO / f"{name}.onnx")
    read = ((node, weight_slot(node)) for node in graph.nodes)
    weights = ((node, None if slot is None else node.inputs[slot]) for node, slot in read)
    return tuple(
        str(node.name)
        for node, weight in weights
        if weight is not None and weight.const_value is not None
    )


@functools.cache
def _pairs(name: str) -> tuple[tuple[str, ...], ...]:
    """Name the convolutions between which there is only a Relu, and the tensor between.

    Returns:
        Constants of the first, whose channels can be scaled; that of the second; the tensor; both
        nodes.
    """
    model = onnx.load(ZOO / f"{name}.onnx")
    nodes = model.graph.node
    stored = {each.name for each in model.graph.initializer}
    writers = {name: node for node in nodes for name in node.output}
    read = [name for node in nodes for name in node.input]
    found = []
    for node in nodes:
        relu = writers.get(node.input[0]) if node.op_type == "Conv" else None
        first = writers.get(relu.input[0]) if relu and relu.op_type == "Relu" else None
        if relu is None or first is None or first.op_type != "Conv":
            continue
        constants = [*first.input[1:], node.input[1]]
        if read.count(relu.output[0]) == 1 and stored.issuperset(constants):
            found.append((*constants, relu.output[0], first.name, node.name))
    return tuple(found)


# ---- the kinds --------------------------------------------------------------------------------


def _made(name: str, faulty: Options, change: Change, healthy: Options = RIGHT) -> Build:
    """A case whose samples are changed, or whose options are."""

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, name, change if is_faulty else _same)
        return faulty if is_faulty else healthy

    return made


def _same(pixels: Arrays) -> Arrays:
    return pixels


def _narrow(count: int) -> Draw:
    """Weights of a few layers have 2 or 3 bits."""

    def drawn(source: random.Random, name: str) -> Case:
        layers = source.sample(_layers(name), count)
        bits = source.choice((2, 3))
        flags = [flag for layer in layers for flag in ("--bits", f"{layer}.weight={bits}")]
        title = f"{name}-{bits}-bits-{'+'.join(layers)}"
        build = _made(name, (*flags, *RIGHT), _same)
        return Case(title, "rounding", build, LEAST, places=frozenset(layers))

    return drawn


def _channel(source: random.Random, name: str) -> Case | None:
    """One channel between two convolutions is much larger, which the second undoes."""
    pairs = _pairs(name)
    if not pairs:
        return None
    *constants, tensor, first, second = source.choice(pairs)
    factor, place = source.choice((30.0, 60.0, 120.0)), source.random()

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, name)
        if is_faulty:
            model = onnx.load(folder / "model.onnx")
            arrays = {each.name: each for each in model.graph.initializer}
            for stored in constants:
                array = np.array(numpy_helper.to_array(arrays[stored]))
                is_read = stored == constants[-1]
                channel = int(place * array.shape[1 if is_read else 0])
                if is_read:
                    array[:, channel] /= factor
                else:
                    array[channel] *= factor
                arrays[stored].CopyFrom(numpy_helper.from_array(array, stored))
            onnx.save(model, folder / "model.onnx")
        return RIGHT

    also = frozenset({"dead_channel"})  # the others, by the same scale
    places = frozenset({tensor, first, second})
    title = f"{name}-channel-x{factor:g}-{first}"
    return Case(title, "outlier_channel", made, LEAST, also=also, places=places)


def _cut(source: random.Random, name: str) -> Case:
    """The range of one activation reaches a part of its values."""
    place, part = source.random(), source.choice((4, 6, 10))

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, name)
        if not is_faulty:
            return RIGHT
        with np.load(CALIBRATION) as file:
            images = file["image"][:32]
        intact.quantize(
            folder / "model.onnx",
            {"image": images},
            output=folder / "made",
            formats=["encodings"],
            mean=tuple(map(float, MEAN.split(","))),
            scale=tuple(map(float, SCALE.split(","))),
        )
        table = json.loads((folder / "made" / "model.encodings").read_text(encoding="utf-8"))
        known = sorted(table["activation_encodings"])
        for each in table["activation_encodings"][known[int(place * len(known))]]:
            each.update({key: each[key] / part for key in ("max", "min", "scale")})
        scales = folder / "cut.encodings"
        scales.write_text(json.dumps(table), encoding="utf-8")
        return "--scales", str(scales), *RIGHT

    return Case(f"{name}-range-{place:.2f}/{part}", "clipping", made, LEAST)


def _wrong_mean(source: random.Random, name: str) -> Case:
    """The mean of one channel is another."""
    means = [float(each) for each in MEAN.split(",")]
    at, by = source.randrange(3), source.choice((-1, 1)) * source.uniform(60, 125)
    means[at] += by
    wrong = ",".join(f"{each:g}" for each in means)
    build = _made(name, ("--mean", wrong, "--scale", SCALE), _same)
    return Case(f"{name}-mean-{at}{by:+.0f}", "preprocessing", build, LEAST, "points")


def _samples(kind: str, change: Change, options: Options = RIGHT) -> Draw:
    """The files hold other numbers than the model is told."""

    def drawn(_: random.Random, name: str) -> Case:
        build = _made(name, options, change)
        return Case(f"{name}-{kind}", "preprocessing", build, LEAST, "points")

    return drawn


def _bgr(pixels: Arrays) -> Arrays:
    return np.ascontiguousarray(pixels[:, ::-1])


def _unit(pixels: Arrays) -> Arrays:
    return pixels.astype(np.float32) / np.float32(255)


def _labels(source: random.Random, name: str) -> Case:
    """Labels are numbered from 1, or as if a class stood in front of all."""
    by = source.choice((-1, 1))

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, name)
        for part in ("calib", "test") if is_faulty else ():
            with np.load(folder / f"{part}.npz") as file:
                images, labels = file["image"], file["labels"]
            kept = (labels + by >= 0) & (labels + by < 10)
            np.savez(folder / f"{part}.npz", image=images[kept], labels=labels[kept] + by)
        return RIGHT

    return Case(f"{name}-labels{by:+d}", "labels", made, LEAST, "points")


def _resized(source: random.Random, name: str) -> Case:
    """Images show a part of what they should, enlarged, or are squeezed to a side."""
    size, is_cut = source.choice((12, 16, 20)), source.random() < 0.5

    def changed(pixels: Arrays) -> Arrays:
        picked = (np.arange(32) * size // 32) + (16 - size // 2 if is_cut else 0)
        if is_cut:
            return np.ascontiguousarray(pixels[:, :, picked][:, :, :, picked])
        narrow = np.zeros_like(pixels)
        narrow[:, :, :, :size] = pixels[:, :, :, (np.arange(size) * 32) // size]
        return narrow

    build = _made(name, RIGHT, changed)
    how = "cut" if is_cut else "squeezed"
    return Case(f"{name}-{how}-{size}", "preprocessing", build, LEAST, "points")


def _healthy(source: random.Random, name: str) -> Case:
    """Nothing is wrong: a usual method, number of samples and target."""
    method = source.choice(((), ("--method", "minmax"), ("--method", "mse")))
    target = source.choice(((), TFLITE))
    count = source.choice(("64", "128", "200"))
    options = (*method, *target, "--samples", count, *RIGHT)
    title = "-".join([name, *(word.lstrip("-") for word in options[: -len(RIGHT)])])
    return Case(title, "", _made(name, options, _same))


KINDS: dict[str, Draw] = {
    "narrow": _narrow(1),
    "two narrow": _narrow(2),
    "channel": _channel,
    "range": _cut,
    "mean": _wrong_mean,
    "labels": _labels,
    "bgr": _samples("bgr", _bgr),
    "255 for 1": _samples("unit-pixels", _unit),
    "1 for 255": _samples("unit-steps", _same, RIGHT_UNIT),
    "resize": _resized,
    "healthy": _healthy,
    "healthy too": _healthy,
}
