"""Weights and biases as convolutions and products take them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from intact.formats.tflite.writing.draft import Draft, RefusedError
from intact.program import Encoding, Step, Tensor


def weighted_inputs(step: Step) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return data, weight and bias."""
    data, weight, bias = (*step.inputs, None)[:3]
    if data is None or weight is None:
        raise RefusedError("data or weight is missing")
    return data, weight, bias


def constant_data(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return what a constant holds."""
    if tensor.data is None:
        raise RefusedError(f"{tensor.name!r} is computed, TFLite wants a constant")
    return tensor.data


def bias_or_zeros(
    draft: Draft, step: Step, data: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the bias with the scales that kernels expect: ``data scale * weight scale``.

    Kernels of microcontrollers read a bias always, so that a missing one is written as zeros.
    """
    count = constant_data(weight).shape[0]
    values = np.zeros(count, np.int64) if bias is None else constant_data(bias).reshape(-1)
    name = f"{step.name}/bias"
    if data.encoding is None or weight.encoding is None:
        return draft.constant(name, values.astype(np.float32)) if bias is None else bias
    scale = np.float32(data.encoding.scale) * weight.encoding.scale.astype(np.float32)
    axis = None if np.ndim(scale) == 0 else 0
    zeros = np.zeros(np.shape(scale), np.int64)
    encoding = Encoding(scale, zeros, -(1 << 31), (1 << 31) - 1, axis)
    if bias is not None and encoding.same_as(bias.encoding):
        return bias
    return draft.constant(name, values.astype(np.int32), encoding)


def last_axis(encoding: Encoding | None) -> Encoding | None:
    """Return the encoding of a weight whose first axis was moved to the end."""
    return encoding if encoding is None or encoding.axis is None else replace(encoding, axis=3)


def dense_kernel(
    data: np.ndarray[Any, Any], groups: int, dilations: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Return the kernel without groups and dilations that gives the same sums.

    Args:
        data: ``[O, *K, C / groups]``.
        groups: Output channels ``O / groups`` at a time read their own ``C / groups`` inputs.
        dilations: By spatial axis.

    Returns:
        ``[O, *((K - 1) * dilation + 1), C]``, zeros in between.
    """
    outputs, *kernel, depth = data.shape
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    result = np.zeros((outputs, *spans, depth * groups), data.dtype)
    spread = result[(slice(None), *(slice(None, None, each) for each in dilations))]
    for channel in range(outputs):
        first = channel * groups // outputs * depth
        spread[channel, ..., first : first + depth] = data[channel]
    return result
