"""Codes 0..255 as codes -128..127: the same numbers, for hardware and formats of int8 only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from intact.program.program import Encoding, Program, Tensor

_SHIFT = 128
_UNSIGNED = (0, 255)


def signed(program: Program) -> Program:
    """Return a program whose 8-bit codes have a sign; floats and other widths stay as they are.

    Each code and its zero point become smaller by 128, so that every real number stays what it is:
    ``(code - 128) - (zero_point - 128)``. Scales are kept to the bit.

    >>> signed(Program({}, {}, ())).steps
    ()
    """
    known: dict[str, Tensor] = {}

    def shifted(tensor: Tensor) -> Tensor:
        if tensor.name not in known:
            known[tensor.name] = _shifted(tensor)
        return known[tensor.name]

    steps = tuple(
        replace(
            step,
            inputs=tuple(shifted(each) if each is not None else None for each in step.inputs),
            outputs=tuple(shifted(each) for each in step.outputs),
        )
        for step in program.steps
    )
    inputs = {name: shifted(tensor) for name, tensor in program.inputs.items()}
    outputs = {name: shifted(tensor) for name, tensor in program.outputs.items()}
    return replace(program, inputs=inputs, outputs=outputs, steps=steps)


def _shifted(tensor: Tensor) -> Tensor:
    encoding = tensor.encoding
    if encoding is None or (encoding.quant_min, encoding.quant_max) != _UNSIGNED:
        return tensor
    data = tensor.data
    if data is not None:
        data = (data.astype(np.int16) - _SHIFT).astype(np.int8)
    return replace(tensor, encoding=_shifted_encoding(encoding), data=data)


def _shifted_encoding(encoding: Encoding) -> Encoding:
    return replace(
        encoding,
        zero_point=np.asarray(encoding.zero_point - _SHIFT, np.int64),
        quant_min=_UNSIGNED[0] - _SHIFT,
        quant_max=_UNSIGNED[1] - _SHIFT,
    )
