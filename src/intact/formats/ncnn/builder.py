"""Collects the layers of an ncnn model under construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.ncnn.model import Parameter, Sample, WrittenProduct, lengths, word
from intact.formats.ncnn.table import TableEntry
from intact.graph.names import Names
from intact.program import Step, Tensor
from intact.program.handlers import Handlers


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

    def line(self) -> str:
        """Format its line of the ``.param``."""
        counts = f"{self.kind:<24} {self.name:<24} {len(self.bottoms)} {len(self.tops)}"
        texts = [_parameter(key, value) for key, value in self.parameters.items()]
        return " ".join([counts, *self.bottoms, *self.tops, *texts])


def _parameter(key: int, value: Parameter) -> str:
    if isinstance(value, tuple):
        # ncnn tells an array by a key of -23300 and below, and reads its length first.
        return f"{-23300 - key}={','.join([str(len(value)), *map(_number, value)])}"
    return f"{key}={_number(value)}"


def _number(value: int | float) -> str:
    # ncnn knows a float by its point or exponent; ten digits give every float32 back.
    return str(value) if isinstance(value, int) else f"{value:.9e}"


class NcnnBuilder:
    """Collects layers.

    A value of the model is a blob of the same name, as far as ncnn can read it. All forms of a
    value are that one blob: ncnn's int8 layers read and write floats, and its axes are the model's.

    Attributes:
        layers: The layers, in order.
        blobs: Name of each blob, by the value's name.
        products: Convolutions and dense layers, by name of the node.
        entries: Rows of the calibration table.
        wide: Convolutions whose sums may exceed what Winograd's algorithm holds.
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.blobs: dict[str, str] = {}
        self.products: dict[str, WrittenProduct] = {}
        self.entries: list[TableEntry] = []
        self.wide: list[str] = []
        self._constants: dict[tuple[str, Sample], str] = {}
        self._blob_names, self._layer_names = Names(), Names()

    def blob(self, tensor: Tensor) -> str:
        """Name the blob of a tensor."""
        if tensor.value not in self.blobs:
            self.blobs[tensor.value] = self._new_blob(tensor.value)
        return self.blobs[tensor.value]

    def inner(self, tensor: Tensor) -> str:
        """Name a new blob that is needed on the way to a tensor."""
        return self.inner_of(tensor.value)

    def inner_of(self, name: str) -> str:
        """Name a new blob that is needed on the way to one of that name."""
        return self._new_blob(f"{name}_part")

    def read(self, step: Step, slot: int = 0) -> str:
        """Name the blob of an input that is computed.

        Raises:
            Unsupported: It is a constant.
        """
        tensor = input_of(step, slot)
        if tensor.is_constant:
            raise Unsupported(f"its input {slot} is a constant")
        return self.blob(tensor)

    def constant(self, tensor: Tensor, shape: Sample) -> str:
        """Name the blob of a constant in some shape, which is stored at its first use.

        Raises:
            Unsupported: It is not of float32.
        """
        if tensor.data is None or tensor.data.dtype != np.float32:
            raise Unsupported(f"{tensor.value!r} is no constant of float32")
        # By shape too: a blob has one, and readers may want several.
        key = tensor.value, shape
        if key not in self._constants:
            blob = self._constants[key] = self._new_blob(tensor.value)
            self.emit("MemoryData", blob, [], [blob], lengths(shape), floats(tensor.data))
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
        """Add a layer; its name is made unique."""
        name = self._new_layer(name)
        layer = Layer(kind, name, tuple(bottoms), tuple(tops), parameters or {}, data)
        self.layers.append(layer)
        return layer

    def unary(
        self,
        kind: str,
        step: Step,
        parameters: dict[int, Parameter] | None = None,
        data: bytes = b"",
    ) -> Layer:
        """Add the layer of a step with one computed input and one output."""
        bottom, top = self.read(step), self.blob(step.outputs[0])
        return self.emit(kind, name_of(step), [bottom], [top], parameters, data)

    def reshape(self, name: str, bottom: str, top: str, shape: Sample) -> None:
        """Add a layer that gives a blob another shape."""
        self.emit("Reshape", name, [bottom], [top], lengths(shape))

    def output(self, name: str, tensor: Tensor, inputs: Collection[str]) -> str:
        """Name the blob of a model's output.

        An input, or a value of another name, is copied: a blob has one layer that writes it.

        Args:
            name: In the model.
            tensor: What it is.
            inputs: Names of the model's inputs.
        """
        blob = self.blob(tensor)
        if tensor.value not in inputs and tensor.value == name:
            return blob
        # A Noop, which ncnn runs in place: no value is moved.
        copy = self._new_blob(f"{name}_output" if tensor.value == name else name)
        self.emit("Noop", copy, [blob], [copy])
        return copy

    def split(self, wanted: Collection[str]) -> list[Layer]:
        """List the layers with a ``Split`` behind each blob that is read more than once.

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
                # A blob of ncnn has one reader; being an output of the model is one too.
                if count + (blob in wanted) < 2:
                    continue
                names = [self._new_blob(f"{blob}_splitncnn_{n}") for n in range(count)]
                # Taken from the end, so that readers get them in order.
                copies[blob] = names[::-1]
                if blob in wanted:
                    tops[k] = self._new_blob(f"{blob}_whole")
                    names = [blob, *names]
                splits.append((tops[k], names))
            result.append(replace(layer, bottoms=tuple(bottoms), tops=tuple(tops)))
            for source, names in splits:
                name = self._new_layer(f"splitncnn_{source}")
                result.append(Layer("Split", name, (source,), tuple(names), {}))
        return result

    def _new_blob(self, name: str) -> str:
        return self._blob_names.fresh(word(name))

    def _new_layer(self, name: str) -> str:
        return self._layer_names.fresh(word(name))


Write: TypeAlias = Callable[[Any, Step, NcnnBuilder], None]
"""Adds the layers of one step, whose operation comes first; raises Unsupported."""

WRITERS: Handlers[Write] = Handlers("intact writes no {} for ncnn")


def name_of(step: Step) -> str:
    """Name the node that a step computes."""
    return step.nodes[0]


def input_of(step: Step, slot: int = 0) -> Tensor:
    """Look up an input.

    Raises:
        Unsupported: It is absent.
    """
    tensor = step.inputs[slot] if slot < len(step.inputs) else None
    if tensor is None:
        raise Unsupported(f"its input {slot} is absent")
    return tensor


def floats(array: npt.ArrayLike) -> bytes:
    """Encode numbers as the ``.bin`` holds them: float32, little-endian."""
    return np.ascontiguousarray(array, "<f4").tobytes()
