"""A plan as encodings: the JSON table of scales that AIMET writes and Qualcomm's converters read.

The form is version 0.6.1 of AIMET's Encoding Format Specification: for each tensor a list of one
encoding, or of one a channel. Offsets are those of unsigned integers and not positive:
``real = (q + offset) * scale`` with ``q`` in ``0..2^bits-1``. An asymmetric encoding does not say
whether codes have a sign; that is for the hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from intact.formats.base.format import (
    Exported,
    Expressible,
    Format,
    Io,
    Reader,
    ScaleReader,
    Writer,
    WrittenFiles,
    read_files,
)
from intact.plan import QuantizedGraph, QuantPoint, quantization_points, refuse_unready
from intact.plan.untie import is_requantized
from intact.program.unsupported import UnsupportedNodes

_VERSION = "0.6.1"
_WIDEST = 16
"""Bits of a tensor's codes; wider ones are biases, which follow from input and weight."""

Encoding: TypeAlias = dict[str, int | float | str]


def write_encodings(plan: QuantizedGraph) -> bytes:
    """Return the scales of a plan as JSON; equal plans give equal bytes.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: Tensors that are quantized in several ways, or on logarithmic levels; all are
            listed.
    """
    refuse_unready(plan)
    found: dict[bool, dict[str, list[Encoding]]] = {False: {}, True: {}}
    unsupported = UnsupportedNodes(
        "encodings, which have one scale for a tensor, cannot hold",
        "keep a node that reads it float with --keep-float",
    )
    for point in quantization_points(plan):
        name = str(point.value.name)
        if point.config.bits > _WIDEST or is_requantized(point.config):
            continue  # what is requantized has its own scale, and that of the join's result
        if point.config.grid.exponential:
            unsupported.add(repr(name), "its levels are logarithmic")
            continue
        encodings = _encodings(point)
        if found[point.is_constant].setdefault(name, encodings) != encodings:
            unsupported.add(repr(name), "it is quantized in several ways")
    unsupported.raise_any()
    table = {
        "version": _VERSION,
        "activation_encodings": dict(sorted(found[False].items())),
        "param_encodings": dict(sorted(found[True].items())),
    }
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def _encodings(point: QuantPoint) -> list[Encoding]:
    """Return one encoding, or one a channel."""
    config = point.config
    params = config.params
    if params is None:
        return []
    half = 1 << (config.bits - 1)
    lowest = -half if config.quant_min < 0 else 0
    if config.grid.symmetric and config.quant_min == -config.quant_max:
        lowest = config.quant_min  # strictly symmetric: code 0 of the unsigned ones is not used
    scales = np.atleast_1d(np.asarray(params.scale, np.float64))
    zeros = np.broadcast_to(np.atleast_1d(params.zero_point), scales.shape)
    return [
        {
            "bitwidth": config.bits,
            "dtype": "int",
            "is_symmetric": str(config.grid.symmetric and config.quant_min < 0),
            "max": float((config.quant_max - zero) * scale),
            "min": float((config.quant_min - zero) * scale),
            "offset": int(lowest - zero),
            "scale": float(scale),
        }
        for scale, zero in zip(scales, zeros, strict=True)
    ]


ENCODINGS_FILE = "model.encodings"


class _Writer(Writer):
    """Writes scales by tensor."""

    files = (ENCODINGS_FILE,)
    expressible = Expressible(several_scales=False)

    def write(self, plan: QuantizedGraph, _io: Io) -> Exported:
        return WrittenFiles({ENCODINGS_FILE: write_encodings(plan)})

    def read(self, folder: Path, _plan: QuantizedGraph) -> Exported:
        return WrittenFiles(read_files(folder, (ENCODINGS_FILE,)))


class _Reader(Reader):
    """Reads scales by tensor."""

    def scales(self) -> tuple[ScaleReader, ...]:
        from intact.formats.encodings.read import SCALE_READERS

        return SCALE_READERS


ENCODINGS = Format(_Writer(), _Reader())
