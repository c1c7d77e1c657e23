"""Expands DFT into a product with the sines and cosines of its angles.

Runtimes without the operator compute it so, and OpenVINO 2026.4.1 takes axis 1 whatever the node
says from opset 20 on. Source: the ONNX operator specification, DFT.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.edit import Editor
from intact.graph.ops import constant_array
from intact.graph.passes.composite import Composite, axes_of

_AXIS_IS_INPUT = 20
"""From this opset on the axis is an input, and that in front of the last by default."""

_MOST = 1 << 24
"""Numbers that a matrix may have: 64 MiB."""


def expand_dft(editor: Editor, node: ir.Node) -> None:
    """Expand a DFT along an axis of known length.

    A node that pads or cuts its data, or whose axis or length is not known, stays.
    """
    written = Composite(editor, node)
    data = written.input(0)
    shape = None if data is None else axes_of(data)
    axis = None if shape is None else _axis(written, len(shape))
    if data is None or shape is None or axis is None or shape[-1] not in (1, 2):
        return
    length, parts = shape[axis], shape[-1]
    inverse, one_sided = bool(written.integer("inverse")), bool(written.integer("onesided"))
    if not isinstance(length, int) or not isinstance(parts, int) or not length:
        return
    given = written.input(1)
    asked = constant_array(given)
    if given is not None and (asked is None or asked.size != 1 or asked.item() != length):
        return
    if (inverse and one_sided) or 4 * length**2 > _MOST:
        return
    matrix = _matrix(length, parts, inverse=inverse, one_sided=one_sided)
    others = [k for k in range(len(shape) - 1) if k != axis]
    order = [*others, axis, len(shape) - 1]
    turned = written.transpose(data, order)
    front = [written.length(turned, k) for k in range(len(others))]
    rows = written.reshape(turned, [*front, length * parts])
    product = written.matmul(rows, written.constant(matrix, data))
    wide = written.reshape(product, [*front, matrix.shape[1] // 2, 2])
    written.put(written.transpose(wide, [order.index(k) for k in range(len(shape))]))


def _axis(written: Composite, rank: int) -> int | None:
    """Return the axis, counted from the front; None where it is computed or none of the data."""
    if written.opset < _AXIS_IS_INPUT:
        axis = written.integer("axis", 1)
    else:
        array = constant_array(written.input(2))
        if written.input(2) is not None and (array is None or array.size != 1):
            return None
        axis = -2 if array is None else int(array.item())
    axis += rank if axis < 0 else 0
    return axis if 0 <= axis < rank - 1 else None


def _matrix(length: int, parts: int, *, inverse: bool, one_sided: bool) -> npt.NDArray[np.float64]:
    """Make what real and imaginary parts are multiplied by, ``[length * parts, results * 2]``."""
    results = length // 2 + 1 if one_sided else length
    # Of whole turns nothing is left: the remainder is exact, the angle is not.
    turns = np.outer(np.arange(length), np.arange(results)) % length
    angles = 2 * np.pi * turns / length * (-1 if inverse else 1)
    real, imaginary = np.cos(angles), np.sin(angles)
    rows = np.stack([np.stack([real, -imaginary], -1), np.stack([imaginary, real], -1)], 1)
    scale = 1 / length if inverse else 1.0
    return scale * rows[:, :parts].reshape(length * parts, results * 2)
