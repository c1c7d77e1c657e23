"""Integers that converters compute from shapes: known before anything runs.

A model that was exported with an open batch takes its shapes apart and puts new ones together
(SHAPE, STRIDED_SLICE, PACK, RESHAPE); with the lengths of the file that is all constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from intact.formats.tflite.reading.canvas import Array
from intact.formats.tflite.reading.common import axis_in
from intact.formats.tflite.reading.draft import Draft
from intact.formats.tflite.reading.file import Operator
from intact.formats.tflite.reading.parameters import Unreadable
from intact.formats.tflite.reading.parts import strided_cuts
from intact.formats.tflite.reading.schema import Element

_MOST = 1 << 12
"""Elements; shapes have a handful."""
_INTEGERS = {Element.INT32: np.int32, Element.INT64: np.int64}


def is_known(draft: Draft, op: Operator) -> bool:
    """Tell whether an operator computes integers that follow from shapes and constants."""
    if op.name not in _KNOWN or len(op.outputs) != 1:
        return False
    tensors = [draft.tensor(index) for index in (*op.inputs, *op.outputs) if index >= 0]
    if any(tensor.size > _MOST for tensor in tensors) and op.name != "SHAPE":
        return False
    if draft.tensor(op.outputs[0]).element not in _INTEGERS or not op.inputs:
        return False
    return op.name == "SHAPE" or all(draft.is_constant(index) for index in op.inputs if index >= 0)


def compute(draft: Draft, op: Operator) -> None:
    """Compute them.

    Raises:
        Unreadable: They are not of the shape that the file says.
    """
    output = draft.tensor(op.outputs[0])
    if op.name == "SHAPE":
        result: Array = np.array(draft.tensor(op.inputs[0]).shape, np.int64)
    elif op.name == "STRIDED_SLICE":
        result = _cut(draft, op).reshape(output.shape)
    else:
        arrays = [draft.array(index) for index in op.inputs if index >= 0]
        try:
            _refuse_growth(op, arrays, output.size)
            with np.errstate(all="ignore"):
                result = np.asarray(_KNOWN[op.name](arrays, op))
                result = result.astype(_INTEGERS[output.element])
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise Unreadable(f"its integers do not fit together ({error})") from error
    _require_size(result.size, output.size)
    draft.charge(result.size)
    draft.known[op.outputs[0]] = result.reshape(output.shape).astype(_INTEGERS[output.element])


def _refuse_growth(op: Operator, arrays: list[Array], wanted: int) -> None:
    """Refuse what would make more than its output holds: small operands may make gigabytes."""
    match op.name:
        case "CONCATENATION" | "PACK":
            _require_size(sum(array.size for array in arrays), wanted)
        case "ADD" | "SUB" | "MUL" | "MAXIMUM" | "MINIMUM":
            shapes = (array.shape for array in arrays)
            _require_size(math.prod(np.broadcast_shapes(*shapes)), wanted)
        case "GATHER":
            data, indices = arrays
            axis = axis_in(int(op.options["axis"]), data.ndim)
            _require_size(data.size // data.shape[axis] * indices.size, wanted)


def _require_size(found: int, wanted: int) -> None:
    if found != wanted:
        raise Unreadable(f"it gives {found} integers where its output has {wanted}")


def _cut(draft: Draft, op: Operator) -> Array:
    array = draft.array(op.inputs[0])
    for axis, cut in enumerate(strided_cuts(draft, op)[0]):
        kept = range(cut.start, cut.start + cut.step * cut.length, cut.step)
        array = np.take(array, list(kept), axis=axis)
    if array.size != draft.tensor(op.outputs[0]).size:
        raise Unreadable(f"it keeps {array.size} integers")
    return array


def _concatenate(arrays: list[Array], op: Operator) -> Array:
    return np.concatenate(arrays, axis=int(op.options["axis"]))


def _stack(arrays: list[Array], op: Operator) -> Array:
    return np.stack(arrays, axis=int(op.options["axis"]))


def _take(arrays: list[Array], op: Operator) -> Array:
    axis = axis_in(int(op.options["axis"]), arrays[0].ndim)
    return np.take(arrays[0], arrays[1], axis=axis)


def _product(arrays: list[Array], op: Operator) -> Array:
    axes = tuple(int(axis) for axis in arrays[1].reshape(-1))
    keep = bool(op.options["keep_dims"])
    return np.asarray(np.prod(arrays[0], axis=axes, keepdims=keep))


def _same(arrays: list[Array], _op: Operator) -> Array:
    return arrays[0]


_KNOWN: dict[str, Callable[[list[Array], Operator], Array]] = {
    "SHAPE": _same,
    "STRIDED_SLICE": _same,
    "CONCATENATION": _concatenate,
    "PACK": _stack,
    "GATHER": _take,
    "REDUCE_PROD": _product,
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "CAST"), _same),
    "ADD": lambda arrays, _: arrays[0] + arrays[1],
    "SUB": lambda arrays, _: arrays[0] - arrays[1],
    "MUL": lambda arrays, _: arrays[0] * arrays[1],
    "MAXIMUM": lambda arrays, _: np.maximum(arrays[0], arrays[1]),
    "MINIMUM": lambda arrays, _: np.minimum(arrays[0], arrays[1]),
}
