"""Writes operators whose results are clamped, fused where a name of TFLite's says the range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from intact.formats.tflite.spellings import FUSED
from intact.formats.tflite.writer.builder import FileBuilder, Options, add_rescaled
from intact.program import Array, Encoding, Tensor
from intact.program.operations import Bounds


def code_range(bounds: Bounds, encoding: Encoding) -> tuple[int, int]:
    """Return the smallest and the largest code of a result with these bounds.

    A bound becomes ``zero_point + round(bound / scale)``, halves away from zero and in float32, as
    TFLite's kernels compute their activation ranges (measured).
    """

    def code(real: float, otherwise: int) -> int:
        if not np.isfinite(real):
            return otherwise
        ratio = float(np.float32(real) / np.float32(encoding.scale))
        rounded = int(np.copysign(np.floor(abs(ratio) + 0.5), ratio))
        return min(max(rounded + int(encoding.zero_point), encoding.quant_min), encoding.quant_max)

    return code(bounds.low, encoding.quant_min), code(bounds.high, encoding.quant_max)


def _alike(bounds: Bounds, other: Bounds, encoding: Encoding | None) -> bool:
    """Whether results have the same codes (or floats) under both."""
    if bounds == other:
        return True
    return encoding is not None and code_range(bounds, encoding) == code_range(other, encoding)


def add_bounded(
    builder: FileBuilder,
    code: str,
    inputs: Sequence[Tensor | None],
    output: Tensor,
    bounds: Bounds,
    *,
    options: Options | None = None,
    version: int = 1,
    fusable: bool = True,
) -> None:
    """Add an operator whose result is clamped.

    Args:
        builder: Where to.
        code: The operator.
        inputs: Its inputs.
        output: The clamped result.
        bounds: What it is clamped to.
        options: The operator's options, without the fused activation.
        version: The operator's version, without the clamp.
        fusable: Whether the options have a field for a fused activation.
    """
    # What the model says, if there is a name for it: a reader of the file sees a Relu, not a range.
    candidates = sorted(FUSED.items(), key=lambda each: each[1] != bounds)
    for fused, covered in candidates if fusable else [(0, Bounds())]:
        if _alike(bounds, covered, output.encoding):
            if fusable and options is not None:
                options = options.extended(fusedActivationFunction=fused)
            builder.operator(code, inputs, (output,), options, version=version)
            return
    result = builder.intermediate(f"{output.name}_unbounded", output.shape, output.encoding, output)
    builder.operator(code, inputs, (result,), options, version=version)
    add_clamp(builder, result, output, bounds)


def add_clamp(builder: FileBuilder, source: Tensor, output: Tensor, bounds: Bounds) -> None:
    """Add operators that clamp ``source``, and bring its codes to the output's encoding.

    Only RELU is trusted to rescale: TFLite Micro's RELU6 does not (measured), and it has neither
    RELU_N1_TO_1 nor RELU_0_TO_1. What ends above it is cut off behind; the others are a QUANTIZE,
    and then what every runtime has.
    """
    encoding = output.encoding
    version = 1 if encoding is None else 2
    # 1. RELU alone, the one clamp that every runtime rescales in; whole numbers have none.
    is_whole = encoding is None and source.dtype.kind in "iu"
    if not is_whole and _alike(bounds, Bounds(0), encoding):
        builder.operator("RELU", (source,), (output,), version=version)
        return
    # 2. Another scale: it has to be the output's before any other clamp.
    if encoding is not None and not encoding.same_as(source.encoding):
        if bounds.low == 0:
            result = builder.intermediate(f"{output.name}_relu", output.shape, encoding, output)
            builder.operator("RELU", (source,), (result,), version=version)
            source = result
        else:
            source = add_rescaled(builder, source, encoding, output.name)
    # 3. RELU6, now that the scales are one.
    if not is_whole and _alike(bounds, Bounds(0, 6), encoding):
        builder.operator("RELU6", (source,), (output,), version=version)
        return
    # 4. Any other range: MAXIMUM and MINIMUM are in every runtime.
    limits = _limits(bounds, encoding, source.dtype)
    for count, (code, limit) in enumerate(limits, start=1):
        name = f"{output.name}_{code.lower()}"
        result = (
            output
            if count == len(limits)
            else builder.intermediate(name, output.shape, encoding, output, plain=source.dtype)
        )
        constant = builder.constant(f"{name}_limit", limit, encoding)
        options = Options("MaximumMinimumOptions")
        builder.operator(code, (source, constant), (result,), options, version=version)
        source = result


def _limits(
    bounds: Bounds, encoding: Encoding | None, plain: np.dtype[Any]
) -> list[tuple[str, Array]]:
    """Return the operators that apply both bounds; at least one, so that there is a result."""
    kind: np.dtype[Any] = plain if plain.kind in "iu" else np.dtype(np.float32)
    kind = kind if encoding is None else encoding.dtype
    low, high = (bounds.low, bounds.high) if encoding is None else code_range(bounds, encoding)
    if encoding is None and kind.kind in "iu":
        ends: np.iinfo[Any] = np.iinfo(str(kind))
        low = max(ends.min, math.ceil(low)) if np.isfinite(low) else ends.min
        high = min(ends.max, math.floor(high)) if np.isfinite(high) else ends.max
    limits = []
    if np.isfinite(bounds.low) or not np.isfinite(bounds.high):
        limits.append(("MAXIMUM", np.asarray(low, kind)))
    if np.isfinite(bounds.high):
        limits.append(("MINIMUM", np.asarray(high, kind)))
    return limits
