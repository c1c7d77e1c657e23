"""Seeded faults on generated nets, and healthy generated nets: all of them quick to make.

Each fault stays in the result: where `quantize` mends it by itself, it is seeded by options, a
table of scales or a target that a user may give.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import intact
from tests.faults import nets
from tests.faults.case import Build, Case, Options, by_net, by_options, by_target, lay_down
from tests.faults.nets import DEVIATION, MEAN, Digits, Net, digits

# ---- data -------------------------------------------------------------------------------------


def _pixels(part: Digits) -> npt.NDArray[np.uint8]:
    return part.pixels.astype(np.uint8)


def _unit(part: Digits) -> nets.Floats:
    return part.pixels / np.float32(255)


def prepared(
    change: Callable[[Digits], npt.NDArray[np.generic]],
    faulty: Options,
    healthy: Options,
    build: nets.Builder,
) -> Build:
    """Make a case whose samples are prepared by options."""

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, build(), change=change)
        return faulty if is_faulty else healthy

    return made


_RIGHT: Options = ("--mean", f"{MEAN}", "--std", f"{DEVIATION}")
_RIGHT_UNIT: Options = ("--mean", f"{MEAN / 255}", "--std", f"{DEVIATION / 255}")


def _dark_calibration(folder: Path, is_faulty: bool) -> Options:
    """Calibrate on images of a tenth of the contrast."""
    lay_down(
        folder,
        nets.plain(),
        calibration=(lambda part: part.ready * np.float32(0.1)) if is_faulty else None,
    )
    return ()


def _blank_calibration(folder: Path, is_faulty: bool) -> Options:
    """Calibrate on two blank images."""

    def blank(part: Digits) -> nets.Floats:
        return np.full_like(part.ready, -MEAN / DEVIATION)

    lay_down(folder, nets.residual(), calibration=blank if is_faulty else None)
    return ("--samples", "2") if is_faulty else ()


# ---- channels ---------------------------------------------------------------------------------


def _scale_channels(net: Net, norm: str, after: str, factors: npt.NDArray[np.float64]) -> None:
    """Multiply channels of a BatchNormalization, and divide the weights that read them."""
    net[f"{norm}.gamma"] = net[f"{norm}.gamma"] * factors
    net[f"{norm}.beta"] = net[f"{norm}.beta"] * factors
    weight = net[f"{after}.weight"]
    net[f"{after}.weight"] = weight / factors.reshape(-1, *[1] * (weight.ndim - 2))


def _outlier(net: Net) -> None:
    factors = np.ones(16)
    factors[3] = 100
    _scale_channels(net, "bn1", "conv2", factors)


def _outlier_of_residual(net: Net) -> None:
    factors = np.ones(16)
    factors[5] = 100
    _scale_channels(net, "bn2", "conv3", factors)


def _starved(net: Net) -> None:
    factors = np.ones(24)
    factors[[2, 7, 11]] = 1 / 1000
    _scale_channels(net, "bn2", "conv3", factors)


def _starved_separable(net: Net) -> None:
    factors = np.ones(24)
    factors[[1, 4]] = 1 / 2000
    _scale_channels(net, "bn4", "conv5", factors)


def _tiny_variance(net: Net, at: int, channels: list[int], least: float = 1e-8) -> None:
    """Shrink what a BatchNormalization behind a Relu reads of some channels: it undoes that."""
    factors = np.ones(len(net[f"bn{at}.variance"]))
    factors[channels] = np.sqrt(least / net[f"bn{at}.variance"][channels])
    net[f"dense{at}.weight"] = net[f"dense{at}.weight"] * factors[:, None]
    net[f"dense{at}.bias"] = net[f"dense{at}.bias"] * factors
    net[f"bn{at}.mean"] = net[f"bn{at}.mean"] * factors
    net[f"bn{at}.variance"] = net[f"bn{at}.variance"] * factors**2


def _unlike_branches(net: Net) -> None:
    """Make one of two joined branches 640 times as large as the other."""
    net["bn2.gamma"], net["bn2.beta"] = net["bn2.gamma"] * 640, net["bn2.beta"] * 640
    weight = net["conv4.weight"]
    weight[:, :12] /= 640
    net["conv4.weight"] = weight


def _small_scales(folder: Path, is_faulty: bool) -> Options:
    """Give activations a sixth of the scales that they need."""
    lay_down(folder, nets.residual())
    if not is_faulty:
        return ()
    made = folder / "made"
    images = digits("calib").ready[:32]
    intact.quantize(folder / "model.onnx", {"image": images}, output=made, formats=["encodings"])
    table = json.loads((made / "model.encodings").read_text(encoding="utf-8"))
    for (each,) in table["activation_encodings"].values():
        each.update({key: each[key] / 6 for key in ("max", "min", "scale")})
    scales = folder / "small.encodings"
    scales.write_text(json.dumps(table), encoding="utf-8")
    return "--scales", str(scales)


def _varied(build: Callable[[float], Net], faulty: float, healthy: float, *options: str) -> Build:
    """Make a case whose fault is a number in the net."""

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, build(faulty if is_faulty else healthy))
        return options

    return made


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
accumulator = { kind = "wrap", bits = 17 }
"""
PAIRS = """extends = "onnxruntime-avx2"
[weight]
bits = 8
quant_min = -127
quant_max = 127
"""
TFLITE: Options = ("--target", "tflite")
FLOAT_IO: Options = ("--io", "float")
AVX2: Options = ("--target", "onnxruntime-avx2")
FAST: Options = ("--preset", "fast")
NOT_EQUALIZED: Options = ("--quantize-heads",)
PERCENTILE: Options = ("--method", "percentile", "--method-option", "percentile=90")


def _steep() -> Net:
    return nets.gates(60)


def _steeper() -> Net:
    return nets.gates(250, 1)


_FLOAT_CONVOLUTIONS: Options = tuple(
    word for at in range(1, 7) for word in ("--keep-float", f"conv{at}")
)

# ---- the table ---------------------------------------------------------------------------------

FAULTS: tuple[Case, ...] = (
    Case(
        "pixels-unscaled",
        "preprocessing",
        prepared(_pixels, (), _RIGHT, nets.plain),
        unit="points",
        loss=40,
    ),
    Case(
        "mean-of-pixels-for-units",
        "preprocessing",
        prepared(_unit, _RIGHT, _RIGHT_UNIT, nets.residual),
        unit="points",
        loss=40,
    ),
    Case(
        "std-for-scale",
        "preprocessing",
        prepared(
            _pixels,
            ("--mean", f"{MEAN}", "--std", f"{1 / DEVIATION}"),
            ("--mean", f"{MEAN}", "--scale", f"{1 / DEVIATION}"),
            nets.depthwise,
        ),
        unit="points",
        loss=40,
    ),
    Case(
        "mean-of-units-for-pixels",
        "preprocessing",
        prepared(_pixels, _RIGHT_UNIT, _RIGHT, nets.branches),
        unit="points",
        loss=30,
    ),
    Case("dark-calibration", "calibration_samples", _dark_calibration, loss=20),
    Case("blank-calibration", "calibration_samples", _blank_calibration, loss=20),
    Case("percentile-90", "clipping", by_options(nets.plain, PERCENTILE), loss=20),
    Case("small-scales", "clipping", _small_scales, loss=20),
    Case(
        "three-bits-in-conv2",
        "rounding",
        by_options(nets.plain, ("--bits", "conv2.weight=3", *FAST)),
    ),
    Case(
        "four-bit-activations",
        "rounding",
        by_options(nets.residual, ("--activation-bits", "4")),
        loss=12,
    ),
    Case("two-bits-in-pointwise", "rounding", by_options(nets.depthwise, ("--bits", "conv3=2"))),
    Case(
        "outlier-channel", "outlier_channel", by_net(nets.plain, _outlier, NOT_EQUALIZED), loss=15
    ),
    Case(
        "outlier-in-a-residual",
        "outlier_channel",
        by_net(nets.residual, _outlier_of_residual, NOT_EQUALIZED),
        loss=15,
    ),
    Case("spikes", "heavy_tail", _varied(nets.spiked, 100, 0), loss=4),
    Case(
        "spikes-minmax",
        "heavy_tail",
        _varied(nets.spiked, 1000, 0, "--method", "minmax"),
        loss=20,
    ),
    Case("unlike-branches", "unlike_ranges", by_net(nets.branches, _unlike_branches), loss=15),
    Case(
        "boxes-and-scores",
        "unlike_ranges",
        _varied(nets.unlike, 640, 1, *TFLITE, *FLOAT_IO, "--quantize-heads"),
        loss=15,
    ),
    Case("one-scale", "per_tensor_weights", by_target(_steep, PER_TENSOR), loss=10),
    Case("one-scale-fast", "per_tensor_weights", by_target(_steeper, PER_TENSOR, FAST), loss=10),
    Case("starved-channels", "dead_channel", by_net(nets.plain, _starved), loss=20),
    Case("starved-separable", "dead_channel", by_net(nets.depthwise, _starved_separable), loss=20),
    Case(
        "variance-of-1e-8",
        "batch_norm_scale",
        by_net(nets.perceptron, lambda net: _tiny_variance(net, 1, [3, 40, 77]), TFLITE),
        loss=15,
        also=frozenset({"dead_channel"}),  # a variance of 1e-8 is that of a dead channel
    ),
    Case(
        "variance-of-1e-6",
        "batch_norm_scale",
        by_net(nets.perceptron, lambda net: _tiny_variance(net, 2, [11, 50], 1e-6), TFLITE),
        loss=8,
    ),
    Case("short-bias", "bias_overflow", by_target(nets.plain, SHORT_BIAS), loss=15),
    Case("short-bias-fast", "bias_overflow", by_target(nets.depthwise, SHORT_BIAS, FAST), loss=15),
    Case(
        "short-sums",
        "accumulator_overflow",
        by_target(nets.plain, SHORT_SUMS, FLOAT_IO, healthy=(*TFLITE, *FLOAT_IO)),
        loss=15,
    ),
    Case("pairs", "pair_saturation", by_target(nets.plain, PAIRS, healthy=AVX2), loss=10),
    Case(
        "sixteen-bits",
        "float_fallback",
        by_options(nets.residual, ("--activation-bits", "16")),
        loss=0.1,
        unit="times",
        also=frozenset({"slower_than_float"}),
    ),
    Case(
        "islands",
        "slower_than_float",
        by_options(nets.islands, (), _FLOAT_CONVOLUTIONS),
        loss=0.3,
        unit="times",
    ),
    Case(
        "powers-of-two-fast",
        "power_of_two",
        by_target(nets.branches, POWER_OF_TWO, FAST),
        loss=1.5,
    ),
    Case(
        "mask-of-3000",
        "attention_mask",
        _varied(nets.attention, -3000, -8, *TFLITE),
        loss=10,
    ),
)
"""One fault each. The loss of ``pairs`` shows on processors that saturate pairs of products."""

HEALTHY: tuple[Case, ...] = (
    Case("residual", "", by_options(nets.residual, ())),
    Case("depthwise", "", by_options(nets.depthwise, TFLITE)),
    Case("branches", "", by_options(nets.branches, ("--target", "tensorrt"))),
    Case("recurrent", "", by_options(nets.recurrent, ())),
    Case("attention", "", by_options(nets.attention, ("--target", "openvino"))),
    Case("perceptron", "", by_options(nets.perceptron, ())),
    Case("masked-attention", "", _varied(nets.attention, -1e9, -1e9, *TFLITE)),
)
