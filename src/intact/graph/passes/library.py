"""Runs passes of onnx-ir and onnxscript: constants, shapes, folding, safe rewrite rules.

onnxscript is imported inside functions: importing it takes about 0.2 s.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from intact.errors import ModelError
from intact.graph.files.quiet import quiet
from intact.graph.files.save import weights_as_inputs
from intact.graph.files.tensors import own_tensors
from intact.graph.files.trial import ProcessTask, survives
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.constant_nodes import fold_in_runtime, is_computed_by_runtime
from intact.graph.passes.lengths import learn_shapes
from intact.graph.passes.types import infer
from intact.graph.traversal import all_nodes, bodies, graphs_of, nodes_of
from intact.ops.declaration import Window
from intact.ops.operators import QUANTIZERS, Transpose

_log = logging.getLogger(__name__)
_LONGEST_REASON = 200
"""Maximum length of a library's message, which may contain a whole graph."""

_LARGEST_GROWTH = 1 << 20
"""Limit for the elements that folding one node may add (for example an expanded constant)."""

_TRIED = "intact.shapes_tried"
"""Key in a model's ``meta``, which no file holds: its sizes were inferred once without a crash."""

_HIDDEN_IF = "IntactIf"
"""No operator of ONNX."""

_KEEP = QUANTIZERS | {"ConstantOfShape"}
"""Operators that are not folded: they are more compact or more informative than their result."""

_SIMPLIFIED = frozenset(
    [
        *("Cast", "CastLike", "Concat", "ConcatFromSequence", "Dropout", "Expand", "Gather"),
        *("Identity", "Pad", "Reshape", "SequenceAt", "SequenceConstruct", "Shape", "Size"),
        *("Slice", "SplitToSequence", "Squeeze", "Transpose", "Unsqueeze"),
        *("If", "Loop", "Scan", "SequenceMap"),
    ]
)
"""Operators that onnxscript's folding has a function for, or a rule in `rules` ends with, and those
with bodies. Add and Abs it folds behind Shape and Size only, a Conv where it pads by itself."""


def lift_constants(model: ir.Model) -> bool:
    """Convert Constant nodes to initializers, and initializers that are also inputs to constants.

    Old exporters list every weight as a graph input with a default value.

    Raises:
        ModelError: A Constant node has no value, or one of an unknown kind.
    """
    try:
        modified = common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(
            model
        ).modified
    except ValueError as error:
        raise ModelError(f"a Constant node has no value: {error}") from error
    if modified:
        own_tensors(model)
    # A default that a caller may override would keep every weight from being folded.
    modified |= common.RemoveInitializersFromInputsPass()(model).modified
    if modified and model.ir_version < 4:
        model.ir_version = 4  # before 4 every initializer had to be an input
    return modified


def sort_nodes(model: ir.Model) -> bool:
    """Sort the nodes topologically.

    Raises:
        ModelError: The graph has a cycle.
    """
    if _is_sorted(model):  # a quarter of the pass's time
        return False
    try:
        return common.TopologicalSortPass()(model).modified
    except ValueError as error:
        raise ModelError("the graph has a cycle: a node depends on its own result") from error


def _is_sorted(model: ir.Model) -> bool:
    """Tell whether each node stands behind those that it reads; False where a node has a body."""
    seen: set[ir.Node | None] = {None}
    for node in model.graph:
        if next(bodies(node), None) is not None:
            return False
        if not all(value is None or value.producer() in seen for value in node.inputs):
            return False
        seen.add(node)
    return not model.functions


def infer_shapes(model: ir.Model) -> bool:
    """Infer the types and shapes of values with ONNX shape inference.

    It stops at a Reshape to computed lengths; `intact.graph.passes.lengths` helps it on.

    Raises:
        ModelError: It would end the process: a Slice reads a tensor of a negative size.
    """
    # Tried in a child process only where it can crash, since that costs the work once more.
    if _has_slice(model) and (_TRIED not in model.meta or _may_learn_sizes(model)):
        _try_first(lambda: infer(model), model, infer_bytes)
        model.meta[_TRIED] = True
    with quiet():
        modified = infer(model)
        while learn_shapes(model):
            modified |= infer(model)
    return modified


def knows_shapes(model: ir.Model) -> bool:
    """Tell whether every type and length is known, as far as the inputs' lengths are.

    Shape inference, which serializes the model, finds nothing more there.
    """
    named = {str(dim) for value in model.graph.inputs for dim in value.shape or ()}
    return all(
        value.dtype is not None
        and value.shape is not None
        and all(isinstance(dim, int) or str(dim) in named for dim in value.shape)
        for node in all_nodes(model)
        for value in node.outputs
    )


def _has_slice(model: ir.Model) -> bool:
    return any(node.op_type == "Slice" for node in all_nodes(model))


def infer_bytes(content: bytes) -> None:
    """Infer the shapes of a model as bytes, in another process."""
    infer(ir.from_proto(onnx.ModelProto.FromString(content)))


def fold_bytes(content: bytes) -> None:
    """Fold the constants of a model as bytes, in another process."""
    fold_constants(ir.from_proto(onnx.ModelProto.FromString(content)))


_READ_BY_INFERENCE = 1 << 10
"""Bytes of a constant whose values inference may read; of others it takes the shape."""


def _without_weights(model: ir.Model) -> bytes:
    proto, _ = weights_as_inputs(model, larger_than=_READ_BY_INFERENCE)
    return bytes(proto.SerializeToString())


def _try_first(
    work: Callable[[], object], model: ir.Model, elsewhere: Callable[[bytes], None]
) -> None:
    other = ProcessTask(f"{__name__}:{elsewhere.__name__}", lambda: _without_weights(model))
    if not survives(work, other):
        raise ModelError(
            "the model makes a tensor of a negative size, which a Slice reads: a window or a "
            "negative pad is larger than what it is applied to, or a size below 0 is declared",
            remedy="export the model again, with the size of its real input",
        )


def attempt(library_pass: Callable[[ir.Model], bool], model: ir.Model) -> bool:
    """Run a pass of the library, which may fail on an unusual node; its edits up to there are
    complete.
    """
    try:
        return library_pass(model)
    except ModelError:
        raise
    except Exception as error:  # the library raises whatever its rules and evaluators raise
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        _log.warning("the model is simplified only in part: %s", reason)
        return False


def remove_unused(model: ir.Model) -> bool:
    """Remove nodes, initializers and optional outputs that no graph output depends on."""
    with quiet():
        modified = common.RemoveUnusedNodesPass()(model).modified
        while _unbind_captures(model):
            modified |= common.RemoveUnusedNodesPass()(model).modified
    return modified


def _unbind_captures(model: ir.Model) -> bool:
    """Clear the inputs in bodies of removed nodes: onnx-ir still counts them as readers."""
    alive = set(nodes_of(model.graph))
    stale = [
        use
        for value in (
            *model.graph.inputs,
            *model.graph.initializers.values(),
            *(value for node in alive for value in node.outputs),
        )
        for use in value.uses()
        if use.node not in alive
    ]
    for node, slot in stale:
        node.replace_input_with(slot, None)
    return bool(stale)


def is_simple(model: ir.Model) -> bool:
    """Tell whether `fold_constants` and `apply_rules` would leave a model alone.

    It is asked first because onnxscript takes 0.1 s to load, and most exports need nothing of it.
    """
    return all(
        node.domain == ""
        and (node.op_type not in _SIMPLIFIED or _moves_floats(node))
        and Window.of(node).auto_pad == "NOTSET"
        and not all(value is None or value.const_value is not None for value in node.inputs)
        for node in nodes_of(model.graph)
    )


def _moves_floats(node: ir.Node) -> bool:
    """Tell whether a node moves floats, which are no lengths, and is not folded itself.

    It would be where it changes nothing, and where it moves back or on what one like it has moved.
    """
    data = node.inputs[0] if node.inputs else None
    if data is None or data.shape is None or data.dtype is not ir.DataType.FLOAT:
        return False
    producer = data.producer()
    if producer is not None and producer.op_type == node.op_type != "Concat":
        return False
    match node.op_type:
        case "Concat":
            lengths = [dim for value in node.inputs for dim in (value and value.shape) or (0,)]
            is_left_alone = len(node.inputs) > 1 and 0 not in lengths
        case "Reshape":
            target = constant_array(input_value(node, 1))
            is_left_alone = target is not None and target.tolist() != list(data.shape)
        case "Slice":
            left = node.outputs[0].shape
            is_left_alone = left is not None and left != data.shape
        case "Transpose":
            axes = list(range(len(data.shape)))
            is_left_alone = list(Transpose.of(node).perm or axes[::-1]) != axes
        case operator:
            is_left_alone = operator in ("Squeeze", "Unsqueeze")
    return is_left_alone


def fold_constants(model: ir.Model, only: Collection[ir.Node] | None = None) -> bool:
    """Fold constant expressions, including known shapes.

    Args:
        model: Changed in place.
        only: The nodes that may be folded; None for all.
    """
    from onnxscript.optimizer import fold_constants as fold

    def is_meant(node: ir.Node) -> bool:
        return (only is None or node in only) and _may_fold(node)

    def by_library(node: ir.Node) -> bool | None:
        return None if is_meant(node) and not is_computed_by_runtime(node) else False

    def work() -> bool:
        result = fold(
            model,
            onnx_shape_inference=True,
            # No limit on what is read: a Transpose of a large weight is to be folded.
            input_size_limit=1 << 40,
            output_size_limit=_LARGEST_GROWTH,
            should_fold=by_library,
        )
        return bool(result.modified)

    with _without_functions(model), _hidden_ifs(model), quiet():
        if _has_slice(model) and _may_learn_sizes(model):
            _try_first(work, model, fold_bytes)
        modified = work()
        while fold_in_runtime(model, is_meant, _LARGEST_GROWTH):
            modified = True
            # What was computed may be what the library's own folding waited for.
            work()
        return modified


def _may_learn_sizes(model: ir.Model) -> bool:
    """Tell whether a size is unknown that is none of the inputs' own: folding may compute it."""
    given = {dim for value in model.graph.inputs for dim in value.shape or ()}
    shapes = [value.shape for node in model.graph for value in node.outputs]
    return any(
        shape is None or any(not isinstance(dim, int) and dim not in given for dim in shape)
        for shape in shapes
    )


def apply_rules(model: ir.Model) -> bool:
    """Simplify shape operators and fuse padding into convolutions."""
    from onnxscript.rewriter import RewriteRuleSet

    from intact.graph.passes.rules import simplifying_rules

    rules = RewriteRuleSet(simplifying_rules())
    with _without_functions(model), quiet():
        return bool(rules.apply_to_model(model))


def drop_library_metadata(model: ir.Model) -> None:
    """Remove the metadata that libraries add to nodes and values.

    These are entries of onnxscript, and onnx-ir's quantization annotations: the tensors they name
    were removed as unused.
    """
    for node in nodes_of(model.graph):
        _drop_notes(node.metadata_props)
        for value in node.outputs:
            _drop_notes(value.metadata_props)
            value.meta.pop(_ANNOTATION, None)
    for graph in graphs_of(model):
        for value in (*graph.inputs, *graph.initializers.values()):
            _drop_notes(value.metadata_props)
            value.meta.pop(_ANNOTATION, None)


_ANNOTATION = "quant_parameter_tensor_names"


def _drop_notes(properties: dict[str, str]) -> None:
    for key in [key for key in properties if key.startswith("pkg.onnxscript.")]:
        del properties[key]


def _may_fold(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type in _KEEP or len(node.outputs) != 1:
        return False
    # what the library makes of text cannot be serialized
    return not any(_is_text(value) for value in (*node.inputs, *node.outputs))


def _is_text(value: ir.Value | None) -> bool:
    if value is None:
        return False
    constant = value.const_value
    return ir.DataType.STRING in (value.dtype, None if constant is None else constant.dtype)


@contextlib.contextmanager
def _hidden_ifs(model: ir.Model) -> Iterator[None]:
    """Hide If nodes under another operator: our own `control_flow` keeps their names."""
    ifs = [node for node in nodes_of(model.graph) if node.op_type == "If" and node.domain == ""]
    for node in ifs:
        node.op_type = _HIDDEN_IF
    try:
        yield
    finally:
        for node in ifs:
            node.op_type = "If"


@contextlib.contextmanager
def _without_functions(model: ir.Model) -> Iterator[None]:
    """Hide the model's functions, so that their bodies do not change."""
    functions = dict(model.functions)
    model.functions.clear()
    try:
        yield
    finally:
        model.functions.update(functions)
