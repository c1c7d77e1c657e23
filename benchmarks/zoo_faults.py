"""Seeded faults on the zoo's models, and healthy ones; the files are made when they are needed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from PIL import Image

from tests.faults.case import Build, Case, Options
from tests.faults.generated import AVX2, FAST, PAIRS, PER_TENSOR, TFLITE
from zoo import CALIBRATION, NORMALIZED, TEST, ZOO

Arrays = npt.NDArray[Any]
Change = Callable[[Arrays], Arrays]

CALIBRATING, TESTING = 256, 1000
"""Images."""


def _numbers(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


MEAN = _numbers(NORMALIZED.mean)
SCALE = _numbers(NORMALIZED.scale)
RIGHT: Options = ("--mean", MEAN, "--scale", SCALE)
RIGHT_UNIT: Options = (
    "--mean",
    _numbers(tuple(value / 255 for value in NORMALIZED.mean)),
    "--scale",
    _numbers(tuple(value * 255 for value in NORMALIZED.scale)),
)


def _same(pixels: Arrays) -> Arrays:
    return pixels


def _unit(pixels: Arrays) -> Arrays:
    return pixels.astype(np.float32) / np.float32(255)


def _faint(pixels: Arrays) -> Arrays:
    """Take nine tenths of the contrast."""
    return np.rint(np.float32(120) + (pixels - np.float32(120)) * np.float32(0.1)).astype(np.uint8)


def lay_down(
    folder: Path, name: str, change: Change = _same, calibration: Change | None = None
) -> None:
    """Copy a model, and write its images."""
    shutil.copy(ZOO / f"{name}.onnx", folder / "model.onnx")
    for source, part, count in ((CALIBRATION, "calib", CALIBRATING), (TEST, "test", TESTING)):
        prepare = (calibration or change) if part == "calib" else change
        with np.load(source) as file:
            images, labels = file["image"][:count], file["labels"][:count]
        np.savez(folder / f"{part}.npz", image=prepare(images), labels=labels)


def _of(
    name: str,
    faulty: Options,
    healthy: Options = RIGHT,
    *,
    change: Change = _same,
    calibration: Change | None = None,
) -> Build:
    """Make a case of options, or of samples that calibrate."""

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, name, change, calibration if is_faulty else None)
        return faulty if is_faulty else healthy

    return made


def _on(name: str, target: str, options: Options = (), healthy: Options = ()) -> Build:
    """Make a case of a target that the user describes."""

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, name)
        if not is_faulty:
            return *healthy, *RIGHT
        file = folder / "target.toml"
        file.write_text(f'format = 2\nname = "own"\n{target}', encoding="utf-8")
        return "--target", str(file), *options, *RIGHT

    return made


def _folders(folder: Path, is_faulty: bool) -> Options:
    """Read photos with the order of the colours exchanged."""
    shutil.copy(ZOO / "resnet20.onnx", folder / "model.onnx")
    for source, part, count in ((CALIBRATION, "calib", CALIBRATING), (TEST, "test", TESTING)):
        with np.load(source) as file:
            images, labels = file["image"][:count], file["labels"][:count]
        for at, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = folder / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{at:04d}.png")
    return *RIGHT, "--order", "bgr" if is_faulty else "rgb"


def _outlier(folder: Path, is_faulty: bool) -> Options:
    """Make a channel between two convolutions 100 times as large, which the second undoes."""
    lay_down(folder, "resnet20")
    if is_faulty:
        model = onnx.load(folder / "model.onnx")
        first, second = _neighbours(model)
        arrays = {each.name: each for each in model.graph.initializer}
        for names, index, factor in (
            (first.input[1:], np.s_[3], 100),
            (second.input[1:2], np.s_[:, 3], 0.01),
        ):
            for name in names:
                array = np.array(numpy_helper.to_array(arrays[name]))
                array[index] *= factor
                arrays[name].CopyFrom(numpy_helper.from_array(array, name))
        onnx.save(model, folder / "model.onnx")
    return RIGHT


def _one_scale(folder: Path, is_faulty: bool) -> Options:
    """Give one scale to all channels of the weights of EfficientNet-Lite1."""
    shutil.copy(ZOO / "efficientnet_lite1.onnx", folder / "model.onnx")
    for part, count in (("calib", 16), ("test", 48)):
        table = (ZOO / "imagenet" / f"{part}.csv").read_text(encoding="utf-8").split()[1:]
        names, labels = zip(*(line.split(",") for line in table[:count]), strict=True)
        photos = [Image.open(ZOO / "imagenet" / part / name).convert("RGB") for name in names]
        images = np.stack([np.asarray(photo) for photo in photos]).transpose(0, 3, 1, 2)
        (name,) = (each.name for each in onnx.load(folder / "model.onnx").graph.input)
        np.savez(folder / f"{part}.npz", **{name: images, "labels": np.array(labels, np.int64)})
    right = ("--mean", "127", "--std", "128")
    if not is_faulty:
        return right
    file = folder / "target.toml"
    file.write_text(f'format = 2\nname = "own"\n{PER_TENSOR}', encoding="utf-8")
    return "--target", str(file), *FAST, *right


def _neighbours(model: onnx.ModelProto) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """Return the first two convolutions between which there is only a Relu."""
    nodes = model.graph.node
    writers = {name: node for node in nodes for name in node.output}
    read = [name for node in nodes for name in node.input]
    for node in nodes:
        relu = writers.get(node.input[0]) if node.op_type == "Conv" else None
        before = writers.get(relu.input[0]) if relu and relu.op_type == "Relu" else None
        if relu and before and before.op_type == "Conv" and read.count(relu.output[0]) == 1:
            return before, node
    raise LookupError("no two convolutions with a Relu between them")


FAULTS: tuple[Case, ...] = (
    Case("resnet20-unscaled", "preprocessing", _of("resnet20", ()), 30, "points"),
    Case(
        "raw-std-for-scale",
        "preprocessing",
        _of("mobilenetv2-raw", ("--mean", MEAN, "--std", SCALE)),
        30,
        "points",
    ),
    Case(
        "vit-mean-of-pixels",
        "preprocessing",
        _of("vit", RIGHT, RIGHT_UNIT, change=_unit),
        30,
        "points",
    ),
    Case("resnet20-bgr", "preprocessing", _folders, 5, "points"),
    Case(
        "resnet8-unit",
        "preprocessing",
        _of("mlperf_resnet8", ("--normalize", "0..1"), ()),
        30,
        "points",
    ),
    Case(
        "mobilenetv2-faint",
        "calibration_samples",
        _of("mobilenetv2", RIGHT, calibration=_faint),
    ),
    Case(
        "resnet20-two-samples",
        "calibration_samples",
        _of("resnet20", ("--samples", "2", *RIGHT), calibration=_faint),
    ),
    Case(
        "mobilenetv2-percentile",
        "clipping",
        _of("mobilenetv2", ("--method", "percentile", "--method-option", "percentile=95", *RIGHT)),
    ),
    Case("resnet20-3-bits", "rounding", _of("resnet20", ("--weight-bits", "3", *FAST, *RIGHT))),
    Case("resnet20-outlier", "outlier_channel", _outlier),
    Case("lite1-one-scale", "per_tensor_weights", _one_scale),
    Case("resnet20-pairs", "pair_saturation", _on("resnet20", PAIRS, healthy=AVX2)),
    Case(
        "resnet20-powers-of-two",
        "power_of_two",
        _of("resnet20", ("--target", "integer-pow2", *FAST, *RIGHT), ("--target", "tvm", *RIGHT)),
        1,
    ),
    Case(
        "resnet20-16-bits",
        "float_fallback",
        _of("resnet20", ("--activation-bits", "16", *RIGHT)),
        0.3,
        "times",
        frozenset({"slower_than_float"}),
    ),
)

HEALTHY: tuple[Case, ...] = (
    *(
        Case(name, "", _of(name, RIGHT))
        for name in ("resnet20", "mobilenetv2", "mobilenetv2-raw", "vit")
    ),
    Case("mlperf_resnet8", "", _of("mlperf_resnet8", (), ())),
    Case("resnet20-tflite", "", _of("resnet20", (*TFLITE, *RIGHT))),
)
