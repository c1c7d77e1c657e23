"""Writes weights in blocks into a ``.tflite``, and compares what their layers compute.

LiteRT multiplies the codes of rows with those of blocks and adds up floats, in another order than
the engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.formats.base.comparison import LayerComparison, operation_name
from intact.formats.base.float_layers import FloatComparison
from intact.formats.tflite.reader.decode import open_tflite
from intact.formats.tflite.reader.file import constant_of
from intact.formats.tflite.writer.builder import SCALES
from intact.program import Array, Program, Step, Tensor
from intact.program.forms import dequantize_constant


def in_blocks(step: Step) -> Tensor | None:
    """Return the constant of a step that has scales in blocks."""
    found = (each for each in step.inputs if each is not None and each.encoding is not None)
    return next((each for each in found if each.encoding and each.encoding.block), None)


class BlockLayer:
    """Compares the floats of a layer with weights in blocks.

    Args:
        step: The layer.
        weight: Its weight, ``[outputs, inputs]``.

    Attributes:
        found: What was found.
    """

    def __init__(self, step: Step, weight: Tensor) -> None:
        output = step.outputs[0]
        self.found = FloatComparison(str(output.end or output.name), operation_name(step))
        self._weight = weight

    def add(self, deployed: Array, expected: Array, data: Array) -> None:
        """Compare one batch of results; the layer read ``data``."""
        self.found.add(deployed, expected, lambda: self._terms(data))

    def _terms(self, data: Array) -> float:
        """Return the largest sum of the magnitudes of the terms of a result.

        Kernels multiply codes without sign, and subtract what the zero points give.
        """
        numbers, encoding = dequantize_constant(self._weight).data, self._weight.encoding
        if numbers is None or encoding is None:
            return 0.0
        scales = np.repeat(encoding.scale, encoding.block or 1, axis=-1)
        apart = np.abs(numbers) + scales[:, : numbers.shape[1]] * -encoding.quant_min
        spans = np.ptp(data, axis=-1, keepdims=True) if data.size else np.zeros(1)
        return float(((np.abs(data) + spans) @ apart.T).max(initial=0.0))


def stored_layers(program: Program, content: bytes) -> Iterator[LayerComparison]:
    """Yield the codes and the scales of weights in blocks, a file's against a program's.

    Raises:
        DataError: The file lacks them.
    """
    weights = {each.name: each for step in program.steps if (each := in_blocks(step)) is not None}
    if not weights:
        return
    held = {tensor.name: tensor for tensor in open_tflite(content).tensors}
    for name, weight in weights.items():
        scales = f"{name}/{SCALES}"
        if weight.data is None or weight.encoding is None or not {name, scales} <= set(held):
            raise DataError(f"the file has no weight {name!r} in blocks", remedy="quantize again")
        pairs: tuple[tuple[str, str, npt.NDArray[np.generic]], ...] = (
            (name, "Codes in blocks", weight.data),
            (scales, "Scales of blocks", weight.encoding.scale.astype(np.float16)),
        )
        for tensor, what, expected in pairs:
            found = LayerComparison(str(weight.end or name), tensor, what)
            found.add(constant_of(held[tensor]), expected)
            yield found
