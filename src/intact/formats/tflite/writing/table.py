"""Which function writes which operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from intact.formats.tflite.writing import moves as moving
from intact.formats.tflite.writing import operators, spatial
from intact.formats.tflite.writing.draft import Draft
from intact.program import Step, operations

WRITERS: Mapping[type[Any], Callable[[Any, Step, Draft], None]] = {
    operations.Convolution: spatial.in_plane(spatial.write_convolution),
    operations.TransposedConvolution: spatial.in_plane(spatial.write_transposed),
    operations.Pool: spatial.in_plane(spatial.write_pool),
    operations.Resize: spatial.in_plane(spatial.write_resize),
    operations.FullyConnected: operators.write_fully_connected,
    operations.BatchMatMul: operators.write_batch_matmul,
    operations.Elementwise: operators.write_elementwise,
    operations.Function: operators.write_function,
    operations.PRelu: operators.write_prelu,
    operations.Softmax: operators.write_softmax,
    operations.Reduce: operators.write_reduce,
    operations.Quantize: operators.write_quantize,
    operations.Requantize: operators.write_requantize,
    operations.Dequantize: operators.write_dequantize,
    operations.Concat: moving.write_concat,
    operations.Pad: moving.write_pad,
    operations.Reshape: moving.write_reshape,
    operations.Transpose: moving.write_transpose,
    operations.Slice: moving.write_slice,
    operations.Split: moving.write_split,
    operations.Gather: moving.write_gather,
    operations.Lookup: moving.write_lookup,
    operations.Tile: moving.write_tile,
    operations.Expand: moving.write_expand,
    operations.DepthToSpace: moving.write_depth_to_space,
    operations.SpaceToDepth: moving.write_space_to_depth,
}
"""By operation; what is missing here TFLite does not have."""
