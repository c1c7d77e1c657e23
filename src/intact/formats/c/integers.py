"""Whole numbers as inputs: indices of tables, and numbers of which codes are made.

Models take token ids as int64 and compare or shift them only in float nodes. A C program takes
them as int32: it looks them up, or makes codes of them by a table.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.c.layer import WRITERS, Layer, encoding_of, in_float
from intact.numerics.affine import quantize
from intact.program import Encoding, Program, Step, Tensor
from intact.program.operations import FloatNodes, Lookup, Quantize, Reshape
from intact.program.passes.islands import without_unused

_TYPES = (np.dtype(np.int32), np.dtype(np.int64))
_KEEPS_ORDER = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

_LARGEST_TABLE = 1 << 12
"""Bytes of the codes of the numbers that do not saturate."""


def is_whole(tensor: Tensor) -> bool:
    """Tell whether a tensor holds whole numbers, and no codes."""
    return tensor.encoding is None and tensor.dtype in _TYPES


def with_whole_inputs(program: Program) -> Program:
    """Return a program in which inputs of whole numbers are read without float nodes.

    Where only the shape changes between such an input and a look-up or a quantizer, or the type,
    a view of the input takes the place of the nodes.
    """
    roots = {t.name: t for t in program.inputs.values() if is_whole(t) and t.permutation is None}
    if not roots:
        return program
    steps: list[Step] = []
    for step in program.steps:
        root = _root_of(step, roots)
        if root is not None:
            output = step.outputs[0]
            view = Tensor(f"{output.name}_whole", output.shape, plain=root.plain)
            shape = tuple(-1 if length is None else length for length in view.shape)
            steps.append(replace(step, operation=Reshape(shape), inputs=(root,), outputs=(view,)))
            roots[output.name] = view
        is_reader = isinstance(step.operation, Lookup | Quantize)
        inputs = tuple(roots.get(t.name, t) if t else None for t in step.inputs)
        steps.append(replace(step, inputs=inputs) if is_reader else step)
    return without_unused(program.with_steps(tuple(steps)))


def _root_of(step: Step, roots: dict[str, Tensor]) -> Tensor | None:
    """Return the whole numbers that float nodes only give another shape or type."""
    operation = step.operation
    if not isinstance(operation, FloatNodes) or len(step.activations) != 1:
        return None
    (source,), output = step.activations, step.outputs[0]
    before = operation.inputs[step.inputs.index(source)]
    for node in operation.nodes:
        if node.op_type not in _KEEPS_ORDER or node.domain or node.inputs[0] is not before:
            return None
        before = node.outputs[0]
        if before.dtype not in (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT):
            return None
    is_plain = len(step.outputs) == 1 and output.permutation is None
    return roots.get(source.name) if is_plain and output.shape.count(None) < 2 else None


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
    codes = quantize(
        np.arange(least, most + 1, dtype=np.float32),
        encoding.scale,
        encoding.zero_point,
        encoding.quant_min,
        encoding.quant_max,
        rounding=encoding.rounding,
        axis=encoding.axis,
    )
    return least, codes.astype(np.int8)
