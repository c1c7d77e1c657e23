"""Whole numbers as inputs: indices of tables, and numbers of which codes are made by a table.

Models take token ids and masks as int64, a C program takes them as int32.
"""

from __future__ import annotations

import numpy as np

from intact.errors import Unsupported
from intact.formats.base.comparison import in_codes
from intact.formats.c.layer import WRITERS, Layer, encoding_of, in_float
from intact.program import Encoding
from intact.program.operations import Lookup, Quantize
from intact.program.passes.whole_inputs import is_whole

_LARGEST_TABLE = 1 << 12
"""Bytes of the codes of the numbers that do not saturate."""


@WRITERS.register(Lookup)
def write_lookup(layer: Layer) -> None:
    """Write a look-up by computed indices: an embedding."""
    operation, data, indices = layer.step.operation, layer.input(), layer.input(1)
    if not isinstance(operation, Lookup) or not is_whole(indices):
        raise Unsupported(f"its indices {indices.name!r} are {indices.dtype}", "give int64 ones")
    if not encoding_of(data).same_as(encoding_of(layer.output)):
        raise Unsupported(
            f"{data.name!r} has another scale than the result", "tie the scales of the two"
        )
    shape, axis = layer.shape(data), operation.axis
    layer.call(
        "embed",
        layer.pointer(indices),
        layer.size(indices),
        int(np.prod(shape[:axis])),
        shape[axis],
        int(np.prod(shape[axis + 1 :])),
        layer.pointer(data),
        layer.pointer(layer.output),
    )


@WRITERS.register(Quantize)
def write_quantize(layer: Layer) -> None:
    """Write the codes of whole numbers as a table; those beyond its ends saturate."""
    source = layer.input()
    if not is_whole(source):
        raise in_float(layer.step)
    least, codes = codes_of_whole(encoding_of(layer.output))
    layer.call(
        "code_of_whole",
        layer.pointer(source),
        layer.size(source),
        least,
        codes.size,
        layer.array(codes, "_codes", f"codes of {least} to {least + codes.size - 1}"),
        layer.pointer(layer.output),
    )


def codes_of_whole(encoding: Encoding) -> tuple[int, np.ndarray]:
    """Return the codes of whole numbers from one that is the smallest code to one of the largest.

    Raises:
        Unsupported: There are too many.
    """
    scale, zero = float(encoding.scale.reshape(-1)[0]), int(encoding.zero_point.reshape(-1)[0])
    least = int(np.floor((encoding.quant_min - zero - 1) * scale))
    most = int(np.ceil((encoding.quant_max - zero + 1) * scale))
    if most - least >= _LARGEST_TABLE:
        raise Unsupported(
            f"{most - least + 1} whole numbers have codes, a table has {_LARGEST_TABLE} at most",
            "scale them in front of the model, and feed floats",
        )
    codes = in_codes(np.arange(least, most + 1, dtype=np.float32), encoding)
    return least, codes.astype(np.int8)
