"""Programs of one step, made by hand: for tests of kernels and of what writes programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.program import Array, Encoding, Program, Shape, Step, Tensor
from intact.program.operations import Operation
from intact.targets import Arithmetic


def int8(scale: npt.ArrayLike, zero_point: npt.ArrayLike = 0, axis: int | None = None) -> Encoding:
    """Codes -128..127; scales along ``axis`` where it is given."""
    scales = np.asarray(scale, np.float32)
    zeros = np.broadcast_to(np.asarray(zero_point, np.int64), scales.shape)
    return Encoding(scales, zeros, -128, 127, axis, Rounding.HALF_AWAY_FROM_ZERO)


def uint8(scale: npt.ArrayLike, zero_point: int = 0) -> Encoding:
    """Codes 0..255."""
    return Encoding(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), 0, 255)


def int32(scale: npt.ArrayLike, axis: int | None = None) -> Encoding:
    """Codes of a bias."""
    scales = np.asarray(scale, np.float32)
    return Encoding(scales, np.zeros(scales.shape, np.int64), -(2**31), 2**31 - 1, axis)


def with_options(arithmetic: Arithmetic, **options: object) -> Arithmetic:
    """Return an arithmetic whose way to requantize has other options."""
    way = msgspec.structs.replace(arithmetic.requantize, **options)
    return msgspec.structs.replace(arithmetic, requantize=way)


def one_step(
    operation: Operation,
    arithmetic: Arithmetic,
    inputs: Sequence[tuple[Shape, Encoding | None] | tuple[Array, Encoding | None] | None],
    outputs: Sequence[tuple[Shape, Encoding | None]],
) -> Program:
    """Return a program of one step.

    Args:
        operation: What it computes.
        arithmetic: How.
        inputs: A shape makes an activation (named ``in0``, ``in1`` ... by slot), an array a
            constant of these codes.
        outputs: Named ``out0`` ... .
    """
    slots = [
        None if given is None else _tensor(f"in{slot}", *given) for slot, given in enumerate(inputs)
    ]
    results = tuple(_tensor(f"out{slot}", *given) for slot, given in enumerate(outputs))
    step = Step("step", operation, tuple(slots), results, arithmetic)
    return Program(
        {tensor.name: tensor for tensor in step.activations},
        {tensor.name: tensor for tensor in results},
        (step,),
    )


def _tensor(name: str, shape: Shape | Array, encoding: Encoding | None) -> Tensor:
    if isinstance(shape, tuple):
        return Tensor(name, shape, encoding)
    return Tensor(name, shape.shape, encoding, data=shape)
