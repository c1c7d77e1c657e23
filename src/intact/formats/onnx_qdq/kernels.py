"""What each kernel takes when ONNX Runtime runs a model, from the runtime's own profile."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from intact.errors import ExportError
from intact.formats.base.format import Kernel
from intact.formats.onnx_qdq.executed import plain_names
from intact.formats.onnx_qdq.run import RUNTIME, make_options, open_session

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
        times, _ = found.setdefault((str(event["name"]), arguments.node_index), ([], arguments))
        times.append(1e-6 * float(event["dur"]))
    kernels = []
    for (event_name, _), (times, arguments) in found.items():
        name = _TIME.sub(r"\1", event_name)
        kernel = Kernel(
            name,
            arguments.op_name,
            min(times[1:] or times),
            tuple(plain_names((name, *writes.get(name, ())))),
            _largest(arguments.input_type_shape),
            _largest(arguments.output_type_shape),
        )
        kernels.append(kernel)
    return kernels


def _largest(shapes: list[dict[str, list[int]]]) -> int:
    return max((math.prod(shape) for each in shapes for shape in each.values()), default=0)
