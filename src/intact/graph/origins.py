"""Stores which tensors of a PyTorch module an exported model's constants were made of.

Exporters transpose weights, join them and reorder their gates, and name the results themselves.
What a constant's elements were in the module is metadata of the model, so that it holds in a
result's folder too. Models that were not exported from a module have none of it.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.files.save import GIVEN_BYTES_KEY
from intact.graph.given_nodes import METADATA_KEY as GIVEN_NODES_KEY
from intact.graph.metadata import metadata_of, set_metadata
from intact.graph.traversal import nodes_of

METADATA_KEY = "intact.origins"

Indices = npt.NDArray[np.int64]

_STORED = np.dtype("<i4")
_MOST = 2**31 - 1


class Origins(msgspec.Struct, frozen=True):
    """Origins of constants.

    The elements of all tensors of the module are numbered, tensor after tensor.

    Attributes:
        shapes: Shapes of the float tensors in the module's state, by name.
        layouts: What `packed` made of the numbers of a constant's elements, by the name of the
            constant; those that are a tensor of the module as it is are left out.
        changed: Constants that have a tensor's name but no longer its values.
        fixed: Constants that the module computes from no tensor of its state.
    """

    shapes: Mapping[str, tuple[int, ...]]
    layouts: Mapping[str, str] = {}
    changed: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()

    @property
    def starts(self) -> dict[str, int]:
        """The number of the first element of each tensor."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            found[name] = start
            start += math.prod(shape)
        return found

    @property
    def size(self) -> int:
        """The elements of all tensors."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def indices(self, name: str, shape: tuple[int, ...]) -> Indices | None:
        """Return the numbers of a constant's elements, ``[elements]``; None for unknown ones.

        Args:
            name: The constant's name.
            shape: Its shape now: what was rearranged since the export has no origin.

        Raises:
            ModelError: The metadata of it is damaged.
        """
        count = math.prod(shape)
        if name in self.layouts:
            try:
                return unpacked(self.layouts[name], count, self.size)
            except ValueError:
                raise ModelError(
                    f"the model's metadata {METADATA_KEY!r} of {name!r} cannot be read",
                    remedy="remove that entry, or quantize the module again",
                ) from None
        if name in self.changed or self.shapes.get(name) != shape:
            return None
        start = self.starts[name]
        return np.arange(start, start + count)


def packed(indices: npt.NDArray[np.integer[Any]]) -> str:
    """Write numbers below 2**31 as text: their differences, compressed."""
    flat = indices.reshape(-1).astype(_STORED)
    # Elements mostly follow one another, so that differences compress to almost nothing.
    differences = np.diff(flat, prepend=_STORED.type(0)).astype(_STORED)
    return base64.b64encode(zlib.compress(differences.tobytes(), 1)).decode()


def unpacked(text: str, count: int, size: int) -> Indices:
    """Read what `packed` wrote.

    Args:
        text: What `packed` wrote.
        count: How many numbers it holds.
        size: They are less than this.

    Raises:
        ValueError: It holds something else.
    """
    reader = zlib.decompressobj()
    wanted = count * _STORED.itemsize
    try:  # one more byte than wanted tells too much apart, whatever it would decompress to
        data = reader.decompress(base64.b64decode(text, validate=True), wanted + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(data) != wanted:
        raise ValueError(f"{len(data)} bytes instead of {wanted}")
    indices = np.cumsum(np.frombuffer(data, _STORED), dtype=np.int64)
    if indices.size and not 0 <= indices.min() <= indices.max() < size:
        raise ValueError("numbers of no element")
    return indices


def set_origins(model: ir.Model, origins: Origins) -> None:
    """Store origins in a model, which is changed."""
    stored = {
        "shapes": {name: list(shape) for name, shape in origins.shapes.items()},
        "layouts": dict(origins.layouts),
        "changed": sorted(origins.changed),
        "fixed": sorted(origins.fixed),
    }
    set_metadata(model, METADATA_KEY, stored)


def bare(model: ir.Model) -> ir.Model:
    """Drop what no runtime reads: origins, names of the given model's nodes and its size,
    exporters' traces, remembered BatchNormalizations.

    Args:
        model: To be deployed; it is changed.
    """
    for key in (METADATA_KEY, GIVEN_NODES_KEY, GIVEN_BYTES_KEY):
        model.metadata_props.pop(key, None)
    for node in nodes_of(model.graph):
        node.metadata_props.clear()
        node.doc_string = None
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    return model


def origins_of(model: ir.Model) -> Origins | None:
    """Return the origins of a model's constants; None where it was not exported from a module.

    Raises:
        ModelError: The metadata does not hold what `set_origins` writes.
    """
    return metadata_of(model, METADATA_KEY, _read, None)


def _read(stored: Any) -> Origins | None:
    try:
        found = msgspec.convert(stored, Origins)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    lengths = [length for shape in found.shapes.values() for length in shape]
    if min(lengths, default=0) < 0 or found.size > _MOST:
        raise ValueError("impossible shapes")
    return found
