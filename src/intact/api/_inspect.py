"""The functions that need no data."""

from __future__ import annotations

from pathlib import Path

from intact.errors import UsageError
from intact.flow.sources import (
    FloatSource,
    ModelSource,
    load_result,
    names_result,
    open_source,
    target_of,
)
from intact.graph import normalize
from intact.numerics.conversion import Quantization
from intact.plan import Overrides, build_plan
from intact.plan.inspection import Inspection, inspect_plan
from intact.targets import Target, full_range


def inspect(
    model: ModelSource,
    *,
    target: str | Path | Target | None = None,
    overrides: Overrides | None = None,
) -> Inspection:
    """Report which nodes will be quantized and why (not), without data.

    Of a model that is quantized already, what it says of itself is reported; of a result's folder,
    its plan. Without a target a ``.tflite`` is taken for ``tflite``, a ``.tmfile`` for ``tengine``,
    a model with FakeQuantize for ``openvino``, and any other for ``onnxruntime``.

    Raises:
        IntactError: The model, the target or an override is wrong.
    """
    if names_result(model):
        plan = load_result(model).plan
    else:
        source = open_source(model)
        described = target_of(source.target if target is None else target)
        if isinstance(source, FloatSource):
            return inspect_plan(build_plan(normalize(source.model), described, overrides))
        plan = source.plan(described)
    if overrides is not None and overrides != Overrides():
        raise UsageError(
            "the model is quantized already, its widths and float nodes are given",
            remedy="leave them out here, or inspect the float model",
        )
    return inspect_plan(plan)


def convert_ranges(
    *,
    scale: float | None = None,
    zero_point: int = 0,
    low: float | None = None,
    high: float | None = None,
    bits: int = 8,
    signed: bool = True,
    narrow: bool = False,
    symmetric: bool = False,
) -> Quantization:
    """Turn a scale and zero point into the range that the codes hold, or a range into those.

    Args:
        scale: What one step stands for; or give ``low`` and ``high``.
        zero_point: The code of 0, beside ``scale``.
        low: What the smallest code stands for.
        high: What the largest code stands for.
        bits: Width of the codes.
        signed: Codes of both signs, or from 0.
        narrow: Leave out the lowest signed code.
        symmetric: Of a range: the zero point is 0.

    Raises:
        UsageError: Both forms are given, or neither; or numbers that are impossible.
        ConfigError: An end of the range is not finite, or the ends are crossed.
    """
    codes = full_range(bits, signed=signed, narrow=narrow)
    if scale is not None and low is None and high is None:
        if symmetric and zero_point:
            raise UsageError(
                f"--symmetric and a zero point of {zero_point}", remedy="leave one of them out"
            )
        return Quantization.of_scale(scale, zero_point, *codes)
    if scale is None and low is not None and high is not None:
        return Quantization.of_range(low, high, *codes, symmetric=symmetric)
    raise UsageError(
        "a scale, or both ends of a range, are needed",
        remedy="give --scale (and --zero-point), or --low and --high",
    )
