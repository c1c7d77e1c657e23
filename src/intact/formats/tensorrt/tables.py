"""TensorRT's tables of ranges as text, for networks that are quantized implicitly.

Both belong to the float model, not to the one with Quantize layers, and to TensorRT up to
version 10; later ones quantize explicitly only.

The calibration cache is text: ``TRT-<version>-<calibrator>``, then ``<tensor>: <scale>`` with the
float32 scale, ``amax / 127``, as the hexadecimal digits of its bits. Sources: the README of
NVIDIA's sampleINT8; ONNX Runtime's TensorRT provider, which reads the same files.

The ranges are JSON, ``{"tensorrt": {"blob_range": {<tensor>: amax}}}``, as MQBench's deployment
writes them and its scripts give them to TensorRT: ``tensor.dynamic_range = (-amax, amax)``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from intact.plan import QuantizedGraph, quantization_points

LARGEST_CODE = 127

"""A range ``amax`` is ``127 * scale`` on either side of 0 (developer guide, INT8 calibration)."""


@dataclass(frozen=True)
class ActivationScales:
    """Scales as TensorRT without explicit quantization knows them: one for a tensor.

    Attributes:
        scales: By the names of the float model's tensors, in the model's order.
        several: Tensors left out because readers quantize them with different scales.
    """

    scales: dict[str, np.float32] = field(default_factory=dict)
    several: tuple[str, ...] = ()


def activation_scales(plan: QuantizedGraph) -> ActivationScales:
    """Collect the scales of a calibrated plan whose activations have one scale each.

    Weights are not in TensorRT's tables: it takes their scales from the weights.
    """
    found: dict[str, np.float32] = {}
    several: dict[str, None] = {}
    for point in quantization_points(plan):
        params = point.config.params
        if point.is_constant or params is None:
            continue
        name, scale = str(point.value.name), np.float32(params.scale)
        if found.setdefault(name, scale) != scale:
            several[name] = None
    kept = {name: scale for name, scale in found.items() if name not in several}
    return ActivationScales(kept, tuple(several))


CALIBRATOR = "EntropyCalibration2"

"""The calibrator that TensorRT recommends for convolutional networks. With another one in its
program a cache is refused, whatever the scales."""

DEFAULT_VERSION = "8.6.1"

"""The last release of TensorRT 8, the last series whose documents recommend these tables."""

_DECIMAL_MAJOR = 10

"""From this major version on, a version is ``major * 10000 + ...`` (NvInferVersion.h)."""


def version_number(version: str) -> int:
    """Return a release as the number in the header of a cache.

    >>> version_number("8.6.1"), version_number("10.3.0")
    (8601, 100300)
    """
    major, minor, patch = (int(part) for part in version.split("."))
    return major * (10_000 if major >= _DECIMAL_MAJOR else 1_000) + minor * 100 + patch


def calibration_cache(scales: Mapping[str, np.float32], version: str = "") -> bytes:
    """Return a calibration cache.

    Args:
        scales: float32 scale by tensor; names without line breaks.
        version: Of TensorRT, which takes the file only if it is its own; "" takes
            ``DEFAULT_VERSION``.
    """
    lines = [f"TRT-{version_number(version or DEFAULT_VERSION)}-{CALIBRATOR}"]
    lines += [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in scales.items()]
    return "".join(f"{line}\n" for line in lines).encode()


def clip_ranges(scales: Mapping[str, np.float32]) -> bytes:
    """Return ranges as MQBench writes them: ``127 * scale``, exactly, as a float64 holds it."""
    ranges = {name: float(scale) * LARGEST_CODE for name, scale in scales.items()}
    document = {"tensorrt": {"blob_range": ranges}}
    return msgspec.json.format(msgspec.json.encode(document), indent=4) + b"\n"
