"""Reads what ONNX Runtime makes of a written model: its rewritten graph, and its times.

Both are read from files that the runtime writes itself.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.errors import ExportError
from intact.formats.base.format import Executed, Kernel
from intact.formats.onnx_qdq.run import RUNTIME, QdqRuntime, make_options, open_session
from intact.formats.onnx_qdq.write import QdqModel
from intact.graph import constant_array, data_slots, is_constant, moves_values
from intact.ops.operators import QUANTIZERS, ArgMax, DequantizeLinear, MaxPool, QuantizeLinear
from intact.plan import QuantizedGraph
from intact.plan.topology import has_caches_only

_CODES = {
    ir.DataType.UINT4,
    ir.DataType.INT4,
    ir.DataType.UINT8,
    ir.DataType.INT8,
    ir.DataType.UINT16,
    ir.DataType.INT16,
}
"""Types that carry codes; wider integers are shapes and indices."""
_FLOAT_READERS_OF_CODES = {DequantizeLinear.name, "MatMulNBits"}
"""Operators that take integers and compute in float."""
_OF_INTEGERS = 4
"""The level of accuracy at which MatMulNBits multiplies codes."""
_SELECTING = {MaxPool.name, "NhwcMaxPool"}
"""Operators of codes that give codes, beside those that move values."""
_SAME = {ArgMax.name, "QLinearConcat", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearWhere"}
"""Operators of codes that give the numbers of the floats: they compare, or have tables of these."""
_ADDED = re.compile(
    r"(_nchwc|_quantized|_dequantized|_kept|_weight|_bias|_dq|_token_\d+|/MatMulAddFusion)+$"
)
"""What the runtime, and the writer of pairs, append to names of nodes and tensors."""


def loaded(
    written: QdqModel, plan: QuantizedGraph, *, threads: int, exact: bool, packs: bool = True
) -> QdqRuntime:
    """Load a written model, and note what the runtime makes of it; not of one that fills a disk.

    Raises:
        ExportError: The runtime refuses the model.
    """
    options: dict[str, Any] = {"threads": threads, "exact": exact, "packs": packs}
    # Of a model beyond protobuf's limit the runtime would save the weights again, gigabytes of
    # them, to tell what it fused.
    if written.message is None or written.executed is not None:
        return QdqRuntime(written.model, message=written.message, **options)
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        runtime = QdqRuntime(written.model, message=written.message, optimized=optimized, **options)
        written.executed = _executed(optimized, written.model, plan)
    return runtime


def executed_of(written: QdqModel, plan: QuantizedGraph) -> Executed:
    """Return what the runtime makes of a plan; it rewrites the model, if that was not noted yet.

    Raises:
        ExportError: The runtime refuses the model.
    """
    if written.executed is None:
        with tempfile.TemporaryDirectory() as folder:
            optimized = _saved(written.model, Path(folder))
            written.executed = _executed(optimized, written.model, plan)
    return written.executed


def _executed(optimized: Path, written: ir.Model, plan: QuantizedGraph) -> Executed:
    graph = ir.load(optimized).graph
    quantized = [name for name, each in plan.decisions.items() if each.quantized]
    floats = {
        str(node.name)
        for node in plan.graph.nodes
        if not plan.is_quantized(node) and _has_float_data(plan, node)
        if not has_caches_only(plan.decisions[str(node.name)])
    }
    own = _own(graph, floats)
    in_integers = _kinds(own, in_integers=True)
    # What moves codes, or looks them up in a table of the same floats, changes no number.
    rounded = [n for n in in_integers if own[n].op_type not in _SAME and not moves_values(own[n])]
    return Executed(
        _kinds(_own(graph, quantized), in_integers=False),
        in_integers,
        tuple(dict.fromkeys([*rounded, *_rescaled(graph, written, {*quantized, *floats})])),
    )


def float_leftovers(model: ir.Model, quantized: Iterable[str]) -> dict[str, str]:
    """Return the nodes among ``quantized`` that the runtime computes in float, with op type.

    What counts is the data that reaches a node in the model as the runtime rewrites it: a
    Reshape of codes is integer work, a Reshape of floats is not. A node that is gone was fused
    into another, which stands for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        graph = ir.load(_saved(model, Path(folder))).graph
        return _kinds(_own(graph, quantized), in_integers=False)


def plain_names(names: Sequence[str]) -> Iterator[str]:
    """Yield each name of a node or tensor as it is and without what was appended to it."""
    for name in names:
        yield name
        if _ADDED.search(name):
            yield _ADDED.sub("", name)


def _saved(model: ir.Model, folder: Path) -> Path:
    """Save the model after the runtime's fusions, which keep the names of nodes."""
    path = folder / "fused.onnx"
    options = ort.SessionOptions()
    # All fusions, without the layouts of this processor: those rename nodes, and change no kernel
    # from float to integer.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    open_session(model, options, folder)
    return path


def _own(graph: ir.Graph, wanted: Iterable[str]) -> dict[str, ir.Node]:
    """Return nodes by the names that they had when the model was written."""
    names = set(wanted)
    found: dict[str, ir.Node] = {}
    for node in graph:
        for name in plain_names([str(node.name)]):
            if name in names:
                # The first one computes; what the runtime puts behind it, under the same name with
                # an ending, moves or converts.
                found.setdefault(name, node)
    return found


def _kinds(nodes: Mapping[str, ir.Node], *, in_integers: bool) -> dict[str, str]:
    return {
        name: node.op_type
        for name, node in nodes.items()
        if _computes_with_integers(node) == in_integers
    }


def _has_float_data(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Check for a node that computes with floats, if the plan has its way: no shapes or indices."""
    slots = [slot for slot in data_slots(node) if not is_constant(node.inputs[slot])]
    return bool(slots) and all(plan.graph.is_float(node.inputs[slot]) for slot in slots)


def _rescaled(graph: ir.Graph, written: ir.Model, names: set[str]) -> Iterator[str]:
    """Yield nodes of codes with scales that were not written, by names of the plan if they can."""
    known = {
        # By bits: a scale that the runtime computed anew may print like one that was written.
        array.tobytes()
        for value in written.graph.initializers.values()
        if value.dtype is ir.DataType.FLOAT and value.shape is not None
        if len(value.shape) == 0 and (array := constant_array(value)) is not None
    }
    for node in graph:
        if node.op_type not in QUANTIZERS and not _computes_with_integers(node):
            continue
        for value in node.inputs:
            array = constant_array(value)
            # Scales of activations are single floats; others belong to weights, which the runtime
            # may lay out anew.
            if array is None or array.dtype != np.float32 or array.ndim:
                continue
            if array.tobytes() not in known:
                own = str(node.name)
                yield next((name for name in plain_names([own]) if name in names), own)
                break


def _computes_with_integers(node: ir.Node) -> bool:
    # MatMulNBits reads codes at every level, and multiplies codes from one level on.
    if node.op_type in _FLOAT_READERS_OF_CODES:
        return node.attributes.get_int("accuracy_level", 0) == _OF_INTEGERS
    return any(value is not None and _holds_codes(value) for value in node.inputs)


def _holds_codes(value: ir.Value) -> bool:
    if value.dtype is not None:
        return value.dtype in _CODES
    # The runtime leaves out the types of some values that it makes.
    producer = value.producer()
    if producer is None:
        return False
    if moves_values(producer) or producer.op_type in _SELECTING:
        return producer.inputs[0] is not None and _holds_codes(producer.inputs[0])
    return producer.op_type == QuantizeLinear.name or producer.op_type.startswith(
        ("QLinear", "QGemm")
    )


_TIME = re.compile(r"(.*?)(_token_\d+)?_kernel_time", re.S)
"""What the runtime makes of a node's name; a token tells kernels of one node apart."""


class _Arguments(msgspec.Struct, frozen=True):
    op_name: str
    node_index: str = ""
    input_type_shape: list[dict[str, list[int]]] = []
    output_type_shape: list[dict[str, list[int]]] = []


def profile_kernels(
    model: ir.Model,
    feeds: Mapping[str, np.ndarray[Any, Any]],
    *,
    runs: int,
    threads: int = 0,
    exact: bool = False,
) -> list[Kernel]:
    """Run a model as applications do, and return its kernels in the order of their first run.

    Args:
        model: A float model or a written one.
        feeds: The inputs of a batch.
        runs: How often, one run before them not counted: of each kernel the fastest counts.
        threads: Threads inside one operator; 0 lets the runtime choose.
        exact: Sum exactly, where the processor saturates pairs of products.

    Raises:
        ExportError: The runtime refuses the model, fails on these inputs, or writes no profile
            that is understood.
    """
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        options = make_options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.optimized_model_filepath = str(optimized)
        session = open_session(model, options, Path(folder), exact=exact)
        try:
            # The first run allocates memory, which is no kernel's time.
            for _ in range(runs + 1):
                session.run(None, dict(feeds))
        except Exception as error:  # the runtime raises a dozen unrelated classes
            raise ExportError(f"{RUNTIME} fails on this input: {error}") from error
        profile = Path(session.end_profiling())
        try:
            events = json.loads(profile.read_text(encoding="utf-8", errors="replace"))
            writes = {
                str(node.name): tuple(str(value.name) for value in node.outputs)
                for node in ir.load(optimized).graph
            }
            return _kernels(events, writes)
        except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise ExportError(f"{RUNTIME} writes a profile of another form: {error}") from error


def _kernels(events: list[Any], writes: Mapping[str, tuple[str, ...]]) -> list[Kernel]:
    found: dict[tuple[str, str], tuple[list[float], _Arguments]] = {}
    for event in events:
        if event.get("cat") != "Node" or not _TIME.fullmatch(str(event.get("name"))):
            continue
        arguments = msgspec.convert(event["args"], _Arguments)
        # The index tells kernels apart that the runtime gave one name.
        times, _ = found.setdefault((str(event["name"]), arguments.node_index), ([], arguments))
        times.append(1e-6 * float(event["dur"]))
    kernels = []
    for (event_name, _), (times, arguments) in found.items():
        name = _TIME.sub(r"\1", event_name)
        kernel = Kernel(
            name,
            arguments.op_name,
            # The fastest: whatever else the machine does only adds to a time.
            min(times[1:] or times),
            tuple(plain_names((name, *writes.get(name, ())))),
            _largest(arguments.input_type_shape),
            _largest(arguments.output_type_shape),
        )
        kernels.append(kernel)
    return kernels


def _largest(shapes: list[dict[str, list[int]]]) -> int:
    return max((math.prod(shape) for each in shapes for shape in each.values()), default=0)
