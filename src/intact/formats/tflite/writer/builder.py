"""Builds a TFLite file: its tensors and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.spellings import int16_version
from intact.program import Array, Encoding, Shape, Step, Tensor
from intact.program.handlers import Handlers

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


@dataclass(frozen=True, eq=False)
class Subgraph:
    """What an operator runs beside the main graph.

    Attributes:
        builder: Its tensors and operators.
        inputs: Its inputs.
        outputs: Its outputs.
    """

    builder: FileBuilder
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class FileBuilder:
    """A TFLite file under construction: tensors and operators in the order in which they are added.

    Tensors are those of :mod:`intact.program`; what an operator takes besides data (axes, shapes)
    is a constant tensor like any other.

    Args:
        reserved: Names that the program's own tensors have.
        open_lengths: How long open axes are in the file, by tensor, where that is not 1.
        lacking: Why what runs the file cannot take an operator, by its name in the schema.
        most_axes: How many axes an operator may have there, by its name.

    Attributes:
        tensors: The tensors of the file, by name.
        operators: In order.
        makers: Which operator computes a tensor's values, by the tensor's name, not what moves
            them; `QUOTIENT` where that is a product with a reciprocal.
        block_scales: Constants of float16 with the scales of weights in blocks, by the name of
            the weight.
        quantized_inside: Floats that operators quantize while they run, by the names of the codes
            that programs have for them.
        subgraphs: What operators run, in the file behind the main graph.
    """

    def __init__(
        self,
        reserved: Iterable[str] = (),
        open_lengths: Mapping[str, int] | None = None,
        lacking: Mapping[str, Unsupported] | None = None,
        most_axes: Mapping[str, int] | None = None,
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.makers: dict[str, str] = {}
        self.block_scales: dict[str, str] = {}
        self.quantized_inside: dict[str, Tensor] = {}
        self.subgraphs: list[Subgraph] = []
        self._taken = set(reserved)
        self._floats: dict[str, Tensor] = {}
        self._open_lengths = dict(open_lengths or {})
        self._lacking = dict(lacking or {})
        self._most_axes = dict(most_axes or {})

    def inside(
        self, reserved: Iterable[str] = (), open_lengths: Mapping[str, int] | None = None
    ) -> FileBuilder:
        """Return a builder of a graph that an operator of this one runs."""
        inner = FileBuilder(reserved, open_lengths, self._lacking, self._most_axes)
        inner.subgraphs = self.subgraphs
        return inner

    def add_subgraph(
        self, inner: FileBuilder, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> int:
        """Add a graph that an operator runs; return its number in the file."""
        for tensor in (*inputs, *outputs):
            inner.mention(tensor)
        self.subgraphs.append(Subgraph(inner, tuple(inputs), tuple(outputs)))
        return len(self.subgraphs)

    def lengths(self, tensor: Tensor) -> list[int]:
        """Return the shape of a tensor in the file, where a batch that may grow is one sample."""
        otherwise = self._open_lengths.get(tensor.name, 1)
        return [otherwise if length is None else length for length in tensor.shape]

    def mention(self, tensor: Tensor | None) -> str:
        """Add a tensor unless it is there; return its name, "" for None."""
        if tensor is None:
            return ""
        if tensor.name not in self.tensors:
            self.tensors[tensor.name] = in_file(tensor)
            if tensor.encoding is not None and tensor.encoding.block is not None:
                scales = _scales_of_blocks(tensor.encoding)
                constant = self.constant(f"{tensor.name}/{SCALES}", scales)
                self.block_scales[tensor.name] = self.mention(constant)
        return tensor.name

    def require(self, code: str) -> None:
        """Refuse an operator, or a form of it, that kernels lack; raises `Unsupported`."""
        if code in self._lacking:
            reason = self._lacking[code]
            raise Unsupported(reason.reason, reason.remedy)

    def has_fewer_axes(self, code: str, tensor: Tensor) -> bool:
        """Tell whether kernels of an operator take fewer axes than a tensor has."""
        return len(tensor.shape) > self._most_axes.get(code, len(tensor.shape))

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
                knows only earlier ones rejects the file.

        Raises:
            Unsupported: What runs the file does not have the operator, or not for so many axes.
        """
        self.require(code)
        for tensor in (*inputs, *outputs):
            if tensor is not None and self.has_fewer_axes(code, tensor):
                has, takes = len(tensor.shape), self._most_axes[code]
                raise Unsupported(f"its {code} has {has} axes, the kernel takes {takes}", _MERGE)
        if any(_is_wide(tensor) for tensor in (*inputs, *outputs)):
            version = max(version, int16_version(code))
            if code in _POWERS_OF_TWO and options is not None:
                # Said outright, because the field is true where a file leaves it out.
                options = options.extended(potScaleInt16=False)
        names = tuple(self.mention(tensor) for tensor in inputs)
        results = tuple(self.mention(tensor) for tensor in outputs)
        self.operators.append(Operator(code, version, names, results, options))
        # Moves are looked through: a reshaped quotient is as large as before.
        made_by = [self.makers.get(name, "") for name in names]
        if code in _MOVES:
            code = made_by[0]
        elif code == "MUL" and "DIV" in made_by:
            code = QUOTIENT
        self.makers.update(dict.fromkeys(results, code))

    def constant(self, name: str, data: Array, encoding: Encoding | None = None) -> Tensor:
        """Return a new constant; int32 and float32 data need no encoding."""
        # `ascontiguousarray` gives scalars an axis, which is taken away again.
        array = np.ascontiguousarray(data).reshape(np.shape(data))
        return Tensor(self._fresh(name), array.shape, encoding, data=array)

    def in_floats(self, constant: Tensor) -> Tensor:
        """Return a constant as floats, made by one DEQUANTIZE for all that read it.

        A runtime computes it once, in its first run (LiteRT), and then multiplies floats. Kernels
        that take floats and integer weights themselves round the floats to 8 bits in each run.
        """
        if constant.encoding is None:
            return constant
        if constant.name not in self._floats:
            name = f"{constant.name}_float"
            result = self.intermediate(name, constant.shape, None, constant)
            options = Options("DequantizeOptions")
            self.operator("DEQUANTIZE", (constant,), (result,), options, version=2)
            self._floats[constant.name] = result
        return self._floats[constant.name]

    def integers(self, name: str, values: Sequence[int] | int) -> Tensor:
        """Return a new constant of int32: axes, lengths and the like.

        Raises:
            Unsupported: A number is larger.
        """
        # As Python's integers: those of NumPy wrap, and the lowest has no magnitude.
        largest = max(map(abs, np.ravel(np.asarray(values, object))), default=0)
        if largest >= 2**31:
            raise Unsupported(f"it has the number {largest}, TFLite stores int32")
        return self.constant(name, np.asarray(values, np.int32))

    def intermediate(
        self,
        name: str,
        shape: Shape,
        encoding: Encoding | None,
        like: Tensor,
        *,
        plain: type[np.generic] | np.dtype[Any] = np.float32,
        length: int | None = None,
    ) -> Tensor:
        """Return a new tensor between two operators; its open axis is as long as that of another.

        Args:
            name: Taken if it is free.
            shape: With as many open axes as ``like`` has.
            encoding: None for floats.
            like: Whose batch it shares.
            plain: Type of what is not encoded.
            length: Of the open axis in the file; None for that of ``like``.
        """
        result = Tensor(self._fresh(name), shape, encoding, plain=np.dtype(plain))
        same = self._open_lengths.get(like.name, 1)
        self._open_lengths[result.name] = same if length is None else length
        return result

    def _fresh(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate


SCALES = "scales"
"""What follows the name of a weight in the name of the constant with the scales of its blocks."""

_BLOCK_CODES = (-8, 7)
"""Codes of weights in blocks; of other widths LiteRT refuses the file, or computes nonsense."""


def _scales_of_blocks(encoding: Encoding) -> Array:
    """Return scales ``[rows, blocks]`` as float16."""
    low, high = _BLOCK_CODES
    if encoding.quant_min < low or encoding.quant_max > high or encoding.zero_point.any():
        raise Unsupported("its blocks have zero points, or codes beyond -8..7")
    with np.errstate(over="ignore"):
        half = encoding.scale.astype(np.float16)
    if not np.array_equal(half, encoding.scale) or not (half > 0).all():
        raise Unsupported("a scale of a block is no positive float16")
    return half


def in_file(tensor: Tensor) -> Tensor:
    """Return a tensor as files hold it: float64 is float32, for which kernels are made."""
    held = tensor.dtype if tensor.data is None else tensor.data.dtype
    if tensor.encoding is not None or held != np.float64:
        return tensor
    data = None if tensor.data is None else tensor.data.astype(np.float32)
    return replace(tensor, data=data, plain=np.dtype(np.float32))


def type_of(tensor: Tensor) -> np.dtype[Any]:
    """Return the type of a tensor's elements in the file."""
    held = in_file(tensor)
    return held.dtype if held.data is None else held.data.dtype


def require_type(tensor: Tensor, what: str, *names: str) -> None:
    """Refuse a tensor of another type than kernels take.

    Args:
        tensor: What they read.
        what: The operator, as messages call it.
        names: Types by NumPy's names.
    """
    if type_of(tensor).name not in names:
        raise Unsupported(f"{tensor.name!r} is {type_of(tensor)}, which no kernel of {what} takes")


def element_of(kind: np.dtype[Any]) -> int:
    """Return the number that the schema has for a type."""
    return Element[kind.name.upper()]


def add_cast(builder: FileBuilder, source: Tensor, result: Tensor) -> None:
    """Add a CAST to the type of the result."""
    kinds = {
        "inDataType": element_of(type_of(source)),
        "outDataType": element_of(type_of(result)),
    }
    builder.operator("CAST", (source,), (result,), Options("CastOptions", kinds))


_MERGE = "merge axes with a Reshape in front of it, or cut it from the model"
QUOTIENT = "a quotient"
"""What multiplies by the result of a DIV."""
_MOVES = frozenset({"RESHAPE", "TRANSPOSE"})
_POWERS_OF_TWO = frozenset({"ADD", "SUB"})
"""Operators that compute otherwise where all scales are powers of two, unless told not to."""


def _is_wide(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.encoding is not None and tensor.dtype == np.int16


Writer: TypeAlias = Callable[[Any, Step, FileBuilder], None]
"""Adds the operators of a step; raises `Unsupported` where TFLite has none."""

WRITERS: Handlers[Writer] = Handlers("intact writes no {} for TFLite")


def weighted_inputs(step: Step) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return data, weight and bias."""
    data, weight, bias = (*step.inputs, None)[:3]
    if data is None or weight is None:
        raise Unsupported("data or weight is missing")
    return data, weight, bias


def constant_data(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the data of a constant."""
    if tensor.data is None:
        raise Unsupported(f"{tensor.name!r} is computed, TFLite wants a constant")
    return tensor.data


_WIDE_BITS = 48
"""Bits of the sums that kernels of int16 data are made for; their biases are int64."""


def bias_or_zeros(
    builder: FileBuilder, step: Step, data: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the bias with the scales that kernels expect: ``data scale * weight scale``.

    Kernels of microcontrollers read a bias always, so that a missing one is written as zeros.
    """
    count = constant_data(weight).shape[0]
    values = np.zeros(count, np.int64) if bias is None else constant_data(bias).reshape(-1)
    name = f"{step.name}/bias"
    if data.encoding is None or weight.encoding is None:
        return builder.constant(name, values.astype(np.float32)) if bias is None else bias
    # In float32, as files hold both factors and kernels compare the product.
    scale = np.float32(data.encoding.scale) * weight.encoding.scale.astype(np.float32)
    axis = None if np.ndim(scale) == 0 else 0
    zeros = np.zeros(np.shape(scale), np.int64)
    bits, kind = (_WIDE_BITS, np.int64) if _is_wide(data) else (32, np.int32)
    encoding = Encoding(scale, zeros, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, axis)
    # The program's own keeps its name in the file.
    if bias is not None and encoding.same_as(bias.encoding):
        return bias
    return builder.constant(name, values.astype(kind), encoding)


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
    # A view, through which the stored weights land between the zeros.
    spread = result[(slice(None), *(slice(None, None, each) for each in dilations))]
    for channel in range(outputs):
        first = channel * groups // outputs * depth
        spread[channel, ..., first : first + depth] = data[channel]
    return result


def add_rescaled(builder: FileBuilder, source: Tensor, encoding: Encoding, name: str) -> Tensor:
    """Add a QUANTIZE of codes and return its result."""
    result = builder.intermediate(f"{name}_rescaled", source.shape, encoding, source)
    builder.operator("QUANTIZE", (source,), (result,), Options("QuantizeOptions"), version=2)
    return result
