"""Computes constant nodes by ONNX Runtime, which says what a model means.

onnxscript folds with the reference functions of the onnx package. Of pools, normalizations and
functions along an axis these give other shapes or values than the runtimes: a GlobalMaxPool of
``[8, 3, 4]`` has the shape ``[8, 1]`` there, and a Softmax of opset 11 normalizes one axis. Of a
GatherElements it folds none whose indices are fewer than the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper

from intact.graph.ops import OpKind, constant_array, input_value, op_spec
from intact.graph.passes.replace import add_constant
from intact.ops.operators import GatherElements, Split

_COMPUTED = {OpKind.COMPUTE, OpKind.ACTIVATION, OpKind.POOL, OpKind.NORMALIZATION}

_IR_VERSION = 10
"""The version of the models that are run; enough for every opset here."""


def is_computed_by_runtime(node: ir.Node) -> bool:
    """Tell whether a node, if it reads constants alone, is left to ONNX Runtime."""
    spec = op_spec(node)
    return spec is not None and (spec.kind in _COMPUTED or node.op_type == GatherElements.name)


def fold_in_runtime(
    model: ir.Model, may_fold: Callable[[ir.Node], bool], largest_growth: int
) -> int:
    """Replace nodes of `is_computed_by_runtime` that read constants alone by what they compute.

    A node stays where the runtime refuses it, or the size of its result is not known.

    Args:
        model: Changed in place.
        may_fold: Tells which nodes are meant.
        largest_growth: Limit for the elements that folding one node may add.

    Returns:
        The number of replaced nodes.
    """
    folded = 0
    for node in tuple(model.graph):
        if not (is_computed_by_runtime(node) and may_fold(node)):
            continue
        feeds = _constants(node)
        result = node.outputs[0]
        elements = _elements(result)
        if feeds is None or elements is None:
            continue
        if elements - sum(each.size for each in feeds.values()) > largest_growth:
            continue
        run = compiled_constants([node], feeds, [str(result.name)], model.opset_imports[""])
        found = None if run is None else run(feeds)
        if found is None:
            continue
        (array,) = found
        name, result.name = str(result.name), None  # free for the constant
        constant = add_constant(model.graph, array, name)
        result.replace_all_uses_with(constant, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        folded += 1
    return folded


def _constants(node: ir.Node) -> dict[str, npt.NDArray[Any]] | None:
    """Return what a node reads, by name; None where something is no constant."""
    found = {}
    for value in node.inputs:
        array = constant_array(value)
        if value is not None and array is None:
            return None
        if value is not None and array is not None:
            found[str(value.name)] = array
    return found or None


def _elements(value: ir.Value) -> int | None:
    """Return the size of a value; None where it is not known."""
    if value.shape is None or not value.shape.is_static():
        return None
    return math.prod(value.shape.numpy())


Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]


def compiled_constants(
    nodes: Sequence[ir.Node], feeds: Arrays, outputs: Sequence[str], opset: int
) -> Callable[[Arrays], list[npt.NDArray[Any]] | None] | None:
    """Compile nodes that read constants alone.

    Args:
        nodes: In topological order.
        feeds: What they read, by name; a run takes others of the same types and shapes.
        outputs: Names of what a run returns.
        opset: That of the model.

    Returns:
        A function of what they read, which returns None where the runtime cannot compute it; None
        where the runtime refuses the nodes.
    """
    import onnxruntime as ort

    make_port, type_of = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "constant",
        [make_port(name, type_of(array.dtype), array.shape) for name, array in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    options = ort.SessionOptions()
    # As written: an optimizer would fold the constants itself, by other code.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # They run once, or are small: starting threads would take longer.
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # the runtime raises a dozen unrelated classes
        return None

    def run(given: Arrays) -> list[npt.NDArray[Any]] | None:
        try:
            return [np.asarray(each) for each in session.run(None, dict(given))]
        except Exception:  # likewise
            return None

    return run


def split_constants(model: ir.Model) -> int:
    """Replace each Split of a constant by its parts.

    onnxscript folds nodes of one result only. torch packs the weights of an attention's queries,
    keys and values, and its exporter splits them.

    Returns:
        The number of replaced nodes.
    """
    nodes = [each for each in model.graph if (each.domain, each.op_type) == ("", Split.name)]
    return sum(_split_constant(model.graph, node) for node in nodes)


def _split_constant(graph: ir.Graph, node: ir.Node) -> bool:
    data, results = constant_array(input_value(node, 0)), node.outputs
    if data is None or data.ndim == 0 or not all(_elements(each) for each in results):
        return False
    axis = Split.of(node).axis % data.ndim
    ends = np.cumsum([result.shape.numpy()[axis] for result in results if result.shape])
    if ends[-1] != data.shape[axis]:
        return False
    for result, part in zip(results, np.split(data, ends[:-1], axis), strict=True):
        name, result.name = str(result.name), None  # free for the constant
        constant = add_constant(graph, np.ascontiguousarray(part), name)
        result.replace_all_uses_with(constant, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return True
