"""``Draft``: the layers of an ncnn model while they are collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.ncnn.names import Words
from intact.formats.ncnn.shapes import Parameter, Sample, lengths, present
from intact.graph import constant_array, is_constant


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
            Unsupported: It is a constant, or absent.
        """
        value = present(node, slot)
        if is_constant(value):
            raise Unsupported(f"its input {slot} is a constant")
        return self.blob(value)

    def constant(self, value: ir.Value, shape: Sample) -> str:
        """Return the blob of a constant in some shape, which is stored where first asked for."""
        array = constant_array(value)
        if array is None or array.dtype != np.float32:
            raise Unsupported(f"{value.name!r} is no constant of float32")
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

    def output(self, value: ir.Value) -> str:
        """Return the blob of an output; of an input it is another, or its layer would have two."""
        blob = self.blob(value)
        if not value.is_graph_input():
            return blob
        copy = self._blob_names.unique(f"{value.name}_output")
        self.emit("Noop", copy, [blob], [copy])
        return copy

    def split(self, wanted: Collection[str]) -> list[Layer]:
        """Return the layers with a ``Split`` behind each blob that is read more than once.

        Args:
            wanted: Outputs of the model, which keep their names.
        """
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


def reshape(draft: Draft, name: str, bottom: str, top: str, shape: Sample) -> None:
    """Add a layer that gives a blob another shape."""
    draft.emit("Reshape", name, [bottom], [top], lengths(shape))


def floats(array: npt.ArrayLike) -> bytes:
    """Return numbers as the ``.bin`` holds them: float32, little-endian."""
    return np.ascontiguousarray(array, "<f4").tobytes()
