"""``Draft``: the layers of an ncnn model while they are collected.

ncnn computes one sample at a time: its blobs lack the batch, which is axis 0 of the ONNX model.
What is left has one to four axes, in the order of ONNX.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.formats.ncnn.names import Words
from intact.graph import constant_array, is_constant

Parameter: TypeAlias = int | float | tuple[int, ...] | tuple[float, ...]
Sample: TypeAlias = tuple[int, ...]
"""The shape of one sample: that of the value without its batch."""

_MOST_AXES = 4


class RefusedError(Exception):
    """A node that ncnn cannot hold; the text says why."""


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        kind: ncnn's name of it.
        name: Its own.
        bottoms: The blobs that it reads.
        tops: The blobs that it makes.
        parameters: By ncnn's number of each; lists are written under ``-23300 - number``.
        data: Its part of the ``.bin``.
    """

    kind: str
    name: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    parameters: dict[int, Parameter]
    data: bytes = b""

    @property
    def outputs(self) -> int:
        """The parameter that counts the outputs of a product."""
        count = self.parameters.get(0)
        return count if isinstance(count, int) else 0

    def line(self) -> str:
        """Return its line of the ``.param``."""
        counts = f"{self.kind:<24} {self.name:<24} {len(self.bottoms)} {len(self.tops)}"
        texts = [_parameter(key, value) for key, value in self.parameters.items()]
        return " ".join([counts, *self.bottoms, *self.tops, *texts])


def _parameter(key: int, value: Parameter) -> str:
    if isinstance(value, tuple):
        return f"{-23300 - key}={','.join([str(len(value)), *map(_number, value)])}"
    return f"{key}={_number(value)}"


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9e}"


class Draft:
    """Collects layers; values of the model are blobs of the same name, as far as ncnn can read it.

    Attributes:
        layers: What was emitted, in order.
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self._blobs: dict[ir.Value, str] = {}
        self._constants: dict[tuple[ir.Value, Sample], str] = {}
        self._blob_names, self._layer_names = Words(), Words()

    def blob(self, value: ir.Value) -> str:
        """Return how a value is called."""
        if value not in self._blobs:
            self._blobs[value] = self._blob_names.unique(str(value.name))
        return self._blobs[value]

    def inner(self, value: ir.Value) -> str:
        """Return the name of a new blob that is needed on the way to a value."""
        return self._blob_names.unique(f"{value.name}_part")

    def read(self, node: ir.Node, slot: int) -> str:
        """Return the blob of an input that is computed.

        Raises:
            RefusedError: It is a constant, or absent.
        """
        value = present(node, slot)
        if is_constant(value):
            raise RefusedError(f"its input {slot} is a constant")
        return self.blob(value)

    def constant(self, value: ir.Value, shape: Sample) -> str:
        """Return the blob of a constant in some shape, which is stored where first asked for."""
        array = constant_array(value)
        if array is None or array.dtype != np.float32:
            raise RefusedError(f"{value.name!r} is no constant of float32")
        key = value, shape
        if key not in self._constants:
            blob = self._blob_names.unique(str(value.name))
            self._constants[key] = blob
            name = self._layer_names.unique(blob)
            parameters = lengths(shape)
            self.layers.append(Layer("MemoryData", name, (), (blob,), parameters, floats(array)))
        return self._constants[key]

    def emit(
        self,
        kind: str,
        name: str,
        bottoms: Sequence[str],
        tops: Sequence[str],
        parameters: dict[int, Parameter] | None = None,
        data: bytes = b"",
    ) -> Layer:
        """Add a layer; return it with the name that it has."""
        layer = Layer(
            kind,
            self._layer_names.unique(name),
            tuple(bottoms),
            tuple(tops),
            parameters or {},
            data,
        )
        self.layers.append(layer)
        return layer

    def unary(
        self,
        kind: str,
        node: ir.Node,
        parameters: dict[int, Parameter] | None = None,
        data: bytes = b"",
    ) -> Layer:
        """Add the layer of a node with one input and one output."""
        bottom, top = self.read(node, 0), self.blob(node.outputs[0])
        return self.emit(kind, str(node.name), [bottom], [top], parameters, data)

    def split(self, outputs: Sequence[ir.Value]) -> list[Layer]:
        """Return the layers with a ``Split`` behind each blob that is read more than once.

        A blob that is an output of the model keeps its name.
        """
        wanted = {self.blob(value) for value in outputs}
        reads = Counter(blob for layer in self.layers for blob in layer.bottoms)
        copies: dict[str, list[str]] = {}
        result: list[Layer] = []
        for layer in self.layers:
            bottoms = [copies[blob].pop() if blob in copies else blob for blob in layer.bottoms]
            tops, splits = list(layer.tops), []
            for k, blob in enumerate(layer.tops):
                count = reads[blob]
                if count + (blob in wanted) < 2:
                    continue
                names = [self._blob_names.unique(f"{blob}_splitncnn_{n}") for n in range(count)]
                copies[blob] = names[::-1]
                if blob in wanted:
                    tops[k] = self._blob_names.unique(f"{blob}_whole")
                    names = [blob, *names]
                splits.append((tops[k], names))
            result.append(replace(layer, bottoms=tuple(bottoms), tops=tuple(tops)))
            for source, names in splits:
                name = self._layer_names.unique(f"splitncnn_{source}")
                result.append(Layer("Split", name, (source,), tuple(names), {}))
        return result


Write: TypeAlias = Callable[[Draft, ir.Node], object]
"""Adds the layers of one node."""


def present(node: ir.Node, slot: int) -> ir.Value:
    """Return an input.

    Raises:
        RefusedError: It is absent.
    """
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is None:
        raise RefusedError(f"its input {slot} is absent")
    return value


def rank_of(value: ir.Value) -> int:
    """Return the number of axes, batch included.

    Raises:
        RefusedError: It is not known.
    """
    if value.shape is None:
        raise RefusedError(f"the shape of {value.name!r} is not known")
    return len(value.shape)


def sample(value: ir.Value) -> Sample:
    """Return the shape of one sample of an activation.

    Raises:
        RefusedError: A length is not known, or as `known_lengths` says.
    """
    shape = known_lengths(value)
    known = tuple(size for size in shape if size is not None)
    if len(known) != len(shape):
        raise RefusedError(f"a length of {value.name!r} is not known")
    return known


def known_lengths(value: ir.Value) -> tuple[int | None, ...]:
    """Return the shape of one sample of an activation, None for what the model leaves open.

    Raises:
        RefusedError: The batch is fixed at more than one sample, or there are more axes than a
            blob has.
    """
    rank = rank_of(value)
    shape = [size if isinstance(size, int) else None for size in value.shape or ()]
    if not 2 <= rank <= _MOST_AXES + 1:
        raise RefusedError(f"{value.name!r} has {rank} axes; a batch and 1 to 4 more can be held")
    if shape[0] not in (None, 1):
        raise RefusedError(f"{value.name!r} holds {shape[0]} samples, ncnn takes one at a time")
    return tuple(shape[1:])


def lengths(shape: Sample) -> dict[int, Parameter]:
    """Return the parameters that say a shape: ``w``, ``h``, ``d`` and ``c``, the last axis first.

    Raises:
        RefusedError: There are more than four axes, or none.
    """
    numbers = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}
    if len(shape) not in numbers:
        raise RefusedError(f"a sample with {len(shape)} axes cannot be held")
    return dict(sorted(zip(numbers[len(shape)], shape, strict=True)))


def reshape(draft: Draft, name: str, bottom: str, top: str, shape: Sample) -> None:
    """Add a layer that gives a blob another shape."""
    draft.emit("Reshape", name, [bottom], [top], lengths(shape))


def same_size(first: Sample, second: Sample) -> bool:
    """Tell whether two samples hold as many elements."""
    return math.prod(first) == math.prod(second)


def floats(array: npt.ArrayLike) -> bytes:
    """Return numbers as the ``.bin`` holds them: float32, little-endian."""
    return np.ascontiguousarray(array, "<f4").tobytes()
