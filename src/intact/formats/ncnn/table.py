"""Writes and reads ncnn's calibration table, as ``ncnn2table`` and ``ncnn2int8`` do.

First a line ``NAME_param_0 s0 s1 ...`` for the weights of each layer, then a line ``NAME s`` for
its input: reciprocals of scales (127 / absmax), ``%f``, separated by spaces. A ``#`` in front of a
line keeps its layer float.

The six decimals of ``%f`` round what stands in the ``.bin`` with all its bits: a model that
``ncnn2int8`` makes with the table can differ from that in the last digits of its scales.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import DataError, IntactError, nearest
from intact.formats.ncnn.model import word
from intact.graph import Graph, input_value, is_constant
from intact.plan.given_scales import GivenScale, ScaleTable, refuse_too_many

_WEIGHTS = "_param_0"
_FIRST = re.compile(rb"^#?[!-~]+_param_0[ \t]", re.MULTILINE)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)")
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_REMEDY = "give a table as ncnn2table wrote"


class TableEntry(NamedTuple):
    """One quantized layer: reciprocals of its scales."""

    layer: str
    weights: npt.NDArray[np.float32]
    data: float


class _Line(NamedTuple):
    place: str
    layer: str
    is_weight: bool
    reciprocals: list[float]


def table_text(entries: Iterable[TableEntry]) -> str:
    """Format a table of layers, in their order."""
    entries = list(entries)
    lines = [
        " ".join([f"{each.layer}{_WEIGHTS}", *(f"{number:f}" for number in each.weights.tolist())])
        for each in entries
    ]
    # Weights of all layers first, then their inputs, as ncnn2table writes them.
    lines += [f"{each.layer} {each.data:f}" for each in entries]
    return "".join(f"{line}\n" for line in lines)


def is_ncnn_table(data: bytes) -> bool:
    """Tell whether a file can only be a table of ncnn's: a line of it has a layer's weights."""
    return _FIRST.search(data) is not None


def parse_ncnn_table(data: bytes, source: str, graph: Graph | None) -> ScaleTable:
    """Read a table of the layers of a model.

    Args:
        data: The file's bytes.
        source: What to call it in messages.
        graph: The model, of which nodes are called as the table's layers are.

    Raises:
        DataError: There is no model, as a table names layers and scales belong to tensors; or
            with the number of the line that is wrong, or that names no layer.
    """
    if graph is None:
        raise DataError(
            f"{source}: a table of ncnn names layers of a model, and there is none here",
            remedy="give the scales together with their model",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: not a text file", remedy=_REMEDY) from error
    refuse_too_many(source, text.count("\n"))
    # By the words that names became when the table was written.
    nodes = {word(str(node.name)): node for node in graph.nodes if node.op_type in _PRODUCTS}
    left_out: Counter[str] = Counter()
    found: list[tuple[str, str, GivenScale]] = []
    for line in _lines(text, source, left_out):
        found.append((line.place, _tensor(line, nodes, source), _scale(line, source)))
    return ScaleTable.of(source, found, left_out)


def _tensor(line: _Line, nodes: Mapping[str, ir.Node], source: str) -> str:
    """Find the tensor that a line is about."""
    node = nodes.get(line.layer)
    if node is None:
        raise DataError(
            f"{source}: {line.place}: the model has no convolution or dense layer {line.layer!r}",
            remedy=nearest(line.layer, nodes),
        )
    value = input_value(node, 1 if line.is_weight else 0)
    # A product of two activations has no weight, and a constant no range to be given.
    if value is None or line.is_weight != is_constant(value):
        raise DataError(
            f"{source}: {line.place}: {line.layer!r} has no such operand",
            remedy="take the line out",
        )
    return str(value.name)


def _lines(text: str, source: str, left_out: Counter[str]) -> Iterator[_Line]:
    for number, raw in enumerate(text.split("\n"), start=1):
        words = raw.split()
        if not words:
            continue
        if words[0].startswith("#"):
            left_out["commented out, which keeps a layer float in ncnn"] += 1
            continue
        place = f"line {number}"
        if len(words) < 2 or not all(map(_NUMBER.fullmatch, words[1:])):
            raise DataError(
                f"{source}: {place}: neither 'NAME s' nor 'NAME{_WEIGHTS} s s ...': {raw[:60]!r}",
                remedy=_REMEDY,
            )
        is_weight = words[0].endswith(_WEIGHTS)
        layer = words[0].removesuffix(_WEIGHTS)
        yield _Line(place, layer, is_weight, [float(each) for each in words[1:]])


def _scale(line: _Line, source: str) -> GivenScale:
    try:
        if 0.0 in line.reciprocals:
            raise DataError("a scale is 0", remedy="correct it, or take the layer out")
        scales = [1.0 / number for number in line.reciprocals]
        return GivenScale.of(scales if line.is_weight else scales[0])
    except IntactError as error:
        raise DataError(f"{source}: {line.place}: {line.layer!r}: {error}") from error
