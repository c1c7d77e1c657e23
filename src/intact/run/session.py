"""ONNX Runtime sessions, made in one place."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.errors import ModelError, UsageError
from intact.graph import save_model

_LARGEST_MESSAGE = 1 << 30
"""Weights beyond this go through a file: protobuf messages end at 2 GiB, with all their names."""

Feeds = dict[str, np.ndarray[Any, Any]]

ort.set_default_logger_severity(3)  # its warnings about our own intermediate models help nobody


class Optimization(Enum):
    """How far ONNX Runtime may rewrite a model.

    Runs that are compared with each other must use the same level: NCHWc layouts change the
    order of float sums.
    """

    NONE = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    ALL = ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def make_session(
    model: ir.Model | bytes | Path,
    *,
    threads: int = 0,
    optimization: Optimization = Optimization.ALL,
) -> ort.InferenceSession:
    """Build a CPU session.

    Args:
        model: A model in memory, its bytes, or a file.
        threads: Threads inside one operator; 0 lets the runtime choose.
        optimization: Graph rewriting level.

    Raises:
        ModelError: The runtime refuses the model.
        UsageError: ``threads`` is negative.
    """
    if threads < 0:
        raise UsageError(f"threads is {threads}", remedy="give 0 (all) or more")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = optimization.value
    # Threads that went on spinning after a run would hold the cores of whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as folder:
        source: str | bytes
        if isinstance(model, ir.Model) and _weight_bytes(model) > _LARGEST_MESSAGE:
            source = str(Path(folder) / "model.onnx")
            save_model(model, source)
        elif isinstance(model, ir.Model):
            source = ir.to_proto(model).SerializeToString()
        else:
            source = str(model) if isinstance(model, Path) else model
        return _open(source, options)


def _open(source: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises a dozen unrelated classes
        raise ModelError(
            f"ONNX Runtime {ort.__version__} refuses the model: {_first_line(error)}",
            remedy="check that it runs there before quantising",
        ) from error


def run_session(
    session: ort.InferenceSession, feeds: Feeds, outputs: Sequence[str] | None = None
) -> list[np.ndarray[Any, Any]]:
    """Run once.

    Raises:
        ModelError: The runtime fails on these inputs.
    """
    with _failures_named():
        results: list[np.ndarray[Any, Any]] = session.run(outputs, feeds)
    return results


def run_bound(session: ort.InferenceSession, binding: Any) -> None:
    """Run once with inputs and outputs that are bound already.

    Raises:
        ModelError: The runtime fails on these inputs.
    """
    with _failures_named():
        session.run_with_iobinding(binding)


@contextmanager
def _failures_named() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ModelError(f"ONNX Runtime fails on this input: {_first_line(error)}") from error


def _weight_bytes(model: ir.Model) -> int:
    values = model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
