"""Separates what a model file says of shapes into facts and claims, which may be wrong.

The shapes of a model's own inputs are facts: they define what it takes. Those of all other tensors
follow from them, and exporters are known to write them wrongly: an output of shape
``[1, 'seqlen']`` that really has three axes, or -1 for what is not known. Runtimes only warn of
that. Nothing may be folded because of such a claim, so shapes are always inferred anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.names import Names
from intact.graph.traversal import all_nodes

_BATCH = "batch"
"""Name of an open first axis: samples run along it, as many of each input."""

_MADE_UP = re.compile(r"unk__\d+")
"""What ONNX shape inference calls an axis of which it knows nothing."""

_PLACEHOLDERS = frozenset({"none", "unknown"})
"""Names that exporters write, in some case, for several axes of which they know nothing."""


def forget_claims(model: ir.Model) -> None:
    """Forget the shapes of all tensors but constants and the inputs of the graph and of bodies.

    Open axes of the inputs get names, as what is inferred refers to them by name. Element types
    stay: a runtime refuses a model in which they are wrong.
    """
    for node in all_nodes(model):
        for value in node.outputs:
            value.shape = None
    _name_open_axes(model.graph)


def forget_made_up_names(model: ir.Model) -> None:
    """Forget names of axes of the outputs that shape inference made up: they say nothing to users.

    Inside they stay, where they tell which axes are of the same length.
    """
    # An input may really have a name of that form, which says something then.
    own = set(_named_dims([value.shape for value in model.graph.inputs if value.shape is not None]))
    for value in model.graph.outputs:
        if value.shape is not None and value not in model.graph.inputs:
            value.shape = ir.Shape(
                [None if _is_made_up(dim) and dim not in own else dim for dim in value.shape]
            )


def forget_made_up_shapes(model: ir.Model) -> None:
    """Forget the shapes with axes of which shape inference knew nothing, to infer them anew."""
    own = set(_named_dims([value.shape for value in model.graph.inputs if value.shape is not None]))
    for node in all_nodes(model):
        for value in node.outputs:
            if any(_is_made_up(dim) and dim not in own for dim in value.shape or ()):
                value.shape = None


def _is_made_up(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and bool(_MADE_UP.fullmatch(dim.value or ""))


def _name_open_axes(graph: ir.Graph) -> None:
    """Name the axes of inputs that are stored as -1, or as a name that means nothing.

    Paddle's exporter calls every open axis ``?``: they are not one and the same.
    """
    inputs = [value for value in graph.inputs if not value.is_initializer() and value.shape]
    shapes = [shape for value in inputs if (shape := value.shape) is not None]
    names = Names(dim.value for dim in _named_dims(shapes))
    batch = ""
    for value, shape in zip(inputs, shapes, strict=True):
        for axis, dim in enumerate(shape):
            if not _is_open(dim):
                continue
            if axis == 0:
                # One name for the first axes of all inputs: as many samples come in at each.
                batch = batch or names.fresh(_BATCH)
            name = batch if axis == 0 else names.fresh(f"{value.name}_{axis}")
            shape = ir.Shape([*shape[:axis], name, *shape[axis + 1 :]])  # noqa: PLW2901
        value.shape = shape


def _named_dims(shapes: list[ir.Shape]) -> Iterator[ir.SymbolicDim]:
    for shape in shapes:
        yield from (dim for dim in shape if not isinstance(dim, int) and dim.value is not None)


def _is_open(dim: int | ir.SymbolicDim) -> bool:
    """Tell whether a length is not given, and has no name that tells it from others."""
    if isinstance(dim, int):
        return dim == -1
    name = dim.value
    if name is None:
        return False
    return name.lower() in _PLACEHOLDERS or not any(map(str.isalpha, name))
