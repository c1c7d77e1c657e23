"""The calibration cache and the ranges beside a model for TensorRT: do they say what it says?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from intact.errors import DataError
from intact.formats.tensorrt.read import parse_cache, parse_ranges
from intact.formats.tensorrt.write import CACHE_FILE, RANGES_FILE
from intact.graph import Graph
from intact.plan.given_scales import ScaleTable
from intact.verification.quantizer_pairs import (
    DEQUANTIZE,
    QUANTIZE,
    SATURATIONS,
    constant_behind,
    scale_of,
    tensor_name,
)


@dataclass(frozen=True)
class WrittenModel:
    """The files of one model.

    Attributes:
        model: The ONNX model with Quantize and Dequantize nodes.
        tables: The calibration cache and the ranges, by file name.
        graph: The float model, which the tables are about.
    """

    model: ir.Model
    tables: Mapping[str, bytes]
    graph: Graph

    def quantizers(self) -> Iterator[ir.Node]:
        """Yield the Quantize and Dequantize nodes."""
        yield from (node for node in self.model.graph if node.op_type in (QUANTIZE, DEQUANTIZE))

    def known(self) -> frozenset[str]:
        """Return the names of the float model's tensors."""
        return frozenset(str(value.name) for value in self.graph.values)

    def scales_by_tensor(self) -> dict[str, set[bytes]]:
        """Return the bits of the scales of each activation, by its name in the float model.

        Names with a line break are left out: no table has them.
        """
        known, found = self.known(), dict[str, set[bytes]]()
        for node in self.quantizers():
            scale = scale_of(node)
            if node.op_type == QUANTIZE and scale is not None and constant_behind(node) is None:
                name = self._behind_left_out(tensor_name(node, known))
                found.setdefault(name, set()).add(scale.tobytes())
        return {name: scales for name, scales in found.items() if not {"\n", "\r"} & set(name)}

    def _behind_left_out(self, name: str) -> str:
        """Return the tensor that stands in a tensor's place in the float model.

        A writer leaves a Relu or Clip out where the quantiser behind it clips as far.
        """
        kept = {str(node.name) for node in self.model.graph}
        while name in self.known():
            readers = self.graph.consumers(self.graph.value(name))
            if len(readers) != 1 or readers[0][0].op_type not in SATURATIONS:
                break
            (reader, _) = readers[0]
            if str(reader.name) in kept:
                break
            name = str(reader.outputs[0].name)
        return name


def table_names(written: WrittenModel) -> Iterator[str]:
    """Yield what the tables name and the float model has not."""
    known = written.known()
    for file, table in _tables(written):
        if isinstance(table, str):
            yield table
            continue
        yield from (f"{file}: {name!r}" for name in table.scales if name not in known)


def table_scales(written: WrittenModel) -> Iterator[str]:
    """Yield the tensors of which tables and model have different scales."""
    in_model = written.scales_by_tensor()
    for file, table in _tables(written):
        if isinstance(table, str):
            continue
        for name, given in table.scales.items():
            if in_model.get(name, set()) != {given.scale.tobytes()}:
                yield f"{file}: {name!r}"
        single = (name for name, scales in in_model.items() if len(scales) == 1)
        yield from (f"{file}: lacks {name!r}" for name in single if name not in table)


def _tables(written: WrittenModel) -> Iterator[tuple[str, ScaleTable | str]]:
    """Yield both tables by file name; in the place of one that cannot be read, the reason.

    Of a model without quantised activations there are none: an empty table is no table.
    """
    if not written.scales_by_tensor():
        return
    for file, parse in ((CACHE_FILE, parse_cache), (RANGES_FILE, parse_ranges)):
        try:
            yield file, parse(written.tables[file], file)
        except DataError as error:
            yield file, str(error)
