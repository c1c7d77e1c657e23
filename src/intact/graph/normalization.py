"""Normalizes models: runs the passes that bring them to the canonical form."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.files.claims import forget_claims, forget_made_up_names
from intact.graph.files.load import load_model
from intact.graph.files.save import note_given_bytes
from intact.graph.given_nodes import GivenNodes
from intact.graph.graph import Graph
from intact.graph.passes import library
from intact.graph.passes.canonical import (
    MOST_FILLED,
    fill_weights,
    gather_by_lists,
    pool_spatial_means,
    write_as_products,
    write_sums_as_adds,
    write_zeros_as_pads,
)
from intact.graph.passes.constant_nodes import split_constants
from intact.graph.passes.fold_linear import fold_batch_norms, fold_into_dense, fold_scales
from intact.graph.passes.gemm import (
    flatten_weights,
    join_dense_layers,
    plain_gemms,
    turn_weights,
)
from intact.graph.passes.input_shapes import Sizes, set_input_shapes
from intact.graph.passes.lengths import fold_lengths
from intact.graph.passes.names import make_names_unique, protected_names
from intact.graph.passes.no_ops import drop_whole_axes, remove_no_ops
from intact.graph.passes.opset_forms import depends_on_opset, write_opset_forms
from intact.graph.passes.split_heads import split_heads, transpose_heads
from intact.graph.passes.types import ask_runtime, infer_types
from intact.graph.passes.widen import widen_floats
from intact.graph.passes.window_pads import write_pads
from intact.graph.traversal import bodies

_MOST_ROUNDS = 10
"""Folding enables rules and rules enable folding; three rounds were enough for every model so
far.
"""


def normalize(
    source: str | Path | onnx.ModelProto | ir.Model,
    shapes: Mapping[str, Sizes] | None = None,
    *,
    in_place: bool = False,
) -> Graph:
    """Convert a model to the canonical form that the rest of `intact` works on.

    Afterwards every node and value has a unique name (the model's own where it had one), constants
    are initializers, shapes and types are inferred, and constant expressions are folded. No-ops are
    removed. A division by a constant is a Mul, a Concat with zeros a Pad, a Gather by a table of
    indices one by a list. BatchNormalization and other constants per channel are folded into the
    convolution before them. A dense layer is one Gemm, a Sum of two is an Add, a mean over all
    spatial axes is a GlobalAveragePool. Pools and transposed convolutions have pads instead of
    ``ceil_mode`` and ``auto_pad``. Operators whose meaning depends on the opset are written so that
    it does not (see `intact.graph.passes.opset_forms`). float16 and bfloat16 are converted to
    float32 (see `intact.graph.passes.widen`).

    The opset, the graph inputs and outputs, named dimensions and the model's results do not
    change (up to float rounding where BatchNormalization is folded, and one rounding where a
    divisor is no power of two). Of declared shapes only the inputs' are believed (see
    `intact.graph.files.claims`). A tensor name that remains has the same values as in the source.
    An If whose condition is known gives way to the branch that it chooses, a Loop or Scan that
    turns a known number of times to its turns. Unknown operators, functions, other bodies stay.

    Args:
        source: A path, or a loaded model, which is not changed.
        shapes: Sizes of inputs that leave them open, by name: what follows from them is folded.
        in_place: Whether the source is a model as `load_model` returns it, and becomes the graph's.

    Raises:
        ModelError: The model cannot be read (see `intact.graph.files.load.load_model`), has a cycle
            or no inputs.
        UsageError: A shape contradicts the model.
    """
    model = source if in_place and isinstance(source, ir.Model) else load_model(source)
    note_given_bytes(model)
    given = GivenNodes(model)
    if shapes:
        set_input_shapes(model, shapes)
    # 1. What all passes go by: order, names, types, and no claim of the file.
    library.sort_nodes(model)
    forget_claims(model)
    make_names_unique(model)
    widen_floats(model)
    library.lift_constants(model)
    # 2. One form of each operator, and the constants and lengths that follow.
    write_sums_as_adds(model)
    write_pads(model)
    if depends_on_opset(model):
        library.infer_shapes(model)
        write_opset_forms(model)
    _simplify(model)
    if any(next(bodies(node), None) is not None for node in model.graph):
        from intact.graph.passes.loop_shapes import keep_shapes  # which few models need

        if keep_shapes(model):
            _simplify(model)
    write_pads(model)  # simplifying may have computed the lengths
    # 3. The linear layers. A division is a Mul first, the only product that is folded; a MatMul
    # takes nothing before it is a Gemm, and is none with a weight of three axes.
    write_as_products(model)
    write_zeros_as_pads(model)
    gather_by_lists(model)
    turn_weights(model)
    flatten_weights(model)
    join_dense_layers(model)
    while fold_batch_norms(model) + fold_scales(model):
        pass  # either may follow the other
    fold_into_dense(model)
    # Behind folding, which takes beta into the bias: that is rounded once so.
    plain_gemms(model)
    pool_spatial_means(model)
    library.remove_unused(model)
    if not library.knows_shapes(model):  # of what the passes above have made
        library.infer_shapes(model)
    # 4. What is left unknown. The runtime is asked by name, so new nodes get theirs before.
    infer_types(model)
    make_names_unique(model)
    if ask_runtime(model):
        library.infer_shapes(model)
    _refuse_negative_sizes(model)
    forget_made_up_names(model)
    # Last, as it goes by the names and nodes that stay.
    given.follow(model)
    graph = Graph(model)
    if not graph.inputs:
        raise ModelError(
            "the model has no inputs: its outputs are constant",
            remedy="export it with its input",
        )
    return graph


def _is_negative(value: ir.Value | None) -> bool:
    shape = None if value is None else value.shape
    return any(isinstance(dim, int) and dim < 0 for dim in shape or ())


def _refuse_negative_sizes(model: ir.Model) -> None:
    for node in model.graph:
        if any(map(_is_negative, node.inputs)):
            continue  # that is said elsewhere
        for value in node.outputs:
            if _is_negative(value):
                raise ModelError(
                    f"node {node.name!r} ({node.op_type}) makes a tensor of the shape "
                    f"{value.shape}: its window or its pads do not fit what it reads",
                    remedy="export the model again, with the size of its real input",
                )


def _write_out_bodies(model: ir.Model, unrolled: int) -> tuple[bool, int]:
    """Write out the branches and turns that are known.

    Args:
        model: Changed in place.
        unrolled: The number of nodes that were made of loops before.

    Returns:
        Whether anything changed, and how many nodes were made of loops.
    """
    # Here, as most models have none.
    from intact.graph.passes.control_flow import inline_ifs
    from intact.graph.passes.loops import MOST_UNROLLED, unroll_loops, write_sequences

    inlined, more = inline_ifs(model), unroll_loops(model, MOST_UNROLLED - unrolled)
    return inlined + more + write_sequences(model) > 0, more


def _simplify(model: ir.Model) -> None:
    """Fold constants and apply rules until nothing changes."""
    with contextlib.ExitStack() as protection:
        library.remove_unused(model)  # rules skip values that dead nodes read
        library.infer_shapes(model)
        # One sum for all rounds, or each could fill as much again.
        room, unrolled, is_protected = MOST_FILLED, 0, False
        has_bodies = any(map(library.is_written_out, model.graph))
        for _ in range(_MOST_ROUNDS):
            changed, more = _write_out_bodies(model, unrolled) if has_bodies else (False, 0)
            unrolled += more
            if changed:
                write_sums_as_adds(model)
            if not library.is_simple(model):
                # Names are protected once and only where the library runs: renaming costs time.
                if not is_protected:
                    protection.enter_context(protected_names(model))
                    is_protected = True
                changed |= library.attempt(library.fold_constants, model)
                changed |= library.attempt(library.apply_rules, model)
            changed |= library.lift_constants(model)
            changed |= split_constants(model) > 0
            changed |= fold_lengths(model) > 0
            filled = fill_weights(model, room)  # folding may have computed the sizes
            room -= filled
            changed |= filled > 0
            changed |= drop_whole_axes(model) > 0
            changed |= remove_no_ops(model) > 0
            # Transpositions behind may be joined.
            changed |= split_heads(model) + transpose_heads(model) > 0
            library.remove_unused(model)
            if not changed:
                break
        library.drop_library_metadata(model)
    make_names_unique(model)
