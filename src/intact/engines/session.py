"""Makes all sessions of ONNX Runtime, and runs them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.errors import CalibrationError, ModelError, UsageError
from intact.graph import Graph, save_model
from intact.graph.edit import Editor
from intact.graph.files.external import release_pages
from intact.graph.files.save import STREAM_FROM, in_place
from intact.graph.files.tensors import weight_bytes

_BYTES = 4
"""Bytes of a float."""

_LARGEST_MESSAGE = 1 << 28

"""Weights beyond this stay in files that the runtime maps.

Handed over in a message they are in memory four times while a session is made, and twice while it
lives: a float model and its simulation of 0.5 GB each took 4 GB.
"""

_LARGE_TENSOR = 1 << 25
"""Bytes of a tensor from which its memory is given back after use, as the system's allocator does.

The runtime's own store grows in powers of two and is kept while the session lives: a sample of
DNSMOS (tensors of 74 MB) took 0.3 to 0.9 GB in each session, and 0.2 to 0.4 without, as fast.
"""

_WEIGHT_FOLDER = "session.model_external_initializers_file_folder_path"

_NEWEST_OPSET = re.compile(r"support for domain (\S+) is till opset (\d+)")

"""The runtime's error for a model that is newer than itself."""

_NO_TENSOR = re.compile(r"(seq|map|sparse_tensor|optional\(seq)\(")

"""The runtime's types of results that are no arrays: it returns lists or dicts of these."""

_OF_QUANTIZERS = (
    "TransposeOptimizer",
    "TransposeOptimizer_CPUExecutionProvider",
    "DoubleQDQPairsRemover",
)

"""Optimizers that change what quantizers compute even where these are not fused.

The first two moved a Transpose past a quantizer whose result had two readers, and left it out for
one of them (ONNX Runtime 1.32); the last joins two quantizers in a row.
"""

MOST_THREADS = 1024

"""More than any machine has cores; with some ten thousand threads it can start no process."""

Feeds = dict[str, np.ndarray[Any, Any]]

ort.set_default_logger_severity(4)  # what it would print of an error, its exception says as well


class Optimization(Enum):
    """How far ONNX Runtime may rewrite a model.

    Runs that are compared with each other must use the same level: NCHWc layouts change the
    order of float sums.
    """

    NONE = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    ALL = ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def refuse_threads(threads: int) -> None:
    """Refuse a number of threads that cannot be meant: the runtime would start them all.

    Raises:
        UsageError: It is negative, or above ``MOST_THREADS``.
    """
    if not 0 <= threads <= MOST_THREADS:
        raise UsageError(f"threads is {threads}", remedy=f"give 0 (all) to {MOST_THREADS}")


def make_session(
    model: ir.Model | bytes | Path,
    *,
    threads: int = 0,
    optimization: Optimization = Optimization.ALL,
    shares_memory: bool = False,
    fuses_quantizers: bool = True,
) -> ort.InferenceSession:
    """Build a CPU session.

    Args:
        model: A model in memory, its bytes, or a file.
        threads: Threads inside one operator; 0 lets the runtime choose.
        optimization: Graph rewriting level.
        shares_memory: Take working memory from one store of the process, for sessions of which
            there are many: each one's own is never given back while the session lives (64 pieces
            of a MobileNetV2: 610 MB, and 330 shared).
        fuses_quantizers: Let operators between QuantizeLinear and DequantizeLinear compute with
            integers; without, all is computed as the nodes say.

    Raises:
        ModelError: The runtime refuses the model.
        UsageError: ``threads`` is negative, or far more than a machine can start.
    """
    refuse_threads(threads)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = optimization.value
    # Threads that went on spinning after a run would hold the cores of whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    left_out = () if fuses_quantizers else _OF_QUANTIZERS
    if not fuses_quantizers:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if shares_memory:
        _share_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if isinstance(model, ir.Model) and _largest_tensor(model) > _LARGE_TENSOR:
        # For the whole session: the runtime chooses its allocator once, and not by tensor.
        options.enable_cpu_mem_arena = False
    if not isinstance(model, ir.Model):
        return _open(str(model) if isinstance(model, Path) else model, options, left_out)
    if fits_message(model) and not (
        optimization is Optimization.NONE and weight_bytes(model) > STREAM_FROM
    ):  # one run is over before the runtime has made a copy of the weights
        return _open(ir.to_proto(model).SerializeToString(), options, left_out)
    return _open_large(model, options, left_out)


def fits_message(model: ir.Model) -> bool:
    """Tell whether a model's weights can be handed to the runtime in memory."""
    return weight_bytes(model) <= _LARGEST_MESSAGE


def _largest_tensor(model: ir.Model) -> int:
    """Return the bytes of the largest value that a model computes; open axes count as 1."""
    values = (value for node in model.graph for value in node.outputs)
    shapes = (value.shape for value in values if value.shape is not None)
    sizes = (prod(n for n in shape if isinstance(n, int)) for shape in shapes)
    return _BYTES * max(sizes, default=0)


@cache
def _share_memory() -> None:
    """Make the store of working memory that sessions share; once a process."""
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, None)


def _open_large(
    model: ir.Model, options: ort.SessionOptions, left_out: Sequence[str]
) -> ort.InferenceSession:
    """Build a session whose large weights are pages of a file, with no copy in memory.

    The runtime would pack them anew for its kernels, as a copy of the whole model: it must not.
    (A MatMul of 32 rows with 8192 x 8192 weights took 1.5 times as long without.)
    """
    options.add_session_config_entry("session.disable_prepacking", "1")
    release_pages()
    found = in_place(model)
    if found is not None:
        options.add_session_config_entry(_WEIGHT_FOLDER, str(found.folder))
        if found.held:
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in found.held.values()]
            options.add_external_initializers(list(found.held), values)
        return _open(found.message, options, left_out)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.onnx"
        save_model(model, path, beside=True)
        release_pages()  # of what was read to be written
        return _open(str(path), options, left_out)


_UNKNOWN_OPERATOR = re.compile(
    r"No Op registered for (\S+)|[ :]([\w.]*:?\w+)\(-?\d+\) is not a registered function"
)
"""How ONNX Runtime says that it has no such operator."""


def _open(
    source: str | bytes, options: ort.SessionOptions, left_out: Sequence[str]
) -> ort.InferenceSession:
    providers = ["CPUExecutionProvider"]
    try:
        session = ort.InferenceSession(
            source, options, providers=providers, disabled_optimizers=left_out
        )
    except Exception as error:  # the runtime raises a dozen unrelated classes
        newest = _NEWEST_OPSET.search(str(error))
        if newest is not None:
            raise ModelError(
                f"ONNX Runtime {ort.__version__} runs no opset of {newest[1]} beyond {newest[2]}",
                remedy="export the model with that opset or an older one",
            ) from error
        remedy = "check that it runs there before quantizing"
        unknown = _UNKNOWN_OPERATOR.search(str(error))
        if unknown is not None:
            remedy = (
                f"export the model without {unknown[1] or unknown[2]}, from operators of ONNX: "
                "none of another library is loaded"
            )
        raise ModelError(
            f"ONNX Runtime {ort.__version__} refuses the model: {_first_line(error)}", remedy=remedy
        ) from error
    # Here and not at the first run: all who ask for a session expect arrays.
    for each in session.get_outputs():
        if _NO_TENSOR.match(each.type):
            raise ModelError(
                f"output {each.name!r} of the model is {each.type}, and not a tensor",
                remedy="join it (ConcatFromSequence), or cut it from the model's outputs",
            )
    return session


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


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__


def model_of_outputs(graph: Graph, names: Sequence[str]) -> ir.Model:
    """Copy the model with these values as outputs, or with its own if there are none.

    Raises:
        CalibrationError: The graph has no such value.
    """
    editor = Editor(graph.model)
    try:
        outputs = [editor.value(name) for name in names]
    except KeyError as error:
        raise CalibrationError(f"the model has no tensor {error}") from None
    if outputs:
        editor.model.graph.outputs.clear()
        editor.model.graph.outputs.extend(outputs)
    return editor.finish()


class FloatModel:
    """A compiled float graph.

    Args:
        graph: The graph.
        tensors: Names of what a run returns, also of inputs, which are not computed; the graph's
            outputs if omitted.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Attributes:
        outputs: What a run returns.

    Raises:
        CalibrationError: The graph has no such tensor.
    """

    def __init__(
        self, graph: Graph, tensors: Sequence[str] | None = None, *, threads: int = 0
    ) -> None:
        own, inputs = (
            [str(value.name) for value in values] for values in (graph.outputs, graph.inputs)
        )
        self.outputs = tuple(own if tensors is None else tensors)
        self._computed = [each for each in self.outputs if tensors is None or each not in inputs]
        model = graph.model if tensors is None else model_of_outputs(graph, self._computed)
        self._session = make_session(model, threads=threads) if self._computed else None

    def run(self, feeds: Feeds, wanted: Sequence[str] | None = None) -> Feeds:
        """Run one batch, and return the outputs by name: all, or some of them."""
        names = self.outputs if wanted is None else wanted
        computed = [name for name in names if name in self._computed]
        found = dict(feeds)
        if self._session is not None and computed:
            found |= zip(computed, run_session(self._session, feeds, computed), strict=True)
        return {name: found[name] for name in names}
