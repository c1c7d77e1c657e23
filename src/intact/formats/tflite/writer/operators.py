"""Writes element-wise operators, reductions, dense layers and conversions as TFLite operators.

One function per operation of the program, registered in `WRITERS`: `Elementwise` becomes ADD, MUL
and so on, `FullyConnected` becomes FULLY_CONNECTED. What TFLite lacks is composed of what it has: a
ceiling is ``NEG, FLOOR, NEG``, a function without an int8 kernel a look-up by GATHER. Windows and
moves are in `spatial` and `moves`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from intact.errors import Unsupported
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.spellings import (
    APPROXIMATION,
    FUNCTIONS,
    PAIRS,
    POSITIONS,
    REDUCTIONS,
    Spelling,
    rows_by_ours,
)
from intact.formats.tflite.writer.builder import (
    QUOTIENT,
    WRITERS,
    FileBuilder,
    Options,
    add_cast,
    bias_or_zeros,
    data_of,
    element_of,
    require_type,
    type_of,
    weighted_inputs,
)
from intact.formats.tflite.writer.clamps import add_bounded, add_clamp
from intact.formats.tflite.writer.moves import add_reshape, add_transpose, version_of
from intact.ops import functions
from intact.ops.functions import Unary
from intact.program import Array, Encoding, Step, Tensor
from intact.program.arithmetic.functions import function_of_codes
from intact.program.operations import (
    ArgReduce,
    BatchMatMul,
    Dequantize,
    DynamicFullyConnected,
    DynamicQuantize,
    Elementwise,
    FullyConnected,
    Function,
    PRelu,
    Quantize,
    Reduce,
    Requantize,
    Softmax,
)
from intact.targets import Functions

_FUNCTIONS, _PAIRS, _POSITIONS, _REDUCTIONS = (
    rows_by_ours(FUNCTIONS),
    rows_by_ours(PAIRS),
    rows_by_ours(POSITIONS),
    rows_by_ours(REDUCTIONS),
)


@WRITERS.register(Elementwise)
def _write_elementwise(operation: Elementwise, step: Step, builder: FileBuilder) -> None:
    """Write ADD, MUL and the other operators on two tensors."""
    kind = _PAIRS[operation.kind]
    if kind.code == "DIV" and step.outputs[0].dtype == np.int64:
        raise Unsupported("LiteRT divides floats and int32 only")
    add_bounded(
        builder,
        kind.code,
        step.inputs,
        step.outputs[0],
        operation.bounds,
        options=Options(kind.table),
        version=_version(kind.code, kind.integer, step),
        fusable=kind.fusable,
    )


@WRITERS.register(Function)
def _write_function(operation: Function, step: Step, builder: FileBuilder) -> None:
    """Write functions of one operand."""
    data, output = data_of(step), step.outputs[0]
    if operation.kind is functions.clamp:
        add_clamp(builder, data, output, operation.bounds)
        return
    if data.encoding is None and data.dtype.kind in "iu":
        _add_of_whole_numbers(builder, operation.kind, data, output)
        return
    if operation.kind is functions.reciprocal and output.encoding is None:
        one = builder.constant(f"{step.name}/one", np.ones((), np.float32))
        add_bounded(
            builder, "DIV", (one, data), output, operation.bounds, options=Options("DivOptions")
        )
        return
    if _is_looked_up(operation, step):
        if data.encoding is None or output.encoding is None:
            _add_elu(builder, operation, data, output)
            return
        codes = np.arange(data.encoding.quant_min, data.encoding.quant_max + 1)
        table = function_of_codes(operation, step.arithmetic, codes, data.encoding, output.encoding)
        _add_table(builder, table, data, output)
        return
    if operation.kind in _ROUNDED and output.encoding is None:
        _ROUNDED[operation.kind](builder, data, output)
        return
    if operation.kind not in _FUNCTIONS:
        raise Unsupported(f"intact writes no operator of TFLite for {operation.kind}")
    spelling = _FUNCTIONS[operation.kind]
    add_bounded(
        builder,
        spelling.code,
        (data,),
        output,
        operation.bounds,
        options=_options(spelling, operation),
        version=_version(spelling.code, spelling.integer, step),
        fusable=False,
    )


def _add_of_whole_numbers(builder: FileBuilder, kind: Unary, data: Tensor, output: Tensor) -> None:
    """Add a function of plain int32 or int64, which are no codes; of these LiteRT has NEG alone."""
    if kind not in (functions.negative, functions.absolute):
        raise Unsupported(f"TFLite computes {kind} of floats and codes only")
    is_last, name = kind is functions.negative, f"{output.name}_negative"
    negative = (
        output if is_last else builder.intermediate(name, data.shape, None, data, plain=data.dtype)
    )
    builder.operator("NEG", (data,), (negative,), Options("NegOptions"))
    if not is_last:
        builder.operator("MAXIMUM", (data, negative), (output,), Options("MaximumMinimumOptions"))


def _options(spelling: Spelling[Unary], operation: Function) -> Options | None:
    if not spelling.table:
        return None
    named = {theirs: operation.named[ours] for theirs, ours in spelling.options.items()}
    fields = {
        theirs: value == APPROXIMATION if isinstance(value, str) else value
        for theirs, value in named.items()
    }
    return Options(spelling.table, fields)


def _is_looked_up(operation: Function, step: Step) -> bool:
    """Tell whether a table of codes stands in for the function, for one of three reasons."""
    # 1. The target computes by tables.
    if step.arithmetic.functions is Functions.TABLE:
        return True
    # 2. TFLite's ELU has no alpha.
    if operation.kind is functions.elu and operation.number("alpha") != 1:
        return True
    spelling, encoding = _FUNCTIONS.get(operation.kind), step.outputs[0].encoding
    # 3. No kernel takes codes; a table of 16 bits would have 65,536 entries and is not written.
    is_table_short = encoding is not None and encoding.dtype == np.int8
    return is_table_short and (spelling is None or not spelling.integer)


def _add_table(builder: FileBuilder, table: Array, data: Tensor, output: Tensor) -> None:
    """Add a look-up of int8 codes in the codes that each of them gives, the lowest first.

    CAST, ADD and GATHER are all that it takes, and every kind of kernels has them (measured).
    """
    whole = builder.intermediate(f"{output.name}_code", data.shape, None, data, plain=np.int32)
    place = builder.intermediate(f"{output.name}_place", data.shape, None, data, plain=np.int32)
    add_cast(builder, data, whole)
    # Codes begin at -128, places in the table at 0.
    lowest = builder.integers(f"{output.name}_lowest", np.iinfo(np.int8).max + 1)
    builder.operator("ADD", (whole, lowest), (place,), Options("AddOptions"))
    held = builder.constant(f"{output.name}_table", table.astype(np.int8), output.encoding)
    builder.operator("GATHER", (held, place), (output,), Options("GatherOptions"), version=2)


def _add_elu(builder: FileBuilder, operation: Function, data: Tensor, output: Tensor) -> None:
    """Add ``max(x, 0) + alpha * exp(min(x, 0)) - alpha`` of floats."""
    if operation.kind is not functions.elu:
        raise Unsupported(f"intact writes no operator of TFLite for {operation.kind}")

    between = partial(_between, builder, output)
    zero, height = (_number(builder, output, n) for n in (0.0, operation.number("alpha")))
    below = between("MINIMUM", (data, zero), "MaximumMinimumOptions")
    scaled = between("MUL", (between("EXP", (below,), "ExpOptions"), height), "MulOptions")
    lowered = between("SUB", (scaled, height), "SubOptions")
    inputs = (between("RELU", (data,)), lowered)
    add_bounded(builder, "ADD", inputs, output, operation.bounds, options=Options("AddOptions"))


def _between(
    builder: FileBuilder,
    output: Tensor,
    code: str,
    inputs: tuple[Tensor, ...],
    table: str = "",
    fields: Mapping[str, int] = MappingProxyType({}),
    kind: type[np.generic] = np.float32,
) -> Tensor:
    """Add an operator whose result is intermediate, a step on the way to the output; return it."""
    name = f"{output.name}_{code.lower()}"
    result = builder.intermediate(name, output.shape, None, output, plain=kind)
    builder.operator(code, inputs, (result,), Options(table, fields) if table else None)
    return result


def _number(builder: FileBuilder, output: Tensor, value: float) -> Tensor:
    return builder.constant(f"{output.name}_number", np.asarray(value, np.float32))


def _add_ceil(builder: FileBuilder, data: Tensor, output: Tensor) -> None:
    """Add ``-floor(-x)``."""
    below = _between(builder, output, "NEG", (data,), "NegOptions")
    above = _between(builder, output, "FLOOR", (below,))
    builder.operator("NEG", (above,), (output,), Options("NegOptions"))


_BEFORE_HALF = 2.0**-25
"""From one half to the next float32 below."""


def _add_round(builder: FileBuilder, data: Tensor, output: Tensor) -> None:
    """Add the floor, and 1 where the rest is more than a half, or is that and the floor is odd.

    Both are exact: a float's rest over its floor is a float.
    """
    between = partial(_between, builder, output)
    half, two, step = (_number(builder, output, n) for n in (0.5, 2.0, _BEFORE_HALF))
    below = between("FLOOR", (data,))
    rest = between("SUB", (data, below), "SubOptions")
    odd = between("FLOOR_MOD", (below, two), "FloorModOptions")
    # Over an odd floor a half rounds up as well: the next float below it counts as more.
    limit = between("SUB", (half, between("MUL", (odd, step), "MulOptions")), "SubOptions")
    is_above = between("GREATER", (rest, limit), "GreaterOptions", kind=np.bool_)
    kinds = {"inDataType": Element.BOOL, "outDataType": Element.FLOAT32}
    one = between("CAST", (is_above,), "CastOptions", kinds)
    builder.operator("ADD", (below, one), (output,), Options("AddOptions"))


_ROUNDED = {functions.ceil: _add_ceil, functions.round_half_even: _add_round}
"""Roundings of floats that are composed, because LiteRT's reference kernels have neither."""


@WRITERS.register(PRelu)
def _write_prelu(_: PRelu, step: Step, builder: FileBuilder) -> None:
    """Write PRELU."""
    builder.operator("PRELU", step.inputs, step.outputs)


@WRITERS.register(Softmax)
def _write_softmax(operation: Softmax, step: Step, builder: FileBuilder) -> None:
    """Write SOFTMAX or LOG_SOFTMAX over the last axis, to which another is brought first."""
    data, output = data_of(step), step.outputs[0]
    rank = len(data.shape)
    axis = operation.axis % rank
    source, result = data, output
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    if axis != rank - 1:
        shape = tuple(data.shape[k] for k in swap)
        source = builder.intermediate(f"{data.name}_swapped", shape, data.encoding, data)
        result = builder.intermediate(f"{output.name}_swapped", shape, output.encoding, output)
        add_transpose(builder, data, source, swap)
    if operation.log:
        code, options = "LOG_SOFTMAX", Options("LogSoftmaxOptions")
    else:
        code, options = "SOFTMAX", Options("SoftmaxOptions", {"beta": 1.0})
    builder.operator(code, (source,), (result,), options, version=version_of(output))
    if result is not output:
        add_transpose(builder, result, output, swap)


@WRITERS.register(Reduce)
def _write_reduce(operation: Reduce, step: Step, builder: FileBuilder) -> None:
    """Write MEAN, SUM and the other reductions."""
    kind = _REDUCTIONS[operation.kind]
    axes = builder.integers(f"{step.name}/axes", operation.axes)
    options = Options(kind.table, {"keepDims": operation.keep_dims})
    version = version_of(step.outputs[0])
    builder.operator(kind.code, (step.inputs[0], axes), step.outputs, options, version=version)


@WRITERS.register(ArgReduce)
def _write_arg_reduce(operation: ArgReduce, step: Step, builder: FileBuilder) -> None:
    """Write ARG_MAX or ARG_MIN, which take the first of equal elements and drop the axis."""
    data, result = data_of(step), step.outputs[0]
    spelling = _POSITIONS[operation.kind]
    require_type(data, spelling.onnx, "bool", "float32", "int8", "int32")
    kind = type_of(result)
    # Some runtimes have the operator, but not for this type of places.
    builder.require(f"{spelling.code} {kind}")
    found, shape = result, list(data.shape)
    if operation.keep_dims:
        del shape[operation.axis]
        name = f"{result.name}_place"
        found = builder.intermediate(name, tuple(shape), None, result, plain=kind)
    axis = builder.integers(f"{step.name}/axis", operation.axis)
    options = Options(spelling.table, {"outputType": element_of(kind)})
    version = version_of(data)
    builder.operator(spelling.code, (data, axis), (found,), options, version=version)
    if operation.keep_dims:
        add_reshape(builder, found, result)


@WRITERS.register(FullyConnected)
def _write_fully_connected(operation: FullyConnected, step: Step, builder: FileBuilder) -> None:
    """Write FULLY_CONNECTED; the version of per-channel weights is the 12th."""
    data, weight, bias = weighted_inputs(step)
    bias = bias_or_zeros(builder, step, data, weight, bias)
    if data.encoding is None:
        weight = builder.in_floats(weight)
    # The option came with version 5, and older runtimes read all that does without.
    keeps = len(data.shape) != 2
    per_channel = weight.encoding is not None and weight.encoding.axis is not None
    version = 5 if keeps else 1 if data.encoding is None else 4
    add_bounded(
        builder,
        "FULLY_CONNECTED",
        (data, weight, bias),
        step.outputs[0],
        operation.bounds,
        options=Options("FullyConnectedOptions", {"keepNumDims": keeps}),
        version=12 if per_channel else version,
    )


@WRITERS.register(DynamicQuantize)
def _write_dynamic_quantize(_: DynamicQuantize, step: Step, builder: FileBuilder) -> None:
    """Write nothing: the layers that read the codes quantize the floats themselves."""
    builder.quantized_inside[step.outputs[0].name] = data_of(step)


@WRITERS.register(DynamicFullyConnected)
def _write_dynamic(operation: DynamicFullyConnected, step: Step, builder: FileBuilder) -> None:
    """Write FULLY_CONNECTED of floats with integer weights, which quantizes rows at run time."""
    codes, _, _, weight, bias = step.inputs
    data = None if codes is None else builder.quantized_inside.get(codes.name)
    if data is None or weight is None or weight.encoding is None:
        raise Unsupported("it has no floats to quantize, or no integer weight")
    if weight.encoding.block is not None:
        builder.require("FULLY_CONNECTED blocks")
    quantizer = operation.quantizer
    # LiteRT's kernel finds a scale for each row, symmetric, and offers nothing else.
    if not quantizer.rows or quantizer.block is not None or quantizer.quant_min >= 0:
        raise Unsupported("its input is not quantized to int8, row by row")
    keeps = len(data.shape) != 2
    version = 5 if keeps else 3
    builder.operator(
        "FULLY_CONNECTED",
        (data, weight, bias_or_zeros(builder, step, data, weight, bias)),
        step.outputs,
        Options("FullyConnectedOptions", {"keepNumDims": keeps}),
        version=version if weight.encoding.axis is None else 12,
    )


@WRITERS.register(BatchMatMul)
def _write_batch_matmul(operation: BatchMatMul, step: Step, builder: FileBuilder) -> None:
    """Write BATCH_MATMUL."""
    add_bounded(
        builder,
        "BATCH_MATMUL",
        step.inputs,
        step.outputs[0],
        operation.bounds,
        options=Options("BatchMatMulOptions"),
        version=version_of(step.outputs[0]),
        fusable=False,
    )


_UNBOUNDED = {
    "DIV": ("MINIMUM", "MAXIMUM"),
    "EXP": ("MINIMUM",),
    "POW": ("MINIMUM", "MAXIMUM"),
    QUOTIENT: ("MINIMUM", "MAXIMUM"),
}
"""Operators whose floats may exceed int32 when counted in steps, with the operators that clamp."""


@WRITERS.register(Quantize)
def _write_quantize(_: Quantize, step: Step, builder: FileBuilder) -> None:
    """Write QUANTIZE of floats."""
    data, encoding = data_of(step), step.outputs[0].encoding
    if encoding is not None and encoding.axis is None:
        data = _within_codes(data, encoding, builder)
    builder.operator("QUANTIZE", (data,), step.outputs, Options("QuantizeOptions"))


def _within_codes(data: Tensor, encoding: Encoding, builder: FileBuilder) -> Tensor:
    """Clamp floats that may be any number to what codes reach; return others as they are.

    LiteRT's own kernels and TFLite Micro convert to int32 and add the zero point before they clamp:
    what is larger, as a quotient by a code of 0 is, gets the code of the other end. NaN passes the
    MINIMUM, and the MAXIMUM makes it the lowest.
    """
    ends = {"MINIMUM": encoding.quant_max, "MAXIMUM": encoding.quant_min}
    for code in _UNBOUNDED.get(builder.makers.get(data.name, ""), ()):
        name = f"{data.name}_{code.lower()}"
        end = ((ends[code] - encoding.zero_point) * encoding.scale).item()
        limit = np.asarray(end, np.float32)
        constant = builder.constant(f"{name}_limit", limit)
        # The order decides what a comparison with NaN gives: the second operand.
        operands = (constant, data) if code == "MINIMUM" else (data, constant)
        data = builder.intermediate(name, data.shape, None, data)
        builder.operator(code, operands, (data,), Options("MaximumMinimumOptions"))
    return data


@WRITERS.register(Requantize)
def _write_requantize(_: Requantize, step: Step, builder: FileBuilder) -> None:
    """Write QUANTIZE of codes."""
    options = Options("QuantizeOptions")
    builder.operator("QUANTIZE", (data_of(step),), step.outputs, options, version=2)


@WRITERS.register(Dequantize)
def _write_dequantize(_: Dequantize, step: Step, builder: FileBuilder) -> None:
    """Write DEQUANTIZE."""
    options = Options("DequantizeOptions")
    builder.operator("DEQUANTIZE", (data_of(step),), step.outputs, options, version=2)


def _version(code: str, integer: int, step: Step) -> int:
    """Return an operator's version: 1 for floats, else that of its integer kernel, 0 for none."""
    if step.outputs[0].encoding is None:
        return 1
    if not integer:
        raise Unsupported(f"TFLite computes {code} in float only")
    return integer
