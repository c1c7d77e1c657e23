"""Weights that float nodes have as integers, as ONNX.

A Cast and a Mul stand before a recurrent operator, and no DequantizeLinear: ONNX Runtime computes
those once, when it loads the model, and packs the floats as those of a float model. A
DequantizeLinear it would compute in every run (measured for 128 cells and one step: 76 instead of
42 us). Tables are looked up in codes, and only the rows found become floats.
"""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir

from intact.errors import ExportError
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph, QuantPoint
from intact.plan.stored_weights import is_stored


class GatheredCodes(msgspec.Struct, frozen=True):
    """Where codes of a table are looked up.

    Attributes:
        codes: The codes that were found.
        indices: The indices.
        axis: Along which the table is indexed.
    """

    codes: str
    indices: str
    axis: int


def stored_readers(
    plan: QuantizedGraph, point: QuantPoint
) -> tuple[list[tuple[ir.Node, int]], list[tuple[ir.Node, int]]]:
    """Part the readers of a constant: float nodes that have it as integers, and all others."""
    parted: tuple[list[tuple[ir.Node, int]], list[tuple[ir.Node, int]]] = [], []
    for node, slot in point.readers:
        parted[0 if is_stored(plan.input_config(node, slot)) else 1].append((node, slot))
    return parted


def is_looked_up(node: ir.Node, slot: int) -> bool:
    """Tell whether a node reads rows of a constant only."""
    return node.op_type == "Gather" and slot == 0


class StoredWeights:
    """Adds what makes floats of the codes of one constant.

    Args:
        editor: The model that is edited.
        point: The quantized constant.
        codes: The initializer that holds its integers.
        is_apart: Put a Reshape that changes nothing behind the Cast of a whole constant. A runtime
            with integer kernels for what it sees as a compressed weight, and none for these nodes,
            takes it for no such weight then, and computes floats when it loads the model.
    """

    def __init__(
        self, editor: Editor, point: QuantPoint, codes: ir.Value, *, is_apart: bool = False
    ) -> None:
        if point.config.params is None:
            raise ExportError(f"{point.end} has no scale")
        self._editor = editor
        self._name = str(point.value.name)
        self._params = point.config.params
        self._axis = point.config.granularity.axis
        self._codes = codes
        self._is_apart = is_apart
        self._floats: ir.Value | None = None

    def read(self, node: str, slot: int) -> None:
        """Let a node read the whole constant as floats."""
        if self._floats is None:
            shape = self._codes.shape if self._is_apart else None
            self._floats = self._in_floats(self._codes, self._parameters(), self._name, shape)
        self._editor.redirect(self._editor.value(self._name), self._floats, [(node, slot)])

    def look_up(self, name: str) -> GatheredCodes:
        """Let a Gather look rows up in codes, which become floats behind it.

        The scales are those of the rows, if there is more than one.
        """
        node, parameters = self._editor.nodes_by_name[name], self._parameters()
        indices, axis = node.inputs[1], node.attributes.get_int("axis", 0) % self._rank
        if indices is None:
            raise ExportError(f"{name} has no indices")
        codes = self._gather(self._codes, indices, axis, f"{name}_codes")
        if self._axis is not None:
            parameters = {
                part: self._gather(value, indices, 0, f"{name}_{part}")
                for part, value in parameters.items()
            }
        self._editor.put_in_place(node, self._in_floats(codes, parameters, name))
        return GatheredCodes(str(codes.name), str(indices.name), axis)

    def _parameters(self) -> dict[str, ir.Value]:
        """Store scale and, where it is not 0, zero point as floats.

        One for each channel has as many further axes as lie behind the channels, so that they
        broadcast: against the constant, and looked up against what is looked up in it.
        """
        numbers = {"scale": self._params.scale}
        if np.any(self._params.zero_point):
            numbers["zero_point"] = self._params.zero_point.astype(np.float32)
        shape = () if self._axis is None else (-1, *(1,) * (self._rank - 1 - self._axis))
        return {
            part: self._editor.initializer(
                f"{self._name}_{part}", np.asarray(array, np.float32).reshape(shape)
            )
            for part, array in numbers.items()
        }

    def _gather(self, data: ir.Value, indices: ir.Value, axis: int, name: str) -> ir.Value:
        kind = data.dtype or ir.DataType.FLOAT
        return self._editor.node("Gather", [data, indices], name, {"axis": axis}, kind)

    def _in_floats(
        self,
        codes: ir.Value,
        parameters: dict[str, ir.Value],
        name: str,
        reshaped: ir.Shape | None = None,
    ) -> ir.Value:
        """Compute ``(codes - zero point) * scale``, as DequantizeLinear does."""
        attributes = {"to": int(ir.DataType.FLOAT)}
        value = self._editor.node("Cast", [codes], f"{name}_cast", attributes, shape=codes.shape)
        if reshaped is not None:
            lengths = np.asarray(reshaped.numpy(), np.int64)
            lengths_of = self._editor.initializer(f"{name}_lengths", lengths)
            value = self._editor.node("Reshape", [value, lengths_of], f"{name}_apart")
        if "zero_point" in parameters:
            inputs = [value, parameters["zero_point"]]
            value = self._editor.node("Sub", inputs, f"{name}_centered", shape=codes.shape)
        inputs = [value, parameters["scale"]]
        return self._editor.node("Mul", inputs, f"{name}_floats", shape=codes.shape)

    @property
    def _rank(self) -> int:
        return 0 if self._codes.shape is None else len(self._codes.shape)
