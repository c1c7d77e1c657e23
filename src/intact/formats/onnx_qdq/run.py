"""Runs a written QDQ model in ONNX Runtime, as its users do.

A `QdqRuntime` gives the model's outputs, and on request the integers behind chosen QuantizeLinears,
so that each layer can be compared with the plan. Those are asked for by tensor end, an input or
output slot of a node::

    runtime = QdqRuntime(model, {TensorEnd.output("conv1"): "conv1_out_quantized"})
    outputs, codes = runtime.run({"x": images})
    codes[TensorEnd.output("conv1")]  # int8 [1, 16, 8, 8]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.engines.exact_sums import EXACT, exact_sums, saturates_pairs
from intact.errors import ExportError
from intact.graph import save_model
from intact.graph.edit import Editor
from intact.graph.files.save import STREAM_FROM
from intact.graph.files.tensors import weight_bytes
from intact.plan import TensorEnd

if TYPE_CHECKING:
    from intact.formats.onnx_qdq.cache_codes import CacheFloats
    from intact.graph import Graph

RUNTIME = f"ONNX Runtime {ort.__version__}"

_Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

_CODES = (ir.DataType.INT8, ir.DataType.UINT8)
_ERRORS = 3
"""ONNX Runtime's severity of errors: messages below it are not printed."""


def float_runner(graph: Graph, threads: int) -> Callable[[_Arrays], _Arrays]:
    """Compile the float model, and return the function that runs it."""
    from intact.engines.session import FloatModel  # what runs a written model has no need of it

    return FloatModel(graph, threads=threads).run


class QdqRuntime:
    """A compiled QDQ model.

    Args:
        model: The written model.
        codes: Names of the values that hold the integers to return, outputs of QuantizeLinears,
            by tensor end. Returning them does not undo the runtime's fusions.
        threads: Threads inside one operator; 0 lets the runtime choose.
        fuse: Whether the runtime makes integer kernels of operators between quantizers, as it
            does for its users; else every operator computes in float32 what it says.
        exact: Whether sums of 8-bit products are exact, also on a processor that saturates pairs
            of them in 16 bits (x86 before VNNI); False runs the model as the runtime does by
            default.
        packs: Whether the runtime keeps a copy of the weights in its kernels' own order, which
            takes longer than one run gains, and as much memory as the weights.
        message: The written model serialized, if that is at hand.
        optimized: Where the runtime saves the model as it rewrites it.

    Attributes:
        name: The runtime with its version, and with the option that makes sums exact.

    Raises:
        ExportError: The runtime refuses the model.
    """

    def __init__(
        self,
        model: ir.Model,
        codes: Mapping[TensorEnd, str] | None = None,
        *,
        threads: int = 0,
        fuse: bool = True,
        exact: bool = True,
        packs: bool = True,
        message: bytes | None = None,
        optimized: Path | None = None,
    ) -> None:
        self.name = f"{RUNTIME}, {EXACT}" if exact and saturates_pairs() else RUNTIME
        self._ends = tuple(codes or ())
        self._outputs = tuple(str(value.name) for value in model.graph.outputs)
        self._caches = _caches_of(model)
        given = model
        # A copy: the model that was written keeps its outputs, whoever asks for more.
        if codes:
            editor = Editor(model)
            editor.model.graph.outputs.extend(editor.value(codes[end]) for end in self._ends)
            model = editor.finish()
        options = make_options(threads)
        # The option names what it disables.
        options.add_session_config_entry("session.disable_quant_qdq", "0" if fuse else "1")
        options.add_session_config_entry("session.disable_prepacking", "0" if packs else "1")
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
            options.log_severity_level = _ERRORS  # a warning says that the file is of this machine
        opened = exact_sums(model, options) if exact else model
        # Bytes that are at hand need no file; what was changed on the way has none.
        if message is not None and opened is given:
            self._session = _session(message, options)
            return
        with tempfile.TemporaryDirectory() as folder:
            self._session = open_session(opened, options, Path(folder))

    def run(
        self, feeds: Mapping[str, np.ndarray[Any, Any]]
    ) -> tuple[_Arrays, dict[TensorEnd, np.ndarray[Any, Any]]]:
        """Run one batch; return the outputs by name and the integers by tensor end.

        Raises:
            ExportError: The runtime fails on these inputs.
        """
        try:
            given = dict(feeds) if self._caches is None else self._caches.feeds(feeds)
            arrays = self._session.run(None, given)
        except Exception as error:  # the runtime raises a dozen unrelated classes
            raise ExportError(f"{RUNTIME} fails on this input: {_first_line(error)}") from error
        # The session gives the model's own outputs first, and what was asked for besides behind
        # them.
        count = len(self._outputs)
        outputs = dict(zip(self._outputs, arrays[:count], strict=True))
        if self._caches is not None:
            outputs = self._caches.outputs(outputs)
        return outputs, dict(zip(self._ends, arrays[count:], strict=True))


def _caches_of(model: ir.Model) -> CacheFloats | None:
    """Return what converts between floats and codes of a decoder's caches; None without them."""
    # A cache is an input of codes, and most models have none: looking costs nothing then.
    if not any(value.dtype in _CODES for value in model.graph.inputs):
        return None
    from intact.formats.onnx_qdq.cache_codes import CacheFloats  # which few models need

    return CacheFloats(model)


def make_options(threads: int) -> ort.SessionOptions:
    """Return the options of a session that applications would open, but for idle threads.

    Args:
        threads: Threads inside one operator; 0 lets the runtime choose.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # As in every session of intact: idle threads do not hold the cores of others.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def open_session(
    model: ir.Model, options: ort.SessionOptions, folder: Path, *, exact: bool = False
) -> ort.InferenceSession:
    """Build a CPU session from a file, as users do and as large models need.

    Args:
        model: The model.
        options: Options of the session.
        folder: Where the file is written.
        exact: Sum exactly, where the processor saturates pairs of products.

    Raises:
        ExportError: The runtime refuses the model.
    """
    path = folder / "model.onnx"
    model = exact_sums(model, options) if exact else model
    # Large weights are pages of a file of their own, with no copy in memory.
    save_model(model, path, beside=weight_bytes(model) > STREAM_FROM)
    return _session(str(path), options)


def _session(source: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises a dozen unrelated classes
        raise ExportError(
            f"{RUNTIME} refuses the written model: {_first_line(error)}",
            remedy="keep the node that it names float",
        ) from error


def _first_line(error: Exception) -> str:
    # The runtime appends its whole graph to some messages.
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
