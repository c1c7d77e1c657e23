"""Observing a model in parts, with the floats of the whole.

Which operators a runtime fuses depends on what a model hands out: a session that hands out a few
tensors computes others than one that hands out all (25 of the 31 tensors of a ResNet20 differ).
So the runtime rewrites the model once, as if all were observed, and the parts are cut out of the
result, to be run as it is. A part has only the nodes that lead to its tensors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from intact.calibrate.observe.layout import Layout
from intact.calibrate.observe.observer import Observer, model_of_outputs
from intact.errors import ModelError
from intact.graph import Graph, save_model
from intact.run.session import Optimization


def part_observers(
    graph: Graph, tensors: Sequence[str], layout: Layout, groups: Sequence[Sequence[str]]
) -> Iterator[Observer]:
    """Yield an observer for each group of tensors, to be used before the next one is asked for.

    Args:
        graph: The float model.
        tensors: Names of all observed values.
        layout: For observing all of them.
        groups: Some of them each.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        computed = set(tensors) - {str(value.name) for value in graph.inputs}
        whole = _rewritten(model_of_outputs(graph, [n for n in tensors if n in computed]), folder)
        for position, group in enumerate(groups):
            path = folder / f"part{position}.onnx"
            names = [name for name in group if name in computed]
            part = _part(whole, names or [whole.graph.output[0].name])  # any: it will not be run
            path.write_bytes(part.SerializeToString())
            # No name holds the session, so that it goes with its observer.
            yield Observer(graph, group, session=_session(path, Optimization.NONE), layout=layout)


def _rewritten(model: ir.Model, folder: Path) -> onnx.ModelProto:
    """Return the model as the runtime optimises it; its weights stay in a file of the folder."""
    source, rewritten = folder / "model.onnx", folder / "rewritten.onnx"
    save_model(model, source)
    _session(source, Optimization.ALL, rewritten)
    source.unlink()
    return onnx.load(rewritten, load_external_data=False)


def _session(
    path: Path, optimization: Optimization, rewritten: Path | None = None
) -> ort.InferenceSession:
    """Open a file, and write it as the runtime rewrites it if that is asked for."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = optimization.value
    # Its arena grows by doubling and never shrinks: 212 MiB, where 100 were allowed, became 109.
    options.enable_cpu_mem_arena = False
    if rewritten is not None:
        options.optimized_model_filepath = str(rewritten)
        entry = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{entry}file_name", f"{rewritten.stem}.weights")
        options.add_session_config_entry(f"{entry}min_size_in_bytes", "1024")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises a dozen unrelated classes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"ONNX Runtime cannot run the model in parts: {reason[:300]}",
            remedy="give no limit of memory",
        ) from error


def _part(whole: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return what computes some tensors. Inputs stay, read or not."""
    part = onnx.ModelProto()
    part.CopyFrom(whole)
    needed, nodes = set(tensors), []
    for node in reversed(whole.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
            needed.update(_read_inside(node))
    for field in ("node", "output", "initializer"):
        part.graph.ClearField(field)
    part.graph.node.extend(reversed(nodes))
    part.graph.output.extend(each for each in whole.graph.output if each.name in set(tensors))
    part.graph.initializer.extend(e for e in whole.graph.initializer if e.name in needed)
    return part


def _read_inside(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the bodies of a node read: some are of its surroundings."""
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in body.node:
                yield from inner.input
                yield from _read_inside(inner)
            yield from (each.name for each in body.output)
