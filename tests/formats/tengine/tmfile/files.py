"""Files of one operator, and Tengine's reference kernels in NumPy where ONNX has others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.formats.tengine.tmfile.codec import encode
from intact.formats.tengine.tmfile.file import (
    Element,
    FileNode,
    FileTensor,
    Kind,
    Layout,
    Quantization,
    TmFile,
)

Array = npt.NDArray[Any]


def file_of(
    operator: str,
    options: Mapping[str, Any] | None,
    shape: Sequence[int],
    *constants: Array,
    outputs: int = 1,
    said: tuple[int, ...] = (),
    layout: Layout = Layout.CHANNELS_FIRST,
) -> TmFile:
    """Return a graph of one operator over an input ``x``, constants ``c0 ...``, outputs ``y0 ...``.

    Args:
        operator: Of Tengine.
        options: Of it.
        shape: Of the input.
        constants: Further inputs.
        outputs: How many.
        said: The shape that the file has for the outputs.
        layout: Of the file.
    """
    elements = {np.dtype(np.float16): Element.FLOAT16, np.dtype(np.int8): Element.INT8}
    tensors = [FileTensor("x", tuple(shape), Kind.INPUT, Element.FLOAT32)]
    nodes = [FileNode("x", "InputOp", (), (0,))]
    for number, each in enumerate(constants):
        element = elements.get(each.dtype, Element.FLOAT32)
        scales = None
        if element is Element.INT8:
            scales = Quantization(np.array([0.5], np.float32), np.array([0], np.int32))
        name = f"c{number}"
        tensors.append(FileTensor(name, each.shape, Kind.CONSTANT, element, each, scales))
        nodes.append(FileNode(name, "Const", (), (number + 1,)))
    reads = tuple(range(len(tensors)))
    for number in range(outputs):
        tensors.append(FileTensor(f"y{number}", said, Kind.VARIABLE, Element.FLOAT32))
    writes = tuple(range(len(reads), len(tensors)))
    nodes.append(FileNode("op", operator, reads, writes, options or {}))
    return TmFile("", layout, tuple(tensors), tuple(nodes), (0,), (len(nodes) - 1,))


def bytes_of(*args: Any, **kwargs: Any) -> bytes:
    """Return the bytes of `file_of`."""
    return encode(file_of(*args, **kwargs))


def pool_options(**changes: int) -> dict[str, int]:
    """Options of Pooling."""
    names = ["method", "kernel_h", "kernel_w", "stride_h", "stride_w", "is_global", "flavor"]
    names += ["pad_top", "pad_left", "pad_bottom", "pad_right"]
    return {**dict.fromkeys(names, 0), "stride_h": 1, "stride_w": 1, **changes}


def tengine_pool(image: Array, options: Mapping[str, int]) -> Array:
    """Pool one image ``[C, H, W]`` as ``ref_pooling_fp32`` does, element by element."""
    channels, *lengths = image.shape
    flavor = options["flavor"]
    kernels = [options["kernel_h"], options["kernel_w"]]
    strides = [options["stride_h"], options["stride_w"]]
    pads = [options["pad_top"], options["pad_left"]]
    if options["is_global"] or kernels == lengths:
        kernels, strides, pads, counts = lengths, [1, 1], [0, 0], [1, 1]
    else:
        counts = [_count(flavor, *row) for row in zip(lengths, kernels, strides, pads, strict=True)]
        if flavor & ~0x10 == 2:
            pads = [pad // 2 for pad in pads]
    result = np.zeros((channels, *counts), np.float64)
    for c, i, j in np.ndindex(*result.shape):
        spans = []
        size = 1
        for at, kernel, stride, pad, length in zip(
            (i, j), kernels, strides, pads, lengths, strict=True
        ):
            start = at * stride - pad
            end = min(start + kernel, length + pad)
            inner = slice(max(start, 0), min(end, length))
            size *= end - start if flavor else inner.stop - inner.start
            spans.append(inner)
        window = image[c, spans[0], spans[1]].astype(np.float64)
        result[c, i, j] = window.sum() / size if options["method"] else window.max()
    return result


def _count(flavor: int, length: int, kernel: int, stride: int, pad: int) -> int:
    if flavor == 1:
        count = 2 + int((length - kernel + 2 * pad - 1) / stride)
        return count - 1 if pad > 0 and (count - 1) * stride >= length + pad else count
    total = pad if flavor == 2 else 2 * pad
    return 1 + int((length - kernel + total) / stride)
