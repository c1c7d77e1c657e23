"""Normalization: one shape of graph for everything that comes after."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.files.load import load_model
from intact.graph.graph import Graph
from intact.graph.passes import library
from intact.graph.passes.canonical import (
    MOST_FILLED,
    fill_weights,
    pool_spatial_means,
    write_sums_as_adds,
)
from intact.graph.passes.fold_linear import fold_batch_norms, fold_scales
from intact.graph.passes.gemm import join_dense_layers, plain_gemms
from intact.graph.passes.names import make_names_unique, protected_names
from intact.graph.passes.no_ops import remove_no_ops
from intact.graph.passes.types import ask_runtime, infer_types
from intact.graph.passes.widen import widen_floats

_log = logging.getLogger(__name__)

_LONGEST_REASON = 200
"""Characters of what a library says, which may print a whole graph."""

_MOST_ROUNDS = 10
"""Folding enables rules and rules enable folding; three rounds settle every model seen so far."""


def normalize(source: str | Path | onnx.ModelProto | ir.Model) -> Graph:
    """Bring a model into the form that the rest of `intact` works on.

    Afterwards every node and value has a name of its own (the model's where it had one), constants
    are initializers, shapes and types are known as far as they can be, what is constant is
    computed, no-ops are gone, BatchNormalization and other constants by channel are part of the
    convolution before them, a dense layer is one Gemm, a Sum of two an Add, and a mean over all
    spatial axes a GlobalAveragePool. What was float16 or bfloat16 computes in float32
    (see `intact.graph.passes.widen`). The opset, the graph inputs and outputs, dynamic
    dimensions and the model's results are as before (up to float rounding where BatchNormalization
    was folded). A tensor name that survives stands for the same numbers as in the source.
    Operators that are not known, functions and the bodies of If and Loop are not touched.

    Args:
        source: A path, or a loaded model; that is never changed.

    Raises:
        ModelError: The model cannot be read (see `intact.graph.files.load.load_model`), has a cycle
            or no inputs.
    """
    model = load_model(source)
    library.sort_nodes(model)
    make_names_unique(model)
    widen_floats(model)
    library.lift_constants(model)
    write_sums_as_adds(model)
    _simplify(model)
    join_dense_layers(model)
    while fold_batch_norms(model) + fold_scales(model):
        pass  # either may stand behind the other
    plain_gemms(model)
    pool_spatial_means(model)
    library.remove_unused(model)
    library.infer_shapes(model)
    infer_types(model)
    make_names_unique(model)
    if ask_runtime(model):
        library.infer_shapes(model)
    graph = Graph(model)
    if not graph.inputs:
        raise ModelError(
            "the model has no inputs: it computes the same every time",
            remedy="export it with its input",
        )
    return graph


def _simplify(model: ir.Model) -> None:
    """Fold constants and apply rules until nothing changes."""
    with protected_names(model):
        library.remove_unused(model)  # rules pass over what dead nodes still read
        library.infer_shapes(model)
        room = MOST_FILLED
        for _ in range(_MOST_ROUNDS):
            changed = _try(library.fold_constants, model)
            changed |= _try(library.apply_rules, model)
            changed |= library.lift_constants(model)
            filled = fill_weights(model, room)  # sizes may have been computed only now
            room -= filled
            changed |= filled > 0
            changed |= remove_no_ops(model) > 0
            library.remove_unused(model)
            if not changed:
                break
        library.drop_library_metadata(model)


def _try(library_pass: Callable[[ir.Model], bool], model: ir.Model) -> bool:
    """Run a pass of the library that may trip over an unusual node; each of its edits is whole."""
    try:
        return library_pass(model)
    except Exception as error:  # the library raises whatever its rules and evaluators raise
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        _log.warning("the model is simplified only in part: %s", reason)
        return False
