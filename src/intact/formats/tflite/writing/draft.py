"""``Draft``: the operators of a TFLite file while they are collected.

Tensors are those of :mod:`intact.program`; what an operator takes besides data (axes, shapes) is a
constant tensor like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.program import Array, Encoding, Shape, Step, Tensor

Value: TypeAlias = int | float | bool | Sequence[int]


@dataclass(frozen=True)
class Options:
    """A table of the schema's union ``BuiltinOptions``, with the fields that are not left alone."""

    table: str
    fields: Mapping[str, Value] = field(default_factory=dict)

    def extended(self, **fields: Value) -> Options:
        """Return these options with more fields."""
        return Options(self.table, {**self.fields, **fields})


@dataclass(frozen=True)
class Operator:
    """One operator; tensors are given by name, "" for an absent optional one."""

    code: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Options | None


def data_of(step: Step) -> Tensor:
    """Return the first input, which most operations compute from; it may be a constant."""
    data = step.inputs[0] if step.inputs else None
    if data is None:
        raise Unsupported("it has no first input")
    return data


class Draft:
    """Collects tensors and operators in the order in which they are mentioned.

    Args:
        reserved: Names that the program's own tensors have.
        open_lengths: How long open axes are in the file, by tensor, where that is not 1.
    """

    def __init__(
        self, reserved: Iterable[str] = (), open_lengths: Mapping[str, int] | None = None
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self._taken = set(reserved)
        self._open_lengths = dict(open_lengths or {})

    def lengths(self, tensor: Tensor) -> list[int]:
        """Return the shape of a tensor in the file, where a batch that may grow is one sample."""
        otherwise = self._open_lengths.get(tensor.name, 1)
        return [otherwise if length is None else length for length in tensor.shape]

    def mention(self, tensor: Tensor | None) -> str:
        """Add a tensor unless it is there; return its name, "" for None."""
        if tensor is None:
            return ""
        self.tensors.setdefault(tensor.name, tensor)
        return tensor.name

    def operator(
        self,
        code: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        options: Options | None = None,
        *,
        version: int = 1,
    ) -> None:
        """Add an operator.

        Args:
            code: Its name in the schema's ``BuiltinOperator``.
            inputs: By slot.
            outputs: By slot.
            options: Left out where the operator has none.
            version: The first version of the operator that does what is asked; a runtime that
                knows only earlier ones refuses the file.
        """
        names = tuple(self.mention(tensor) for tensor in inputs)
        results = tuple(self.mention(tensor) for tensor in outputs)
        self.operators.append(Operator(code, version, names, results, options))

    def constant(self, name: str, data: Array, encoding: Encoding | None = None) -> Tensor:
        """Return a new constant; int32 and float32 data need no encoding."""
        array = np.ascontiguousarray(data).reshape(np.shape(data))
        return Tensor(self._fresh(name), array.shape, encoding, data=array)

    def integers(self, name: str, values: Sequence[int] | int) -> Tensor:
        """Return a new constant of int32: axes, lengths and the like."""
        return self.constant(name, np.asarray(values, np.int32))

    def intermediate(
        self, name: str, shape: Shape, encoding: Encoding | None, like: Tensor
    ) -> Tensor:
        """Return a new tensor between two operators; its open axis is as long as that of another.

        Args:
            name: Taken if it is free.
            shape: With as many open axes as ``like`` has.
            encoding: None for floats.
            like: Whose batch it shares.
        """
        result = Tensor(self._fresh(name), shape, encoding)
        self._open_lengths[result.name] = self._open_lengths.get(like.name, 1)
        return result

    def _fresh(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate


def weighted_inputs(step: Step) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return data, weight and bias."""
    data, weight, bias = (*step.inputs, None)[:3]
    if data is None or weight is None:
        raise Unsupported("data or weight is missing")
    return data, weight, bias


def constant_data(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return what a constant holds."""
    if tensor.data is None:
        raise Unsupported(f"{tensor.name!r} is computed, TFLite wants a constant")
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
