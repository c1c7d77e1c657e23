"""Writes dense layers with weights in blocks as ncnn's ``Gemm``, which computes floats.

In the ``.bin`` such a layer has the codes, row by row as a stream of bits with sign, then the bias
behind a tag, and the reciprocals of the scales of blocks.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from intact.errors import Unsupported
from intact.formats.ncnn.builder import NcnnBuilder, floats, input_of, name_of
from intact.formats.ncnn.model import Parameter, sample
from intact.program import Array, Step
from intact.program.operations import Bounds

_SIZES = {32: 0, 64: 1, 128: 2}
"""How ``Gemm`` says how many neighbours a block has."""
_WIDTHS = (4, 6)
"""Bits of codes; with 8 it quantizes its input as well."""
_FLOAT_TAG = 0
_NO_BIAS, _BIAS_OF_COLUMNS = -1, 4


def write_in_blocks(step: Step, bounds: Bounds, builder: NcnnBuilder) -> None:
    """Write ``Gemm`` of a matrix of rows with a constant one, ``[outputs, inputs]``."""
    weight, bias, result = input_of(step, 1), step.inputs[2], step.outputs[0]
    encoding, codes, source = weight.encoding, weight.data, input_of(step)
    if codes is None or encoding is None or encoding.block not in _SIZES or bounds != Bounds():
        raise Unsupported("its weight is computed, or has other blocks than of 32, 64 or 128")
    if bias is not None and (bias.data is None or bias.data.shape != codes.shape[:1]):
        raise Unsupported("its bias is not one constant for each output channel")
    reach = max(-encoding.quant_min, encoding.quant_max + 1)
    bits = next((each for each in _WIDTHS if reach <= 1 << each - 1), None)
    if bits is None or encoding.zero_point.any():
        raise Unsupported("its blocks have zero points, or codes of more than 6 bits")
    outputs, inputs = codes.shape
    parameters: dict[int, Parameter] = {2: 0, 3: 1, 4: 0, 5: 1, 6: 1, 7: 0, 8: outputs, 9: inputs}
    parameters[10] = _NO_BIAS if bias is None else _BIAS_OF_COLUMNS
    parameters[18] = bits * 100 + _SIZES[encoding.block]
    stored = _bit_stream(codes, bits)
    added = b""
    if bias is not None and bias.data is not None:
        added = struct.pack("<I", _FLOAT_TAG) + floats(bias.data)
    # ncnn reads what follows from the next multiple of 4 bytes on.
    padding = b"\0" * (-len(stored) % 4)
    data = b"".join([stored, padding, added, floats(np.float32(1) / encoding.scale)])
    bottom, top, name = builder.read(step), builder.blob(result), name_of(step)
    shape = sample(source)
    is_matrix = len(shape) == 2
    rows = bottom if is_matrix else builder.inner(source)
    if not is_matrix:
        builder.reshape(f"{name}_rows", bottom, rows, (math.prod(shape[:-1]), inputs))
    inner = top if is_matrix else builder.inner(result)
    builder.emit("Gemm", name, [rows], [inner], parameters, data)
    if not is_matrix:
        builder.reshape(f"{name}_axes", inner, top, (*shape[:-1], outputs))


def _bit_stream(codes: Array, bits: int) -> bytes:
    """Return rows of codes as bits, the lowest first; each row ends with a whole byte."""
    places = np.arange(bits, dtype=np.uint8)
    each = (codes.astype(np.uint8)[..., None] >> places) & 1
    return np.packbits(each.reshape(len(codes), -1), axis=1, bitorder="little").tobytes()
