"""Collects the C source under construction; `Layer` is one step of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.c.library import AXES, Identifiers, Library, comment, identifier
from intact.formats.c.requantization import Requantization, requantization_of
from intact.formats.c.storage import Places
from intact.graph.passes.expand import EXPANSIONS
from intact.program import Encoding, Step, Tensor
from intact.program.handlers import Handlers
from intact.program.operations import FloatNodes
from intact.program.passes.inference import Lengths

_TYPES = {
    np.dtype(np.int8): "int8_t",
    np.dtype(np.int16): "int16_t",
    np.dtype(np.int32): "int32_t",
}

_WORTH_SHARING = 64
"""Bytes below which a layer has an array of its own, for the reader's sake."""

_WIDTH = 100
"""Columns of a line of numbers."""


class Constants:
    """Collects arrays.

    Args:
        identifiers: Gives their names.

    Attributes:
        flash: Bytes of all arrays.
    """

    def __init__(self, identifiers: Identifiers) -> None:
        self.flash = 0
        self._identifiers = identifiers
        self._names: dict[tuple[str, bytes], str] = {}
        self._texts: list[str] = []

    def add(self, array: npt.NDArray[Any], name: str, suffix: str, note: str) -> str:
        """Return the identifier of an array of these numbers: new, or of a large one that is equal.

        Args:
            array: int8, int16 or int32, any shape, not empty.
            name: What the layer or tensor is called that it belongs to.
            suffix: What it is, as the end of an identifier.
            note: What it is, for a comment.
        """
        array = np.ascontiguousarray(array)
        key = (array.dtype.str, array.tobytes())
        # By content: layers with equal scales have equal multipliers, and flash is scarce.
        if array.nbytes >= _WORTH_SHARING and key in self._names:
            return self._names[key]
        known = self._names[key] = self._identifiers.unique(name, suffix)
        self.flash += array.nbytes
        self._texts.append(
            f"/* {comment(note)} */\n"
            f"static const {_TYPES[array.dtype]} {known}[{array.size}] = {{\n"
            f"{_number_lines(array)}\n}};\n"
        )
        return known

    def text(self) -> str:
        """Return the definitions of all arrays in the order in which they were added."""
        return "\n".join(self._texts)


def _number_lines(array: npt.NDArray[Any]) -> str:
    """Return numbers in lines of equal columns."""
    flat = array.reshape(-1)
    low, high = int(flat.min()), int(flat.max())
    columns = max(len(_literal(low)), len(_literal(high)))
    per_line = max(1, (_WIDTH - 4) // (columns + 2))
    if array.dtype == np.int8:
        # Each of the 256 texts once, because a model has millions of weights.
        known = np.array([f"{code:>{columns}}" for code in range(-128, 128)])
        texts = known[flat.astype(np.int64) + 128].tolist()
    else:
        texts = [f"{_literal(code):>{columns}}" for code in flat.tolist()]
    lines = (texts[at : at + per_line] for at in range(0, len(texts), per_line))
    return "\n".join(f"    {', '.join(line)}," for line in lines)


def _literal(code: int) -> str:
    """Return a number as C writes it: there is no literal of the smallest int32."""
    return "INT32_MIN" if code == -(2**31) else str(code)


class Sources:
    """The parts of the C source that all layers write to.

    Attributes:
        shapes: Lengths of the tensors, by name.
        places: Where they lie.
        identifiers: Those that the file has.
        constants: Its arrays.
        library: Its kernels.
        structures: Definitions of layers' parameters.
        structure_bytes: Their flash.
        calls: Lines of the function that runs the model.
    """

    def __init__(
        self,
        shapes: Mapping[str, Lengths],
        places: Places,
        identifiers: Identifiers,
    ) -> None:
        self.shapes = shapes
        self.places = places
        self.identifiers = identifiers
        self.constants = Constants(identifiers)
        self.library = Library()
        self.structures: list[str] = []
        self.structure_bytes = 0
        self.calls: list[str] = []


class Layer:
    """One step as it is written.

    Args:
        number: Which step it is, from 0.
        step: The step.
        sources: Written to.
    """

    def __init__(self, number: int, step: Step, sources: Sources) -> None:
        self.step = step
        self._sources = sources
        self._stem = f"l{number}_{identifier(step.name)}"

    @property
    def all_shapes(self) -> Mapping[str, Lengths]:
        """The shapes of all tensors, by name."""
        return self._sources.shapes

    def requantization(self) -> Requantization:
        """Return how the step requantizes.

        Raises:
            Unsupported: C does not compute so.
        """
        return requantization_of(self.step.arithmetic)

    def shape(self, tensor: Tensor) -> Lengths:
        """Return the shape of a tensor of this step."""
        return self._sources.shapes[tensor.name]

    def size(self, tensor: Tensor) -> int:
        """Return how many elements a tensor has."""
        return math.prod(self.shape(tensor))

    def input(self, slot: int = 0) -> Tensor:
        """Return an input that must be there."""
        tensor = self.step.inputs[slot] if slot < len(self.step.inputs) else None
        if tensor is None:
            raise Unsupported(f"input {slot} is missing", "give the node that input")
        return tensor

    def optional(self, slot: int) -> Tensor | None:
        """Return an input that may be absent."""
        return self.step.inputs[slot] if slot < len(self.step.inputs) else None

    @property
    def output(self) -> Tensor:
        """The first output."""
        return self.step.outputs[0]

    def array(self, values: npt.ArrayLike, suffix: str, note: str) -> str:
        """Return the identifier of a constant array of this layer, of its own dtype."""
        return self._sources.constants.add(
            np.asarray(values), self._stem, suffix, f"{self.step.name}: {note}"
        )

    def pointer(self, tensor: Tensor) -> str:
        """Return an expression that points to a tensor's first element."""
        if tensor.data is not None:
            return self.array(tensor.data, "_constant", f"constant {tensor.name}")
        return self._sources.places.pointer(tensor.name)

    def params(self, structure: str, values: Mapping[str, int | Sequence[int]]) -> str:
        """Return an expression that points to a constant ``structure``_params of this layer."""
        name = self._sources.identifiers.unique(self._stem, "_params")
        # Every field is an int32, and an array has room for all axes.
        self._sources.structure_bytes += 4 * sum(map(_numbers, values.values()))
        fields = ",\n".join(f"    .{key} = {_value(value)}" for key, value in values.items())
        self._sources.structures.append(
            f"static const {structure}_params {name} = {{\n{fields},\n}};\n"
        )
        return f"&{name}"

    def call(self, name: str, *arguments: str | int, kind: Requantization | None = None) -> None:
        """Write a call of a kernel of the library."""
        self.call_function(self._sources.library.use(name, kind), *arguments)

    def call_elementwise(self, element: str, kind: Requantization | None, *arguments: str) -> None:
        """Write a call that applies a kernel of two elements to all of them."""
        library = self._sources.library
        self.call_function(library.use_elementwise(library.use(element, kind)), *arguments)

    def call_function(self, function: str, *arguments: str | int) -> None:
        """Write a call."""
        head = f"    {function}("
        lines, line = [], head
        for index, argument in enumerate(arguments):
            text = f"{argument}{');' if index == len(arguments) - 1 else ','}"
            if len(line) + len(text) + 1 > 100 and line != head:
                lines.append(line)
                line = " " * len(head) + text
            else:
                line += text if line.endswith(("(", " " * len(head))) else f" {text}"
        self._sources.calls += [*lines, line]

    def comment(self, text: str) -> None:
        """Write a comment."""
        self._sources.calls.append(f"    /* {comment(text)} */")


Writer: TypeAlias = Callable[[Layer], None]
"""Writes one layer; raises `Unsupported` where C has no kernel for it."""

WRITERS: Handlers[Writer] = Handlers("intact writes no {} as C")


def encoding_of(tensor: Tensor) -> Encoding:
    """Return the encoding of an int8 tensor with one scale.

    Raises:
        Unsupported: It is of another type, or has a scale for each channel.
    """
    encoding = tensor.encoding
    if encoding is None:
        # Two remedies: whole numbers have no scale that quantizing would find.
        if tensor.dtype.kind != "f":
            raise Unsupported(f"{tensor.name!r} is {tensor.dtype}", "cut the model behind it")
        raise Unsupported(f"{tensor.name!r} is float", "quantize what makes and reads it")
    if encoding.dtype != np.int8:
        raise Unsupported(
            f"{tensor.name!r} is {encoding.dtype}", "use a target with int8 activations"
        )
    if encoding.scale.size != 1 or encoding.zero_point.size != 1:
        raise Unsupported(f"{tensor.name!r} has a scale for each channel", "use one for the tensor")
    return encoding


def in_float(step: Step) -> Unsupported:
    """Return why a step with floats has no kernel."""
    remedy = "quantize it, or cut the model there and compute it in code of your own"
    if isinstance(step.operation, FloatNodes):
        types = sorted({node.op_type for node in step.operation.nodes} & EXPANSIONS.keys())
        if types:
            remedy = " ".join(["write it as simpler operators:", *(f"--expand {t}" for t in types)])
    return Unsupported("it computes in float", remedy)


def _value(value: int | Sequence[int]) -> str:
    if isinstance(value, int):
        return "INT32_MIN" if value == -(2**31) else str(value)
    # C99 has no empty initializer.
    return f"{{{', '.join(map(_value, value)) or '0'}}}"


def _numbers(value: int | Sequence[int]) -> int:
    """Return how many int32 a field takes."""
    return 1 if isinstance(value, int) else AXES


def image_of(lengths: Sequence[int]) -> tuple[int, int, int, int]:
    """Return ``[N, H, W, C]`` of a shape with one or two spatial axes."""
    if len(lengths) == 3:
        return lengths[0], 1, lengths[1], lengths[2]
    if len(lengths) != 4:
        raise Unsupported(f"it has {len(lengths) - 2} spatial axes", "C holds one or two")
    return lengths[0], lengths[1], lengths[2], lengths[3]


def plane_of(values: Sequence[int], missing: int) -> tuple[int, int]:
    """Return values by row and column, of one or two spatial axes."""
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])
