"""Writes encodings: the scales of a plan as JSON, in each version that converters read.

One table of scales is spelled three times. Tools differ in which version they take, and a converter
that does not know one refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from intact.plan import QuantizedGraph, QuantPoint, quantization_points, refuse_unready
from intact.plan.untie import is_requantized
from intact.program.unsupported import UnsupportedNodes

_WIDEST = 16
"""Bits of the codes of an activation or a weight; wider ones are biases."""

Json: TypeAlias = dict[str, Any]


class TensorScales(NamedTuple):
    """The quantization of one tensor, as all versions tell it.

    Attributes:
        name: The tensor's name.
        is_parameter: Whether it is a constant of the model.
        bits: The width of its codes.
        signed: Whether codes have a sign.
        symmetric: Whether code 0 is 0.0 by the scheme, not by chance.
        codes: The lowest and the highest code.
        axis: The channel axis; None where all channels have one scale.
        scales: One, or one a channel.
        zeros: The zero points, one for each scale.
    """

    name: str
    is_parameter: bool
    bits: int
    signed: bool
    symmetric: bool
    codes: tuple[int, int]
    axis: int | None
    scales: tuple[float, ...]
    zeros: tuple[int, ...]

    @property
    def is_bias(self) -> bool:
        """Whether it is a bias, whose scale follows from those of input and weight."""
        return self.bits > _WIDEST

    @property
    def offsets(self) -> list[int]:
        """What is added to unsigned codes; not positive."""
        lowest = -(1 << (self.bits - 1)) if self.signed else 0
        return [lowest - zero for zero in self.zeros]


def scales_of(plan: QuantizedGraph) -> list[TensorScales]:
    """Return the scales of a plan's tensors, sorted by name; none of a bias that has several.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: Tensors that are quantized in several ways, or on logarithmic levels; all are
            listed.
    """
    refuse_unready(plan)
    found: dict[str, TensorScales] = {}
    several: set[str] = set()
    unsupported = UnsupportedNodes(
        "encodings, which have one scale for a tensor, cannot hold",
        "keep a node that reads it float with --keep-float",
    )
    for point in quantization_points(plan):
        if is_requantized(point.config):
            continue  # it has its own scale, and that of the join's result
        if point.config.grid.exponential:
            unsupported.add(repr(point.value.name), "its levels are logarithmic")
            continue
        if point.config.grid.block is not None:
            unsupported.add(repr(point.value.name), "its scales are those of blocks")
            continue
        scales = _scales_at(point)
        if scales is None or found.setdefault(scales.name, scales) == scales:
            continue
        if scales.is_bias:
            several.add(scales.name)  # a shared bias: each product gives it a scale
        else:
            unsupported.add(repr(scales.name), "it is quantized in several ways")
    unsupported.raise_any()
    # Sorted, so that equal plans give equal bytes whatever order their nodes have.
    return [found[name] for name in sorted(found.keys() - several)]


def _scales_at(point: QuantPoint) -> TensorScales | None:
    config = point.config
    params = config.params
    if params is None:
        return None
    scales = np.atleast_1d(np.asarray(params.scale, np.float64))
    # Converters want as many offsets as scales.
    zeros = np.broadcast_to(np.atleast_1d(params.zero_point), scales.shape)
    return TensorScales(
        name=str(point.value.name),
        is_parameter=point.is_constant,
        bits=config.bits,
        signed=config.quant_min < 0,
        symmetric=config.grid.symmetric,
        codes=(config.quant_min, config.quant_max),
        axis=config.granularity.axis,
        scales=tuple(scales.tolist()),
        zeros=tuple(zeros.tolist()),
    )


def _version_0(tensors: Iterable[TensorScales]) -> Json:
    """Make two objects by tensor name, a list of one encoding or of one a channel in each."""
    # Versions before 2 have no biases: converters derive their scales from input and weight.
    narrow = [each for each in tensors if not each.is_bias]
    return {
        "version": "0.6.1",
        "activation_encodings": {t.name: _by_channel(t) for t in narrow if not t.is_parameter},
        "param_encodings": {t.name: _by_channel(t) for t in narrow if t.is_parameter},
    }


def _by_channel(tensor: TensorScales) -> list[Json]:
    low, high = tensor.codes
    # Strictly symmetric codes, -127 to 127, begin one later: the first unsigned code is not used.
    unused = int(tensor.symmetric and low == -high)
    return [
        {
            "bitwidth": tensor.bits,
            "dtype": "int",
            # AIMET writes a text here, and a truth value from version 1 on.
            "is_symmetric": str(tensor.symmetric and tensor.signed),
            "max": (high - zero) * scale,
            "min": (low - zero) * scale,
            "offset": offset + unused,
            "scale": scale,
        }
        for scale, zero, offset in zip(tensor.scales, tensor.zeros, tensor.offsets, strict=True)
    ]


def _version_1(tensors: Iterable[TensorScales]) -> Json:
    """Make two lists of encodings with names; offsets as in version 0, whatever the sign."""
    narrow = [each for each in tensors if not each.is_bias]
    return {
        "version": "1.0.0",
        "activation_encodings": [_named(t) for t in narrow if not t.is_parameter],
        "param_encodings": [_named(t) for t in narrow if t.is_parameter],
    }


def _named(tensor: TensorScales) -> Json:
    return {
        "name": tensor.name,
        "enc_type": "PER_TENSOR" if tensor.axis is None else "PER_CHANNEL",
        "dtype": "INT",
        "bw": tensor.bits,
        "is_sym": tensor.symmetric and tensor.signed,
        "scale": list(tensor.scales),
        "offset": tensor.offsets,
    }


def _version_2(tensors: Iterable[TensorScales]) -> Json:
    """Make one list in the terms of ONNX's QuantizeLinear, biases among them."""
    return {"version": "2.0.0", "encodings": [_as_onnx(each) for each in tensors]}


def _as_onnx(tensor: TensorScales) -> Json:
    sign = "" if tensor.signed else "u"
    encoding: Json = {"name": tensor.name, "output_dtype": f"{sign}int{tensor.bits}"}
    encoding["y_scale"] = _one_or_many(tensor, tensor.scales)
    if any(tensor.zeros):  # left out, it is 0
        encoding["y_zero_point"] = _one_or_many(tensor, tensor.zeros)
    if tensor.axis is not None:
        encoding["axis"] = tensor.axis
    return encoding


def _one_or_many(tensor: TensorScales, numbers: Sequence[float]) -> float | list[float]:
    return numbers[0] if tensor.axis is None else list(numbers)


_VERSIONS: tuple[Callable[[Iterable[TensorScales]], Json], ...] = (
    _version_0,
    _version_1,
    _version_2,
)


def write_encodings(plan: QuantizedGraph) -> dict[str, bytes]:
    """Return the scales of a plan as JSON by version; equal plans give equal bytes.

    Raises:
        PlanError: An end has no scale yet.
        ExportError: Tensors that are quantized in several ways, or on logarithmic levels; all are
            listed.
    """
    tensors = scales_of(plan)
    tables = [spelled(tensors) for spelled in _VERSIONS]
    return {
        table["version"]: msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"
        for table in tables
    }
