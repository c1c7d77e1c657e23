"""Writes a plan as TensorRT takes it: Quantize layers, a calibration cache, ranges.

The model quantizes explicitly. Its weights are floats with a pair of Quantize and Dequantize behind
them: TensorRT 8 asks for FP32 weights (developer guide, "Quantized Weights") and refuses int8
constants (onnxruntime issue 11535), TensorRT 10 takes both. The floats lie on the grid, so that
TensorRT's own quantizer gives exactly the integers of the plan. Biases are floats. Weights in
blocks are stored as integers: a Dequantize alone stands between them and their product.

Cache and ranges serve the older way, up to TensorRT 10: the float model, with the ranges beside it.

Both tables belong to the float model, not to the one with Quantize layers, and to TensorRT up to
version 10; later ones quantize explicitly only.

The calibration cache is text: ``TRT-<version>-<calibrator>``, then ``<tensor>: <scale>`` with the
float32 scale, ``amax / 127``, as the hexadecimal digits of its bits. Sources: the README of
NVIDIA's sampleINT8; ONNX Runtime's TensorRT provider, which reads the same files.

The ranges are JSON, ``{"tensorrt": {"blob_range": {<tensor>: amax}}}``, as MQBench's deployment
writes them and its scripts give them to TensorRT: ``tensor.dynamic_range = (-amax, amax)``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from intact.graph import save_model
from intact.graph.files.save import file_bytes
from intact.numerics.affine_params import QuantParams
from intact.ops.operators import ConvTranspose, is_a
from intact.plan import (
    Note,
    NoteKind,
    QuantizedGraph,
    QuantPoint,
    quantization_points,
    refuse_unready,
)
from intact.program.unsupported import UnsupportedNodes
from intact.targets.advice import quantize_for

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
        # A range belongs to a tensor there, not to a reader: with two scales no number is right for
        # both.
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
        version: TensorRT's own, which takes the file only if it is its own; "" takes
            ``DEFAULT_VERSION``.
    """
    lines = [f"TRT-{version_number(version or DEFAULT_VERSION)}-{CALIBRATOR}"]
    # Big-endian: the digits stand in the order in which a number is read.
    lines += [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in scales.items()]
    return "".join(f"{line}\n" for line in lines).encode()


def clip_ranges(scales: Mapping[str, np.float32]) -> bytes:
    """Return ranges as MQBench writes them: ``127 * scale``, exactly, as a float64 holds it."""
    ranges = {name: float(scale) * LARGEST_CODE for name, scale in scales.items()}
    document = {"tensorrt": {"blob_range": ranges}}
    return msgspec.json.format(msgspec.json.encode(document), indent=4) + b"\n"


_BITS = 8

_WIDEST_DATA = 16
"""Bits; wider codes are those of biases."""


def refuse_inexpressible(plan: QuantizedGraph) -> None:
    """Refuse a calibrated plan that TensorRT cannot compute.

    Raises:
        ExportError: With all reasons listed.
    """
    unsupported = UnsupportedNodes(
        "TensorRT cannot compute",
        lambda: ", and ".join(
            filter(None, (quantize_for("tensorrt", plan.target.name), "take 8 bits throughout"))
        ),
    )
    for point in quantization_points(plan):
        for reason in _reasons(point):
            unsupported.add(str(point.end), reason)
    unsupported.raise_any()


def _reasons(point: QuantPoint) -> Iterator[str]:
    config, params = point.config, point.config.params
    # Nothing else is asked of a bias: its range and signs would be named as faults of their own.
    if point.is_constant and config.bits > _WIDEST_DATA:
        yield "biases as integers, it adds floats"
        return
    if config.grid.exponential:
        yield "logarithmic levels"
        return
    if config.grid.block is not None:
        yield from _reasons_of_blocks(config.grid.block, config.bits, params)
    elif config.bits != _BITS:
        yield f"{config.bits} bits, it computes with 8"
    if config.quant_min >= 0:
        yield "unsigned codes"
    elif params is not None and np.any(params.zero_point):
        yield "zero points other than 0"
    if config.granularity.axis is not None:
        if not point.is_constant:
            yield "activations with one scale a channel"
        # The documents give a deconvolution one scale for its weights.
        elif any(_is_transposed_convolution(node) for node, _ in point.readers):
            yield "weights of a ConvTranspose with one scale a channel"


def _reasons_of_blocks(size: int, bits: int, params: QuantParams | None) -> Iterator[str]:
    if bits > BLOCK_BITS or size not in BLOCK_SIZES:
        yield f"blocks of {size} with {bits} bits, it has those of 64 or 128 with 4"
    if params is not None and (params.scale <= 0).any():
        yield "negative scales"


def _is_transposed_convolution(node: ir.Node) -> bool:
    return is_a(node, ConvTranspose)


BLOCK_BITS = 4

BLOCK_SIZES = (64, 128)
"""TensorRT documentation, Quantization Schemes, INT4."""

OLDEST = 9

NEWEST = 24

PER_CHANNEL = 13
"""QuantizeLinear has an axis from here on."""

BLOCKS = 21
"""DequantizeLinear has blocks, and int4, from here on."""

_SINCE = ((13, "8.0"), (17, "8.5"), (19, "9.2"), (NEWEST, "10.15"))
"""Newest opset of a release. Between two releases named, an earlier one may suffice."""


def first_release(opset: int) -> str | None:
    """Return the first of the releases named that reads an opset, None if none does.

    >>> first_release(17), first_release(18), first_release(26)
    ('8.5', '9.2', None)
    """
    return next((release for newest, release in _SINCE if opset <= newest), None)


MODEL_FILE = "model.tensorrt.onnx"

CACHE_FILE = "model.tensorrt.cache"

RANGES_FILE = "model_clip_ranges.json"

_COMMON_OPSET = 17
"""What TensorRT 8.5 and 8.6 read."""


@dataclass
class TensorRtModel:
    """What was written.

    Attributes:
        model: The ONNX model.
        tables: The calibration cache and the ranges, by file name.
        notes: What a user should know about this export.
    """

    model: ir.Model
    tables: Mapping[str, bytes]
    notes: tuple[Note, ...] = ()

    def save(self, folder: Path) -> None:
        """Write the model, its data where that is large, and the tables into a folder."""
        save_model(self.model, folder / MODEL_FILE)
        for name, content in self.tables.items():
            (folder / name).write_bytes(content)

    def nbytes(self) -> int:
        """Return the bytes of the model."""
        return file_bytes(self.model)


def refuse_plan(plan: QuantizedGraph) -> None:
    """Refuse a plan that has no scales, or that TensorRT cannot compute.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: With all reasons listed.
    """
    refuse_unready(plan)
    refuse_inexpressible(plan)


def written_tables(plan: QuantizedGraph) -> dict[str, bytes]:
    """Return the calibration cache and the ranges of a plan, by file name."""
    scales = {
        name: scale
        for name, scale in activation_scales(plan).scales.items()
        if not _breaks_lines(name)
    }
    cache = calibration_cache(scales, plan.target.runtime_version)
    return {CACHE_FILE: cache, RANGES_FILE: clip_ranges(scales)}


def export_notes(plan: QuantizedGraph, opset: int) -> tuple[Note, ...]:
    """Make notes for the user: opsets that few releases read, tensors that the tables lack."""
    notes = []
    release = first_release(opset)
    if release is None:
        message = f"no TensorRT whose documents are known reads ONNX opset {opset}"
        notes.append(Note(NoteKind.EXPORT, "", message, "export the float model with an older one"))
    elif opset > _COMMON_OPSET:
        message = f"TensorRT 8.6 reads ONNX opsets up to {_COMMON_OPSET}, the model has {opset}"
        notes.append(Note(NoteKind.EXPORT, "", message, f"take TensorRT {release} or later"))
    found = activation_scales(plan)
    lacking = [*found.several, *(name for name in found.scales if _breaks_lines(name))]
    if lacking:
        message = (
            f"{CACHE_FILE} and {RANGES_FILE} lack {len(lacking)} tensor(s) that have several "
            f"scales, or a line break in the name (first: {lacking[0]!r}); {MODEL_FILE} has them"
        )
        notes.append(Note(NoteKind.EXPORT, "", message))
    return tuple(notes)


def _breaks_lines(name: str) -> bool:
    return "\n" in name or "\r" in name
