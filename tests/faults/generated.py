"""Seeded faults on generated nets, and healthy generated nets: all of them quick to make."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

import intact
from tests.faults import nets
from tests.faults.case import Case, Options, by_net, by_options, by_target, lay_down
from tests.faults.nets import DEVIATION, MEAN, Digits, Layers, Net, digits

# ---- data -------------------------------------------------------------------------------------


def _pixels(part: Digits) -> npt.NDArray[np.uint8]:
    return part.pixels.astype(np.uint8)


def _unit(part: Digits) -> nets.Floats:
    return part.pixels / np.float32(255)




def preprocessing(data: str, faulty: Options, healthy: Options, build: nets.Builder):  # noqa
    """Make a case whose data are pixels (0..255) or units (0..1), prepared wrongly."""
    change = {"pixels": _pixels, "unit": _unit}[data]

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, build(), change=change)
        return faulty if is_faulty else healthy

    return made


_RIGHT: Options = ("--mean", f"{MEAN}", "--std", f"{DEVIATION}")
_RIGHT_UNIT: Options = ("--mean", f"{MEAN / 255}", "--std", f"{DEVIATION / 255}")


def dark_calibration(folder: Path, is_faulty: bool) -> Options:
    """Calibrate on images of a tenth of the contrast."""
    lay_down(
        folder,
        nets.plain(),
        calibration=(lambda part: part.ready * np.float32(0.1)) if is_faulty else None,
    )
    return ()


def blank_calibration(folder: Path, is_faulty: bool) -> Options:
    """Calibrate on two blank images."""

    def blank(part: Digits) -> nets.Floats:
        return np.full_like(part.ready, -MEAN / DEVIATION)

    lay_down(folder, nets.residual(), calibration=blank if is_faulty else None)
    return ("--samples", "2") if is_faulty else ()


# ---- channels ---------------------------------------------------------------------------------


def scale_channels(net: Net, norm: str, after: str, factors: npt.NDArray[np.float64]) -> None:
    """Multiply channels of a BatchNormalization, and divide the weights that read them."""
    net[f"{norm}.gamma"] = net[f"{norm}.gamma"] * factors
    net[f"{norm}.beta"] = net[f"{norm}.beta"] * factors
    weight = net[f"{after}.weight"]
    net[f"{after}.weight"] = weight / factors.reshape(-1, *[1] * (weight.ndim - 2))


def _outlier(net: Net) -> None:
    factors = np.ones(16)
    factors[3] = 100
    scale_channels(net, "bn1", "conv2", factors)


def _outlier_of_residual(net: Net) -> None:
    factors = np.ones(16)
    factors[5] = 100
    scale_channels(net, "bn2", "conv3", factors)


def _starved(net: Net) -> None:
    factors = np.ones(24)
    factors[[2, 7, 11]] = 1 / 1000
    scale_channels(net, "bn2", "conv3", factors)


def _starved_separable(net: Net) -> None:
    factors = np.ones(24)
    factors[[1, 4]] = 1 / 2000
    scale_channels(net, "bn4", "conv5", factors)


def _tiny_variance(net: Net, at: int, channels: list[int], least: float = 1e-8) -> None:
    """Shrink what a BatchNormalization behind a Relu reads of some channels: it undoes that."""
    factors = np.ones(len(net[f"bn{at}.variance"]))
    factors[channels] = np.sqrt(least / net[f"bn{at}.variance"][channels])
    net[f"dense{at}.weight"] = net[f"dense{at}.weight"] * factors[:, None]
    net[f"dense{at}.bias"] = net[f"dense{at}.bias"] * factors
    net[f"bn{at}.mean"] = net[f"bn{at}.mean"] * factors
    net[f"bn{at}.variance"] = net[f"bn{at}.variance"] * factors**2


# ---- targets ----------------------------------------------------------------------------------

PER_TENSOR = 'extends = "onnxruntime"\n[weight]\ngranularity = "per_tensor"\n'
POWER_OF_TWO = """extends = "onnxruntime"
[activation]
power_of_two = true
[weight]
power_of_two = true
"""
SHORT_BIAS = """extends = "onnxruntime"
[bias]
dtype = "int32"
quant_min = -1024
quant_max = 1023
"""
SHORT_SUMS = """extends = "tflite"
[arithmetic]
accumulator_bits = 16
accumulator_overflow = "wrap"
"""
PAIRS = """extends = "onnxruntime-avx2"
[weight]
bits = 8
quant_min = -127
quant_max = 127
"""

GENERATED: tuple[Case, ...] = (
    Case(
        "pixels-unscaled",
        "preprocessing",
        preprocessing("pixels", (), _RIGHT, nets.plain),
        30,
        "points",
    ),
    Case(
        "mean-of-pixels-for-units",
        "preprocessing",
        preprocessing("unit", _RIGHT, _RIGHT_UNIT, nets.residual),
        30,
        "points",
    ),
    Case(
        "std-for-scale",
        "preprocessing",
        preprocessing(
            "pixels",
            ("--mean", f"{MEAN}", "--std", f"{1 / DEVIATION}"),
            ("--mean", f"{MEAN}", "--scale", f"{1 / DEVIATION}"),
            nets.depthwise,
        ),
        30,
        "points",
    ),
    Case("dark-calibration", "calibration_samples", dark_calibration),
    Case("blank-calibration", "calibration_samples", blank_calibration),
    Case(
        "percentile-90",
        "clipping",
        by_options(nets.plain, ("--method", "percentile", "--method-option", "percentile=90")),
    ),
    Case("three-bits-in-conv2", "rounding", by_options(nets.plain, ("--bits", "conv2.weight=3"))),
    Case("four-bit-activations", "rounding", by_options(nets.residual, ("--activation-bits", "4"))),
    Case("outlier-channel", "outlier_channel", by_net(nets.plain, _outlier)),
    Case("outlier-in-a-residual", "outlier_channel", by_net(nets.residual, _outlier_of_residual)),
    Case("starved-channels", "dead_channel", by_net(nets.plain, _starved)),
    Case("starved-separable", "dead_channel", by_net(nets.depthwise, _starved_separable)),
    Case(
        "variance-of-1e-8",
        "batch_norm_scale",
        by_net(nets.perceptron, lambda net: _tiny_variance(net, 1, [3, 40, 77])),
    ),
    Case("short-bias", "bias_overflow", by_target(nets.plain, SHORT_BIAS)),
    Case(
        "short-sums",
        "accumulator_overflow",
        by_target(nets.plain, SHORT_SUMS, healthy=("--target", "tflite")),
    ),
    Case("pairs", "pair_saturation", by_target(nets.plain, PAIRS)),
    Case("powers-of-two", "power_of_two", by_target(nets.plain, POWER_OF_TWO)),
)
