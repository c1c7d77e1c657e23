"""Bounds of a result as a fused activation, as nothing at all, or as an operator of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from intact.formats.tflite.writing.draft import Draft, Options
from intact.program import Array, Encoding, Tensor
from intact.program.operations import Bounds

_FUSED: Mapping[int, Bounds] = {
    0: Bounds(),
    1: Bounds(0),
    2: Bounds(-1, 1),
    3: Bounds(0, 6),
}
"""``ActivationFunctionType`` of the schema: NONE, RELU, RELU_N1_TO_1, RELU6."""


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
    draft: Draft,
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
        draft: Where to.
        code: The operator.
        inputs: Its inputs.
        output: The clamped result.
        bounds: What it is clamped to.
        options: The operator's options, without the fused activation.
        version: Of the operator.
        fusable: Whether the options have a field for a fused activation.
    """
    # What the model says, if there is a name for it: a reader of the file sees a Relu, not a range.
    candidates = sorted(_FUSED.items(), key=lambda each: each[1] != bounds)
    for fused, covered in candidates if fusable else [(0, Bounds())]:
        if _alike(bounds, covered, output.encoding):
            if fusable and options is not None:
                options = options.extended(fusedActivationFunction=fused)
            draft.operator(code, inputs, (output,), options, version=version)
            return
    result = draft.intermediate(f"{output.name}_unbounded", output.shape, output.encoding, output)
    draft.operator(code, inputs, (result,), options, version=version)
    add_clamp(draft, result, output, bounds)


def add_clamp(draft: Draft, source: Tensor, output: Tensor, bounds: Bounds) -> None:
    """Add operators that clamp ``source``, and bring its codes to the output's encoding.

    Only RELU is trusted to rescale: TFLite Micro's RELU6 does not (measured), and it has neither
    RELU_N1_TO_1 nor RELU_0_TO_1. What ends above it is cut off behind; the others are a QUANTIZE,
    and then what every runtime has.
    """
    encoding = output.encoding
    version = 1 if encoding is None else 2
    if _alike(bounds, Bounds(0), encoding):
        draft.operator("RELU", (source,), (output,), version=version)
        return
    if encoding is not None and not encoding.same_as(source.encoding):
        if bounds.low == 0:
            result = draft.intermediate(f"{output.name}_relu", output.shape, encoding, output)
            draft.operator("RELU", (source,), (result,), version=version)
            source = result
        else:
            source = add_rescaled(draft, source, encoding, output.name)
    if _alike(bounds, Bounds(0, 6), encoding):
        draft.operator("RELU6", (source,), (output,), version=version)
        return
    limits = _limits(bounds, encoding)
    for count, (code, limit) in enumerate(limits, start=1):
        name = f"{output.name}_{code.lower()}"
        last = count == len(limits)
        result = output if last else draft.intermediate(name, output.shape, encoding, output)
        constant = draft.constant(f"{name}_limit", limit, encoding)
        options = Options("MaximumMinimumOptions")
        draft.operator(code, (source, constant), (result,), options, version=version)
        source = result


def add_rescaled(draft: Draft, source: Tensor, encoding: Encoding, name: str) -> Tensor:
    """Add a QUANTIZE of codes and return its result."""
    result = draft.intermediate(f"{name}_rescaled", source.shape, encoding, source)
    draft.operator("QUANTIZE", (source,), (result,), Options("QuantizeOptions"), version=2)
    return result


def _limits(bounds: Bounds, encoding: Encoding | None) -> list[tuple[str, Array]]:
    """Return the operators that apply both bounds; at least one, so that there is a result."""
    kind = np.dtype(np.float32) if encoding is None else encoding.dtype
    low, high = (bounds.low, bounds.high) if encoding is None else code_range(bounds, encoding)
    limits = []
    if np.isfinite(bounds.low) or not np.isfinite(bounds.high):
        limits.append(("MAXIMUM", np.asarray(low, kind)))
    if np.isfinite(bounds.high):
        limits.append(("MINIMUM", np.asarray(high, kind)))
    return limits
